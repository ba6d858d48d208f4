"""How far a forecast from the answers of policies can be trusted, where the truth is exact.

The recipes: the policies of the default dial are trained once (a minute), their exact distributions kept in
``--policies``; every one is a source, alone and with half of the answers from the reference, for every beta of the
dial, and all of them together between its betas. Random worlds: the families of ``kleash.random_world`` with a tilt at
one nat, two tilts, a tilt with .5 and one with 3 nats of drift. Faults: log ratios that are not what they claim, at
500 prompts x 32 answers.

Run with ``python bench/forecast_sources.py [--part NAME] [--redraws 200] [--worlds 40] [--policies FILE.npz]``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.special import logsumexp

from kleash import Samples, forecast, random_world
from kleash.errors import DataError
from kleash.forecasting.identity import identity_of
from kleash.tilt import moments, tilt_policy
from kleash.train.own import world_samples
from kleash.worlds import Family, World

ANSWERS = 64
FAR = 0.3
"""A miss of gold that matters in the recipes, where gold runs from 0 to 1.1 along the dial."""
FAMILIES: tuple[Family, ...] = ("light", "mixed-prompts", "rare-cheats", "gold-peak", "gamma")


def trained(path: Path) -> tuple[World, dict[float, np.ndarray]]:
    """The recipes, and the exact log policies by beta; trained where the file is not there yet."""
    if not path.exists():
        from kleash.train import lm_sweep

        kept = {}
        measure = lm_sweep.policy_log_probs

        def keeping(model: object, *, groups: int = 1) -> np.ndarray:
            kept["log_policy"] = measure(model, groups=groups)
            return kept["log_policy"]

        lm_sweep.policy_log_probs = keeping
        house = lm_sweep.recipes()
        world = house.world
        lm_sweep.sweep_recipes(None, {"seeds": 1, "seed": 0})
        np.savez_compressed(
            path,
            beta=np.asarray(house.betas),
            log_policy=kept["log_policy"].reshape(len(house.betas), *world.reward.shape),
            log_reference=world.log_reference,
            reward=world.reward,
            gold=world.gold,
        )
    with np.load(path) as file:
        world = World(name="recipes", log_reference=file["log_reference"], reward=file["reward"], gold=file["gold"])
        return world, dict(zip(file["beta"].tolist(), file["log_policy"], strict=True))


def drawn(world: World, prompts: np.ndarray, sources: dict[str, tuple[np.ndarray, int]], rng: np.random.Generator):
    """Samples: n answers of each source (log policy (P, Y), n) to each of some prompts, all log ratios known."""
    columns: dict[str, list] = {name: [] for name in ("prompt", "reward", "gold", "source")}
    ratios: dict[str, list] = {name: [] for name in sources if name != "reference"}
    for name, (log_p, n) in sources.items():
        for place, prompt in enumerate(prompts):
            share = np.exp(log_p[prompt]).cumsum()
            answer = np.searchsorted(share / share[-1], rng.random(n), side="right")
            columns["prompt"] += [place] * n
            columns["reward"] += world.reward[prompt, answer].tolist()
            columns["gold"] += world.gold[prompt, answer].tolist()
            columns["source"] += [name] * n
            for other, values in ratios.items():
                values += (sources[other][0][prompt, answer] - world.log_reference[prompt, answer]).tolist()
    return Samples.from_arrays(
        columns["prompt"], columns["reward"], gold=columns["gold"], source=columns["source"], log_ratio=ratios
    )


def measured(samples: Samples, beta: np.ndarray, truth: np.ndarray, **options: object):
    """Status (B,), whether each interval holds the truth (3, B), and the error of gold (B,)."""
    table = forecast(samples, beta=beta, **options).frontier
    quantities = (table.reward, table.gold, table.kl)
    inside = np.stack([(q.lo <= t) & (t <= q.hi) for q, t in zip(quantities, truth, strict=True)])
    return table.status, inside, table.gold.value - truth[1]


def of_recipes(path: Path, redraws: int) -> None:
    """Coverage and misses in the recipes, every policy as a source of every beta."""
    world, policies = trained(path)
    beta = np.array(sorted(b for b in policies if b > 0))
    exact = moments(world, beta)
    truth = np.stack([exact.reward, exact.gold, exact.kl])
    target = np.exp(tilt_policy(world, beta))
    everything = np.arange(world.n_prompts)
    ends = {"reward_max": float(world.reward.max()), "gold_min": float(world.gold.min()), "prompts": "fixed"}
    for kind, n_reference in (("alone", 0), ("half from the reference", ANSWERS // 2)):
        print(f"\nRecipes, {ANSWERS} answers a dish, {kind}, {redraws} redraws: rows ok in %, of those covered in %")
        print("(reward gold KL), ok and missing in % of redraws (the worst of the three)")
        whole = []
        for source, log_p in policies.items():
            distance = (target * (np.log(np.maximum(target, 1e-300)) - log_p)).sum(axis=2).mean(axis=1)
            found = []
            for redraw in range(redraws):
                rng = np.random.default_rng([redraw, int(100 * source)])
                sources = {"reference": (world.log_reference, n_reference)} if n_reference else {}
                sources["policy"] = (log_p, ANSWERS - n_reference)
                found.append(measured(drawn(world, everything, sources, rng), beta, truth, seed=redraw, **ends))
            status, inside, miss = (np.stack([row[i] for row in found]) for i in range(3))
            ok = status == "ok"
            cells = []
            for b in range(beta.size):
                here = inside[:, :, b]
                held = here[ok[:, b]]
                cover = " ".join(f"{100 * held[:, q].mean():3.0f}" if len(held) else "  -" for q in range(3))
                missing = max((ok[:, b] & ~here[:, q]).mean() for q in range(3))
                cells.append(f"{100 * ok[:, b].mean():3.0f} ({cover}) {100 * missing:2.0f}")
            print(f"from {source:4g} " + " | ".join(f"{b:g}: {cell}" for b, cell in zip(beta, cells, strict=True)))
            print(f"          KL(target || source): {' '.join(f'{d:.2f}' for d in distance)}", flush=True)
            whole.append((status, inside, miss))
        status, inside, miss = (np.concatenate([row[i] for row in whole]) for i in range(3))
        ok = status == "ok"
        cover = [100 * inside[:, q][ok].mean() for q in range(3)]
        outside = (np.abs(miss) > FAR) & ~inside[:, 1]
        print("over all ok rows: covered " + " ".join(f"{c:.1f}" for c in cover), end=" %; ")
        print(f"gold off by more than {FAR} and outside its interval {100 * outside[ok].mean():.2f} %")


def table(path: Path, redraws: int) -> None:
    """Gold far from the reference, from answers of the reference and of policies: the table of docs/sources.md."""
    world, policies = trained(path)
    beta = np.array([0.21, 0.27, 0.36])
    exact = moments(world, beta)
    heads = [f"gold at {b:g} ({g:.3f})" for b, g in zip(beta, exact.gold, strict=True)]
    print(f"{'answers from':22s}" + "   ".join(heads))
    for name in ("reference", 0.9, 0.6, 0.36):
        values = []
        for redraw in range(redraws):
            log_p = world.log_reference if name == "reference" else policies[name]
            source = {"reference" if name == "reference" else "policy": (log_p, ANSWERS)}
            samples = drawn(world, np.arange(world.n_prompts), source, np.random.default_rng(redraw))
            values.append(forecast(samples, beta=beta, prompts="fixed", correction=False).frontier.gold.value)
        mean, spread = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
        cells = "   ".join(f"{m:.3f} +- {s:.3f}" for m, s in zip(mean, spread, strict=True))
        print(f"{name if name == 'reference' else f'the policy at {name:g}':22s}" + cells, flush=True)


def between(path: Path, redraws: int) -> None:
    """What a sweep's own answers say between its betas: every policy of the dial and the reference, 64 answers each."""
    world, policies = trained(path)
    beta = np.geomspace(0.22, 3.0, 16)
    exact = moments(world, beta)
    truth = np.stack([exact.reward, exact.gold, exact.kl])
    fine = np.geomspace(0.2, 3.0, 400)
    best = fine[moments(world, fine).gold.argmax()]
    everyone = {"reference": world.log_reference} | {f"beta {b:g}": log_p for b, log_p in policies.items()}
    ends = {"reward_max": float(world.reward.max()), "gold_min": float(world.gold.min()), "prompts": "fixed"}
    found, verdicts = [], []
    for redraw in range(redraws):
        samples = world_samples(world, everyone, ANSWERS, 1000 + redraw)
        found.append(measured(samples, beta, truth, seed=redraw, **ends))
        verdicts.append(forecast(samples, seed=redraw, **ends).verdict)
    status, inside, _ = (np.stack([row[i] for row in found]) for i in range(3))
    ok = status == "ok"
    print(f"\nA sweep's own answers, {redraws} redraws: rows ok in %, of those covered in % (reward gold KL)")
    for b, value in enumerate(beta):
        cover = " ".join(f"{100 * inside[:, q, b][ok[:, b]].mean():5.1f}" for q in range(3))
        print(f"{value:5.3g}: {100 * ok[:, b].mean():3.0f} ({cover})")
    print("over all: " + " ".join(f"{100 * inside[:, q][ok].mean():.1f}" for q in range(3)))
    ends_of = np.array([(v.best_lo, v.best_hi) for v in verdicts if v.best_lo is not None and v.best_hi is not None])
    held = ((ends_of[:, 0] <= best) & (best <= ends_of[:, 1])).mean()
    low, high = np.median(ends_of, axis=0)
    print(f"best beta {best:.3f} within its interval, in the middle {low:.3f} to {high:.3f}: {100 * held:.0f} %")


