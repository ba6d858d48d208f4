"use strict";
(() => {
  const root = document.documentElement;
  const dials = JSON.parse(document.getElementById("data").textContent).dials;
  const slider = document.getElementById("beta");
  if (!slider) { return; }
  root.classList.add("js");
  const one = (id) => document.getElementById(id);
  const stops = [...document.querySelectorAll(".stop")];
  const rows = [...document.querySelectorAll("tr[data-stop]")];
  const markers = ["dial", "travel"].map((kind) => [...document.querySelectorAll(`[class*="marker_${kind}"] line`)]
    .map((line) => [line, Number(line.closest(".plot").dataset.width)]));
  let dial = 0;

  const put = (id, text, value) => {
    const place = one(id);
    place.textContent = text;
    if (value !== undefined) { place.dataset.value = value === null ? "" : String(value); }
  };
  const needle = (name, row) => {
    const turn = row[name + "_turn"], hand = one(name + "-hand");
    hand.classList.toggle("gone", turn === null);
    if (turn !== null) { hand.setAttribute("transform", `rotate(${turn} 110 112)`); }
    one(name + "-arc").setAttribute("d", row[name + "_arc"]);
    put(name + "-value", row[name] || (row.status === "beyond" ? "beyond" : "not measured"), row.value[name]);
    const between = row[name + "_interval"];
    put(name + "-error", between ? `95 %: ${between}` : "");
  };
  const face = (name) => {
    const scale = dials[dial].scales[name], home = one(name + "-home");
    home.classList.toggle("gone", scale === null || scale.reference === null);
    if (scale !== null && scale.reference !== null) { home.setAttribute("transform", `rotate(${scale.reference} 110 112)`); }
  };
  const show = () => {
    const stop = Number(slider.value), row = dials[dial].rows[stop];
    put("beta-value", row.value.beta === null ? "the reference" : row.beta, row.value.beta);
    slider.setAttribute("aria-valuetext", row.said);
    needle("reward", row);
    needle("gold", row);
    put("kl-value", row.kl ? `${row.kl} nats` : "beyond", row.value.kl);
    put("kl-error", row.kl_interval ? `95 %: ${row.kl_interval}` : "");
    one("gain").textContent = row.gain;
    one("strap").setAttribute("d", row.strap);
    one("drift").setAttribute("d", row.drift);
    one("who").classList.toggle("gone", row.who === null);
    if (row.who !== null) { one("who").setAttribute("transform", `translate(${row.who} 0)`); }
    const words = { weak: "Weak: read with care.", beyond: "Beyond what the data can say: no estimate.", reference: "The untouched reference." };
    put("sureness", words[row.status] || "");
    markers.forEach((lines, which) => {
      const at = which === 0 ? row.at : row.far;
      for (const [line, width] of lines) {
        const seen = at !== null && at >= 0 && at <= 1;
        line.setAttribute("opacity", seen ? "0.85" : "0");
        const y = /,([-\d.]+)/.exec(line.getAttribute("transform") || ",0");
        if (seen) { line.setAttribute("transform", `translate(${at * width},${y ? y[1] : 0})`); }
      }
    });
    for (const place of stops) { place.hidden = !(Number(place.dataset.dial) === dial && Number(place.dataset.stop) === stop); }
    const none = one("no-answers");
    if (none) { none.hidden = stops.some((place) => !place.hidden); }
    for (const line of rows) {
      const now = Number(line.dataset.dial) === dial && Number(line.dataset.stop) === stop;
      line.classList.toggle("now", now);
      const frame = line.closest(".scroll");
      if (now && frame.scrollHeight > frame.clientHeight) { frame.scrollTop = line.offsetTop - frame.clientHeight / 2; }
    }
  };
  const choose = (which) => {
    dial = which;
    slider.max = String(dials[dial].rows.length - 1);
    slider.value = String(dials[dial].start);
    put("loosest", dials[dial].rows[0].beta);
    face("reward");
    face("gold");
    show();
  };
  slider.addEventListener("input", show);
  for (const radio of document.querySelectorAll("input[name=source]")) {
    radio.addEventListener("change", () => choose(Number(radio.value)));
    if (radio.checked) { dial = Number(radio.value); }
  }
  choose(dial);
})();
