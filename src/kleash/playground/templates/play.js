
// The page: three dials, six scenes, one guess. It moves the drawings that drawing.py made, by the same geometry.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { world, geometry: g, scenes } = data;
  const model = kleashKitchen(world);
  const topSalt = Math.max(...world.salt);
  const at = (id) => document.getElementById(id);
  const part = (picture, name) => at(`picture-${picture}`).querySelector(`[data-part="${name}"]`);
  const fixed = (value) => value.toFixed(2);
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const steps = { beta: 300, love: 40, oversalt: 44 };

  // ---- words ----
  const short = (value) => String(Number(value.toPrecision(3)));
  const betaWords = (beta) => (beta === Infinity ? "reference" : short(beta));
  const signed = (value) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(3);
  const loveWords = (love) => `\u00d7 ${short(love)}`;
  function oversaltWords(share) {
    return share === 0 ? "never" : `1 dish in ${Math.round(1 / share).toLocaleString("en")}`;
  }
  function verdictWords(verdict) {
    if (verdict.best === null)
      return [
        "No useful range",
        "At no beta does quality gain anything over the untouched house. The dial cannot help here: fix the judge.",
      ];
    let text = `Quality gains ${verdict.gain.toFixed(3)} over the untouched house at beta ${betaWords(verdict.best)}. `;
    if (verdict.small) text += "That is measurable and small: 0.13 would begin to matter. ";
    text += `Beta ${betaWords(verdict.safe)} keeps at least 95 % of that, on the tightest leash that does. `;
    if (verdict.loose === null) return ["No over-optimisation seen", `${text}Looser than that, no loss shows.`];
    const [loose, tight] = [verdict.loose.map(betaWords), verdict.tight && verdict.tight.map(betaWords)];
    text += `Looser than beta ${loose[0]} to ${loose[1]}, the critic is being cheated.`;
    if (tight) text += ` Tighter than beta ${tight[1]} to ${tight[0]}, hardly anything is gained.`;
    return ["A useful range", text];
  }

  // ---- the dials' scales ----
  const decades = Math.log(g.highest / g.lowest);
  function position(beta) {
    if (beta === Infinity) return 1;
    if (beta < g.lowest) return (g.margin * beta) / g.lowest;
    if (beta > g.highest) return 1 - (g.margin * g.highest) / beta;
    return g.margin + ((1 - 2 * g.margin) * Math.log(beta / g.lowest)) / decades;
  }
  function betaAt(place) {
    if (place >= 1) return Infinity;
    if (place < g.margin) return (g.lowest * place) / g.margin;
    if (place > 1 - g.margin) return (g.highest * g.margin) / (1 - place);
    return g.lowest * Math.exp(((place - g.margin) / (1 - 2 * g.margin)) * decades);
  }
  // the slider jumps over what lies between its ends and the logarithmic middle
  function betaOfSlider(value) {
    const place = value / steps.beta;
    if (value === 0) return 0;
    if (value === steps.beta) return Infinity;
    return betaAt(Math.min(Math.max(place, g.margin), 1 - g.margin));
  }
  const loveAt = (value) => 0.25 * 16 ** (value / steps.love);
  const oversaltAt = (value) => (value === 0 ? 0 : 1e-5 * 2e4 ** ((value - 1) / (steps.oversalt - 1)));
  const loveStep = (love) => Math.round((steps.love * Math.log(love / 0.25)) / Math.log(16));
  const oversaltStep = (share) =>
    share === 0 ? 0 : Math.round(1 + ((steps.oversalt - 1) * Math.log(share / 1e-5)) / Math.log(2e4));

  // ---- the state and what follows from it ----
  const state = { ...data.start };
  let now; // the kitchen of the state: its table, verdict and curves
  let here; // the tilt at the state's beta

  function cook() {
    if (now && now.love === state.love && now.oversalt === state.oversalt) return;
    const place = model.kitchen(state.love, state.oversalt);
    const table = model.table(place);
    now = {
      love: state.love,
      oversalt: state.oversalt,
      place,
      house: table.reference,
      verdict: model.verdict(table),
      loosest: model.tilt(place, 0).kl,
      line: g.line.map((p) => model.tilt(place, betaAt(p))),
    };
  }

  function set(beta, love = state.love, oversalt = state.oversalt) {
    Object.assign(state, { beta, love, oversalt });
    cook();
    here = model.tilt(now.place, beta);
    draw();
  }

  // ---- drawing ----
  const points = (list) => `M${list.map(([x, y]) => `${fixed(x)} ${fixed(y)}`).join("L")}`;
  const pile = (s) => `M${fixed(29 - 9 * s)} 99Q32 ${fixed(95 - 58 * s)} ${fixed(35 + 9 * s)} 99Z`;
  const mouth = (s) => `M101 130Q110 ${fixed(120 + 20 * s)} 119 130`;

  function drawLeash() {
    const l = g.leash;
    const along = (kl) => l.near + (l.far - l.near) * Math.sqrt(kl / now.loosest);
    const x = along(here.kl);
    const middle = fixed((l.post + x - 14) / 2);
    part("leash", "strap").setAttribute(
      "d",
      `M${fixed(l.post)} ${fixed(l.ring)}Q${middle} ${fixed(l.belt + 18)} ${fixed(x - 14)} ${fixed(l.belt)}`,
    );
    part("leash", "chef").setAttribute("transform", `translate(${fixed(x)} 0)`);
    part("leash", "pile").setAttribute("d", pile(here.reward / (topSalt * now.love)));
    part("leash", "kl-words").textContent = `Leash out: KL ${here.kl.toFixed(3)} nats`;
    const ticks = part("leash", "kl-ticks");
    const [mark, label] = [ticks.querySelector("path"), ticks.querySelector("text")];
    const drawn = [];
    let last = -Infinity;
    for (const tick of g.kl_ticks.filter((t) => t <= now.loosest)) {
      const where = along(tick);
      if (where - last < l.apart) continue;
      last = where;
      const [stroke, words] = [mark.cloneNode(), label.cloneNode()];
      stroke.setAttribute("d", `M${fixed(where)} ${fixed(l.ground)}v6`);
      words.setAttribute("x", fixed(where));
      words.textContent = String(tick);
      drawn.push(stroke, words);
    }
    ticks.replaceChildren(...drawn, ticks.lastElementChild);
  }

  function drawNeedles() {
    part("knob", "pointer").setAttribute("transform", `rotate(${fixed(-135 + 270 * position(state.beta))} 110 96)`);
    part("knob", "beta-words").textContent = betaWords(state.beta);
    const top = topSalt * now.love;
    const needles = {
      judge: [here.reward, now.house.reward, top, here.reward.toFixed(2), here.reward / top],
      quality: [here.gold, now.house.gold, g.top_quality, here.gold.toFixed(3), here.gold / now.house.gold / 1.15],
    };
    for (const [name, [value, house, most, words, glad]] of Object.entries(needles)) {
      part(name, "needle").setAttribute("transform", `rotate(${fixed(-90 + (180 * value) / most)} 110 122)`);
      part(name, "house-mark").setAttribute("transform", `rotate(${fixed(-90 + (180 * house) / most)} 110 122)`);
      part(name, "value").textContent = words;
      part(name, "top-words").textContent = short(most);
      part(name, "mouth").setAttribute("d", mouth(glad));
    }
  }

  function drawSalt() {
    const s = g.salt;
    const wide = (s.right - s.left) / model.size;
    const largest = Math.max(...here.policy, ...now.place.reference);
    const roof = g.roofs.find((r) => r >= largest - 1e-9);
    const y = (share) => fixed(s.bottom - ((s.bottom - s.top) * share) / roof);
    const bar = (p, i) => {
      const x = s.left + (i + 0.5) * wide - s.bar / 2;
      return `M${fixed(x)} ${fixed(s.bottom)}V${y(p)}h${fixed(s.bar)}V${fixed(s.bottom)}Z`;
    };
    part("salt", "chef-bars").setAttribute("d", here.policy.map(bar).join(""));
    const steps = now.place.reference.map((p) => `V${y(p)}h${fixed(wide)}`).join("");
    part("salt", "house-line").setAttribute("d", `M${fixed(s.left)} ${fixed(s.bottom)}${steps}`);
    part("salt", "roof").textContent = short(roof);
    part("salt", "half-roof").textContent = short(roof / 2);
  }

  function drawCurves() {
    const c = g.curves;
    const along = (place) => c.left + (c.right - c.left) * place;
    const x = along(position(state.beta));
    part("curves", "here").setAttribute("d", `M${fixed(x)} ${fixed(c.judge[0])}V${fixed(c.quality[1])}`);
    const { loose, tight, best } = now.verdict;
    const low = best === null || loose === null ? along(0) : along(position(loose[1]));
    const high = best === null ? along(0) : along(tight ? position(tight[1]) : 1);
    part("curves", "range").setAttribute("x", fixed(low));
    part("curves", "range").setAttribute("width", fixed(high - low));
    for (const [name, key, top] of [["judge", "reward", topSalt * now.love], ["quality", "gold", c.top_quality]]) {
      const [upper, lower] = c[name];
      const y = (value) => lower - ((lower - upper) * value) / top;
      part("curves", `${name}-line`).setAttribute("d", points(g.line.map((p, i) => [along(p), y(now.line[i][key])])));
      part("curves", `${name}-house`).setAttribute("d", `M${c.left} ${fixed(y(now.house[key]))}H${c.right}`);
      part("curves", `${name}-dot`).setAttribute("cx", fixed(x));
      part("curves", `${name}-dot`).setAttribute("cy", fixed(y(here[key])));
      part("curves", `${name}-top`).textContent = short(top);
    }
  }

  // a number as text, and with all its digits for those who read the page with a program
  function tell(id, text, value) {
    at(id).textContent = text;
    at(id).dataset.value = String(value);
  }

  function slide(id, step, words) {
    const slider = at(id);
    slider.value = step;
    slider.setAttribute("aria-valuetext", words);
    at(`${id}-words`).textContent = words;
  }

  function draw() {
    drawLeash();
    drawNeedles();
    drawSalt();
    drawCurves();
    tell("now-beta", betaWords(state.beta), state.beta);
    tell("now-reward", here.reward.toFixed(2), here.reward);
    tell("now-gold", here.gold.toFixed(3), here.gold);
    tell("now-gain", signed(here.gold - now.house.gold), here.gold - now.house.gold);
    tell("now-kl", here.kl.toFixed(3), here.kl);
    const [headline, detail] = verdictWords(now.verdict);
    if (at("verdict-headline").textContent !== headline) at("verdict-headline").textContent = headline;
    at("verdict-detail").textContent = detail;
    at("verdict").dataset.kind = now.verdict.kind;
    at("verdict").dataset.value = JSON.stringify(now.verdict);
    slide("beta", Math.round(position(state.beta) * steps.beta), betaWords(state.beta));
    slide("love", loveStep(state.love), loveWords(state.love));
    slide("oversalt", oversaltStep(state.oversalt), oversaltWords(state.oversalt));
    if (document.activeElement !== at("beta-exact")) at("beta-exact").value = betaWords(state.beta);
    const first = state.love === data.start.love && state.oversalt === data.start.oversalt;
    for (const row of document.querySelectorAll("tr[data-row]"))
      row.classList.toggle("here", first && row.dataset.row === betaWords(state.beta));
  }

  // ---- turning the dial by itself ----
  let turning = 0;
  function stop() {
    turning += 1;
    document.documentElement.dataset.turning = "no";
  }
  // from where the dial stands to each beta in turn; at once where motion is not wanted
  function turn(betas, love, oversalt) {
    stop();
    if (calm.matches) {
      set(betas.at(-1), love, oversalt);
      return;
    }
    const mine = turning;
    document.documentElement.dataset.turning = "yes";
    let [next, from, begun] = [0, position(state.beta), null];
    const [spent, rest] = [800, 700];
    function frame(time) {
      if (mine !== turning) return;
      begun ??= time;
      const share = Math.min((time - begun) / spent, 1);
      const eased = share * share * (3 - 2 * share);
      const target = betas[next];
      set(share === 1 ? target : betaAt(from + (position(target) - from) * eased), love, oversalt);
      if (share === 1 && time - begun >= spent + (next + 1 < betas.length ? rest : 0)) {
        next += 1;
        if (next === betas.length) {
          stop();
          return;
        }
        [from, begun] = [position(target), time];
      }
      requestAnimationFrame(frame);
    }
    requestAnimationFrame(frame);
  }

  // ---- the reader's hands ----
  for (const [id, read] of [
    ["beta", (v) => set(betaOfSlider(v))],
    ["love", (v) => set(state.beta, loveAt(v))],
    ["oversalt", (v) => set(state.beta, state.love, oversaltAt(v))],
  ])
    at(id).addEventListener("input", (event) => {
      stop();
      read(Number(event.target.value));
    });
  function readBeta(text) {
    const word = text.trim().toLowerCase();
    if (["reference", "inf", "infinity", "\u221e"].includes(word)) return Infinity;
    const value = word === "" ? NaN : Number(word);
    return value === 0 || (value >= g.lowest && value <= g.highest) ? value : NaN;
  }
  at("beta-exact").addEventListener("change", (event) => {
    const beta = readBeta(event.target.value);
    at("beta-help").classList.toggle("wrong", Number.isNaN(beta));
    event.target.toggleAttribute("aria-invalid", Number.isNaN(beta));
    if (Number.isNaN(beta)) return;
    stop();
    set(beta);
  });
  at("reset").addEventListener("click", () => turn([data.start.beta], data.start.love, data.start.oversalt));
  for (const button of document.querySelectorAll("button[data-beta]"))
    button.addEventListener("click", () => turn([readBeta(button.dataset.beta)], data.start.love, data.start.oversalt));

  // ---- the scenes ----
  const cards = [...document.querySelectorAll(".scene")];
  let shown = 0;
  function show(index) {
    shown = index;
    cards.forEach((card, i) => card.classList.toggle("shown", i === index));
    at("scene-number").textContent = `${index + 1} of ${cards.length}`;
    at("scene-back").disabled = index === 0;
    at("scene-next").disabled = index === cards.length - 1;
  }
  at("scene-back").addEventListener("click", () => show(shown - 1));
  at("scene-next").addEventListener("click", () => show(shown + 1));
  cards.forEach((card, index) => {
    const scene = scenes[index];
    const buttons = [...card.querySelectorAll("button[data-option]")];
    const answer = card.querySelector(".answer");
    answer.setAttribute("role", "status");
    buttons.forEach((button, option) =>
      button.addEventListener("click", () => {
        buttons.forEach((other, i) => {
          other.classList.toggle("right", i === scene.right);
          other.classList.toggle("wrong", i === option && i !== scene.right);
          other.setAttribute("aria-pressed", String(i === option));
        });
        card.querySelector(".said").textContent = option === scene.right ? "You saw it. " : "Look again. ";
        card.classList.add("answered");
        turn(scene.betas.map((beta) => (beta === "reference" ? Infinity : beta)), scene.love, scene.oversalt);
      }),
    );
  });

  // ---- the guess ----
  const guess = () => betaOfSlider(Number(at("guess-beta").value));
  function guessWords() {
    at("guess-words").textContent = betaWords(guess());
    at("guess-beta").setAttribute("aria-valuetext", betaWords(guess()));
  }
  at("guess-beta").addEventListener("input", guessWords);
  function unlock() {
    at("kitchen").inert = false;
    at("table").inert = false;
    at("kitchen").classList.remove("locked");
    at("table").classList.remove("locked");
    at("guess").hidden = true;
  }
  at("guess-done").addEventListener("click", () => {
    const beta = guess();
    unlock();
    set(beta, data.start.love, data.start.oversalt);
    const house = now.house.gold.toFixed(3);
    const yours = `beta ${betaWords(beta)}: the guests get ${here.gold.toFixed(3)}`;
    at("reveal").textContent =
      beta === Infinity
        ? `You would leave the house as it is, and in this kitchen that is the best: ${house}. No beta does better.`
        : `You said ${yours}. The untouched house serves ${house}. In this kitchen no beta does better than that: ` +
          "often no setting of the dial helps. Below: why, and what does help.";
    at("reveal").hidden = false;
    at("reveal").focus();
    const mark = part("curves", "guess");
    const c = g.curves;
    mark.setAttribute("transform", `translate(${fixed(c.left + (c.right - c.left) * position(beta))} ${c.quality[1]})`);
    mark.setAttribute("visibility", "visible");
    at("guess-key").hidden = false;
  });
  at("guess-skip").addEventListener("click", () => {
    unlock();
    at("kitchen").tabIndex = -1;
    at("kitchen").focus();
  });

  // an address such as play.html#beta=7.25&love=1&oversalt=0.0005 opens the kitchen at that setting, without the guess
  function asked() {
    const given = new URLSearchParams(location.hash.slice(1));
    const number = (name) => (given.has(name) ? Number(given.get(name)) : data.start[name]);
    const [beta, love, oversalt] = [readBeta(given.get("beta") ?? ""), number("love"), number("oversalt")];
    const inside = love >= 0.25 && love <= 4 && (oversalt === 0 || (oversalt >= 1e-5 && oversalt <= 0.2));
    return Number.isNaN(beta) || !inside ? null : { beta, love, oversalt };
  }

  document.documentElement.classList.add("js");
  for (const id of ["kitchen", "table"]) {
    at(id).inert = true;
    at(id).classList.add("locked");
  }
  show(0);
  guessWords();
  stop();
  set(state.beta);
  const setting = asked();
  if (setting) {
    unlock();
    set(setting.beta, setting.love, setting.oversalt);
  }
  globalThis.kleashPlay = { set, state, reading: () => ({ ...here, verdict: now.verdict }) };
})();