def ladders(seeds: int) -> None:
    """The ladder in the recipes from many seeds, held against the exact table, and its time against the sweep's."""
    from kleash.train.ladder import ladder_recipes
    from kleash.train.lm_sweep import sweep_recipes
    from kleash.train.recipes import recipes

    start = time.perf_counter()
    sweep_recipes(None, {"seeds": 1, "seed": 0, "forecast_samples": 0})
    sweep = time.perf_counter() - start
    world = recipes().world
    base = moments(world, np.inf).gold[0]
    fine = np.geomspace(0.2, 60.0, 4000)
    gain = moments(world, fine).gold - base
    best, top = fine[gain.argmax()], gain.max()
    held, times, sizes = [], [], []
    for seed in range(seeds):
        start = time.perf_counter()
        found = ladder_recipes(seed=seed)
        times.append(time.perf_counter() - start)
        sizes.append((len(found.rungs), found.forecast.n_samples / world.n_prompts))
        table, verdict = found.forecast.frontier, found.forecast.verdict
        if not found.found:
            held.append((False, False, False))
            continue
        ends = np.array([*verdict.tight_edge, *verdict.loose_edge])
        exact = moments(world, ends).gold - base
        slack = 2 * table.gold.gain.se[np.searchsorted(table.beta, ends)]
        tight = exact[0] <= 0.1 * top + slack[0] and exact[1] >= 0.1 * top - slack[1]
        loose = ends[2] < best and exact[3] >= 0.95 * top - slack[3]
        held.append((verdict.best_lo <= best <= verdict.best_hi, tight, loose))
    names = ("best beta", "tight edge", "loose edge")
    cover = ", ".join(f"{name} {n}" for name, n in zip(names, np.sum(held, axis=0), strict=True))
    most = max(n for n, _ in sizes), max(n for _, n in sizes)
    print(f"\nLadders from {seeds} seeds: within two standard errors {cover}; at most {most[0]} policies and")
    print(f"{most[1]:.0f} answers a dish; {np.median(times):.1f} s against {sweep:.1f} s of eight betas, a seed each")


