"""Sources that a page has to bear."""

import dataclasses

import numpy as np

import kleash
from kleash.reporting.sources import source_of

HOSTILE = (
    "<script>window.hit=1</script>",
    "</script><script>window.hit=1</script>",
    "<img src=x onerror=window.hit=1>",
    "\"' onmouseover=window.hit=1 x='",
    "{{ 7*7 }} {% raw %} ${7*7}",
    "<!-- ]]> <svg onload=window.hit=1>",
    "javascript:window.hit=1",
    "null \x00 bell \x07 escape \x1b[31m",
    "\u202eright to left override \u2066 isolate",
    "שלום עולם, مرحبا",
    "line\u2028separator\u2029paragraph",
    "half a pair \ud800",
    "unseen \u200b\u2060\ufeff\U000e0041 between",
    "x" * 10_000,
    "&lt;b&gt; &amp;",
)


def hostile_source(sweep):
    betas = sweep.frontier.beta.tolist()
    answers = tuple(
        {"beta": betas[i % 3], "prompt": text, "answer": text, "reward": 1.0, "gold": None}
        for i, text in enumerate(HOSTILE)
    )
    return dataclasses.replace(
        source_of(sweep, name=HOSTILE[1]),
        answers=answers,
        notes=HOSTILE,
        facts=tuple(("world", text) for text in HOSTILE),
        path=HOSTILE[0],
        findings=tuple(
            {"code": t, "input": t, "status": "problem", "message": t, "fix": t, "causes": [t]} for t in HOSTILE
        ),
    )


def without_gold(frontier):
    return dataclasses.replace(
        frontier,
        gold=None,
        replicates=None,
    )


def refused(frontier):
    gone = np.zeros(frontier.beta.shape, dtype=bool)
    parts = {name: getattr(frontier, name).where(gone) for name in ("reward", "gold", "kl")}
    return dataclasses.replace(frontier, **parts, status=np.full(frontier.beta.size, "beyond"), replicates=None)


def many_answers(betas, n, size):
    rng = np.random.default_rng(0)
    words = np.array(["salt", "broth", "onion", "thyme", "<b>", "pepper"])
    return tuple(
        {
            "beta": betas[i % len(betas)],
            "prompt": f"prompt {i}",
            "answer": " ".join(rng.choice(words, size)),
            "reward": float(i),
            "gold": 0.5,
        }
        for i in range(n)
    )


def big_sources(n_betas=200, n_sources=5):
    sources = []
    for i in range(n_sources):
        world = kleash.kitchen(oversalt=0.0005 * (1 + 5 * i))
        frontier = kleash.exact_frontier(world, np.geomspace(0.1, 500, n_betas))
        sources.append(source_of(frontier, name=f"kitchen {i}"))
    return sources
