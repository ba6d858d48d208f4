// The kitchen and its closed form, in double precision and log space: the same formulas, in the same order, as
// worlds.kitchen, tilt.moments, frontier.exact_frontier and window.find_window in Python. Tested against them.
"use strict";
globalThis.kleashKitchen = (world) => {
  const { salt, gold, house, bomb } = world; // salt: the judge's score at love 1; house and bomb: log probabilities
  const size = salt.length;
  const goldRange = Math.max(...gold) - Math.min(...gold);
  const sum = (values) => values.reduce((total, value) => total + value, 0);

  function logSumExp(values) {
    const top = Math.max(...values);
    if (top === -Infinity) return -Infinity;
    return top + Math.log(sum(values.map((value) => Math.exp(value - top))));
  }

  function logAddExp(a, b) {
    if (a === b) return a + Math.LN2;
    return a > b ? a + Math.log1p(Math.exp(b - a)) : b + Math.log1p(Math.exp(a - b));
  }

  // exp(-x) - 1 + x, by its series where the terms cancel
  function k3(x) {
    if (Math.abs(x) < 1e-3) return x * x * (1 / 2 - x * (1 / 6 - x * (1 / 24 - x * (1 / 120 - x / 720))));
    return Math.expm1(-x) + x;
  }

  function kitchen(love, oversalt) {
    const parts = [Math.log1p(-oversalt), Math.log(oversalt)];
    const raw = house.map((h, i) => logAddExp(parts[0] + h, parts[1] + bomb[i]));
    const total = logSumExp(raw);
    const logReference = raw.map((value) => value - total);
    return { love, oversalt, reward: salt.map((s) => love * s), logReference, reference: logReference.map(Math.exp) };
  }

  // the policy at one beta (Infinity is the reference) and its expectations
  function tilt(kitchenNow, beta) {
    const { reward, logReference, reference } = kitchenNow;
    const top = Math.max(...reward);
    const push = reward.map((r) => (r === top ? 0 : (r - top) / beta)); // beta 0: -Infinity below the top
    const shrunk = sum(push.map((p, i) => reference[i] * Math.expm1(p)));
    const logNorm = shrunk > -0.5 ? Math.log1p(shrunk) : logSumExp(push.map((p, i) => logReference[i] + p));
    const logRatio = push.map((p) => p - logNorm);
    const policy = logRatio.map((x, i) => Math.exp(logReference[i] + x));
    const judge = sum(policy.map((p, i) => p * reward[i]));
    const quality = sum(policy.map((p, i) => p * gold[i]));
    const kl = sum(
      policy.map((p, i) => {
        const x = logRatio[i];
        return x > -1 ? p * k3(x) : (p > 0 ? p * x : 0) - p + reference[i];
      }),
    );
    const variance = sum(policy.map((p, i) => p * (reward[i] - judge) ** 2));
    const covariance = sum(policy.map((p, i) => p * (reward[i] - judge) * (gold[i] - quality)));
    return { beta, reward: judge, gold: quality, kl, policy, variance, covariance };
  }

  const geometric = (low, high, n) =>
    Array.from({ length: n }, (_, i) => Math.exp(Math.log(low) + (Math.log(high / low) * i) / (n - 1)));

  // betas at which quality has a local maximum: where Cov(gold, reward) falls through zero as 1 / beta rises
  function stationary(now, spread, widest) {
    const slope = (logLambda) => tilt(now, Math.exp(-logLambda)).covariance;
    const low = Math.log(Math.min(1e-4 / spread, 1e-2 / widest));
    const high = Math.log(1e4 / spread);
    let grid = Array.from({ length: 400 }, (_, i) => low + ((high - low) * i) / 399).map((x) => [x, slope(x)]);
    const largest = Math.max(...grid.map(([, c]) => Math.abs(c)));
    const negligible = 1e-12 * largest + 1e-14 * spread * Math.max(...gold);
    grid = grid.filter(([, c]) => Math.abs(c) > negligible);
    const roots = [];
    for (let i = 0; i + 1 < grid.length; i += 1) {
      if (!(grid[i][1] > 0 && grid[i + 1][1] < 0)) continue;
      let [a, b] = [grid[i][0], grid[i + 1][0]];
      for (let k = 0; k < 60; k += 1) {
        const middle = (a + b) / 2;
        if (slope(middle) > 0) a = middle;
        else b = middle;
      }
      roots.push(Math.exp(-(a + b) / 2));
    }
    return roots;
  }

  // the exact table: 0, 200 betas from where the policy has left the reference to where it is back, and the maxima
  function table(now) {
    const reference = tilt(now, Infinity);
    const spread = Math.sqrt(reference.variance);
    const widest = Math.max(...now.reward) - Math.min(...now.reward);
    const ends = [1e-2 * spread, Math.max(1e3 * spread, 10 * widest)];
    const betas = [0, ...geometric(ends[0], ends[1], 200), ...stationary(now, spread, widest)].sort((a, b) => a - b);
    return { reference, rows: betas.map((beta) => tilt(now, beta)) };
  }

  // the verdict on an exact table; quality alone decides
  function verdict({ reference, rows }) {
    const gain = rows.map((row) => row.gold - reference.gold);
    const rounding = 1e-12 * (Math.abs(reference.gold) + goldRange);
    const beta = rows.map((row) => row.beta);
    const measurable = gain.map((g) => g > rounding);
    const nothing = { best: null, safe: null, gain: null, loose: null, tight: null, small: false };
    if (!measurable.some(Boolean)) return { kind: "no-useful-range", ...nothing };
    const last = (test) => gain.findLastIndex((g, i) => test(g, i));
    const best = gain.indexOf(Math.max(...gain));
    const top = gain[best];
    const safe = last((g, i) => g >= top - 0.05 * top && measurable[i]);
    const loose = gain.findLastIndex((g, i) => i < best && top - g > 0.05 * top);
    const tight = last((g) => g >= 0.1 * top);
    return {
      kind: loose >= 0 ? "useful-range" : "no-overoptimisation-seen",
      best: beta[best],
      safe: beta[safe],
      gain: top,
      small: top < 0.05 * goldRange,
      loose: loose >= 0 ? [beta[loose], beta[loose + 1]] : null,
      tight: tight + 1 === beta.length ? null : [beta[tight + 1], beta[tight]],
    };
  }

  return { size, kitchen, tilt, table, verdict };
};