def of_worlds(n_worlds: int) -> None:
    """Coverage in random worlds, 60 prompts x 24 answers, by who drew the answers."""
    print(f"\nRandom worlds, 60 prompts x 24 answers, {n_worlds} a family: rows ok in %, covered in % (reward gold KL)")
    kinds = ("reference", "reference and one", "two policies", "drift .5", "drift 3")
    for family in FAMILIES:
        cells = []
        for kind in kinds:
            ok_rows, rows, inside = 0, 0, []
            for index in range(n_worlds):
                rng = np.random.default_rng([index, get_args(Family).index(family), 7])
                world = random_world(family, rng=rng, n_prompts=100, n_answers=300)
                spread = float(np.sqrt(moments(world, np.inf).reward_variance[0]))
                beta = np.sort(spread / np.geomspace(0.1, 3.0, 10))
                exact = moments(world, beta)
                near, far = spread / 0.7, spread / 1.4  # about a quarter of a nat, and one nat for normal scores
                sources = _sources(world, kind, near, far, rng)
                prompts = rng.choice(100, size=60, p=world.prompt_weight)
                truth = np.stack([exact.reward, exact.gold, exact.kl])
                try:
                    status, held, _ = measured(drawn(world, prompts, sources, rng), beta, truth, seed=index)
                except DataError:
                    continue
                rows += beta.size
                ok_rows += int((status == "ok").sum())
                inside.append(held[:, status == "ok"])
            held = np.concatenate(inside, axis=1) if inside else np.zeros((3, 0))
            cover = " ".join(f"{100 * q.mean():3.0f}" if q.size else "  -" for q in held)
            cells.append(f"{kind}: {100 * ok_rows / max(rows, 1):3.0f} ({cover})")
        print(f"{family:14s} " + " | ".join(cells), flush=True)


def _sources(world: World, kind: str, near: float, far: float, rng: np.random.Generator) -> dict:
    def tilt(beta: float, drift: float = 0.0) -> np.ndarray:
        log_p = tilt_policy(world, [beta])[0] + drift * rng.normal(size=world.reward.shape)
        return log_p - logsumexp(log_p, axis=1, keepdims=True)

    reference = (world.log_reference, 12)
    return {
        "reference": {"reference": (world.log_reference, 24)},
        "reference and one": {"reference": reference, "far": (tilt(far), 12)},
        "two policies": {"near": (tilt(near), 12), "far": (tilt(far), 12)},
        "drift .5": {"reference": reference, "far": (tilt(far, 0.5), 12)},
        "drift 3": {"reference": reference, "far": (tilt(far, 3.0), 12)},
    }[kind]


FAULTS = {
    "honest": lambda d: d.sum(axis=-1),
    "mean per token": lambda d: d.mean(axis=-1),
    "+.3 nats": lambda d: d.sum(axis=-1) + 0.3,
    "-.3 nats": lambda d: d.sum(axis=-1) - 0.3,
    "a quarter more": lambda d: 1.25 * d.sum(axis=-1),
    "a quarter less": lambda d: 0.75 * d.sum(axis=-1),
    "5 % more": lambda d: 1.05 * d.sum(axis=-1),
    "top 10 of 20": lambda d: d.sum(axis=-1),
    "temperature .7": lambda d: d.sum(axis=-1),
}


def of_faults(draws: int) -> None:
    """How often a source that is not what it claims is found, at 500 prompts x 32 answers of 12 tokens."""
    print(f"\nFaults, 500 prompts x 32 answers, found of {draws}:")
    for n_reference in (0, 16):
        for kl in (0.3, 1.0, 2.0):
            found = dict.fromkeys(FAULTS, 0)
            for name in FAULTS:
                for draw in range(draws):
                    found[name] += not _identity(name, kl, n_reference, np.random.default_rng([draw, 3])).holds
            who = "half from the reference" if n_reference else "the policy alone"
            print(f"{who}, KL {kl:g}: " + ", ".join(f"{name} {n}" for name, n in found.items()), flush=True)


def _identity(fault: str, kl: float, n_reference: int, rng: np.random.Generator):
    prompts, tokens, words = 500, 12, 20
    log_q = rng.normal(size=(prompts, tokens, words))
    log_q -= logsumexp(log_q, axis=-1, keepdims=True)
    log_p = log_q + np.sqrt(2 * kl / tokens) * rng.normal(size=log_q.shape)
    log_p -= logsumexp(log_p, axis=-1, keepdims=True)
    sampled = log_p / (0.7 if fault == "temperature .7" else 1.0)
    if fault == "top 10 of 20":
        sampled = np.where(sampled >= np.sort(sampled, axis=-1)[..., [-10]], sampled, -np.inf)
    n = 32 - n_reference
    parts = [_token_ratios(sampled, log_p - log_q, n, rng)]
    parts += [_token_ratios(log_q, log_p - log_q, n_reference, rng)] if n_reference else []
    ratio = np.concatenate([FAULTS[fault](part).ravel() for part in parts])
    prompt = np.concatenate([np.repeat(np.arange(prompts), part.shape[1]) for part in parts])
    source = np.repeat(["policy", "reference"][: len(parts)], [part.shape[0] * part.shape[1] for part in parts])
    samples = Samples.from_arrays(prompt, np.zeros(ratio.size), source=source.tolist(), log_ratio={"policy": ratio})
    where = np.repeat(np.arange(samples.n_prompts), samples.counts)
    return identity_of(samples.sources, where, len(samples.sources.names) - 1)


def _token_ratios(log_p: np.ndarray, ratio: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    share = np.exp(log_p - logsumexp(log_p, axis=-1, keepdims=True)).cumsum(axis=-1)
    chosen = (rng.random((log_p.shape[0], n, log_p.shape[1]))[..., None] > share[:, None]).sum(axis=-1)
    chosen = np.minimum(chosen, log_p.shape[-1] - 1)
    return np.take_along_axis(ratio[:, None], chosen[..., None], axis=-1)[..., 0]


def of_a_million() -> None:
    """A million rows: four sources against the reference alone."""
    rng = np.random.default_rng(0)
    prompt, reward = np.repeat(np.arange(15_625), 64), rng.normal(size=1_000_000)
    gold = reward + rng.normal(size=reward.size)
    alone = Samples.from_arrays(prompt, reward, gold=gold)
    names = ("reference", "a", "b", "c")
    code = np.tile(np.repeat(np.arange(4), 16), 15_625)
    shifted = reward + np.array([0.0, 0.3, 0.6, 0.9])[code]
    tilts = {name: k * shifted - k**2 / 2 for k, name in zip((0.3, 0.6, 0.9), names[1:], strict=True)}
    four = Samples.from_arrays(prompt, shifted, gold=gold, source=np.array(names)[code].tolist(), log_ratio=tilts)
    times = []
    for samples in (alone, four):
        start = time.perf_counter()
        forecast(samples)
        times.append(time.perf_counter() - start)
    ratio = times[1] / times[0]
    print(f"\nA million rows: the reference alone {times[0]:.1f} s, four sources {times[1]:.1f} s ({ratio:.1f} x)")


PARTS = {
    "table": lambda given: table(given.policies, given.redraws),
    "faults": lambda given: of_faults(40),
    "ladders": lambda given: ladders(24),
    "worlds": lambda given: of_worlds(given.worlds),
    "million": lambda given: of_a_million(),
    "between": lambda given: between(given.policies, given.redraws),
    "recipes": lambda given: of_recipes(given.policies, given.redraws),
}
"""What is measured; `table` is that of docs/sources.md."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--redraws", type=int, default=200, help="redraws of each pair in the recipes")
    parser.add_argument("--worlds", type=int, default=40, help="random worlds per family")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; repeatable; default: all of them")
    parser.add_argument("--policies", type=Path, default=Path("recipes_policies.npz"), help="kept trained policies")
    options = parser.parse_args(arguments)
    for name in options.part or PARTS:
        PARTS[name](options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
