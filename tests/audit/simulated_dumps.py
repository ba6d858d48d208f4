"""Rollout dumps with a known truth: two token models, honest samples, exact log-probabilities, and planted faults.

A model is a table of next-token logits per context; a token moves on to another context, token 0 ends the answer. The
reference's logits are drawn at random, the policy's are the reference's plus drift, light (normal) or heavy (Student t,
and tokens the policy has un-learned), so ``E[exp(ref_logp - logp)] = 1`` holds by construction whatever the tail.

Every fault takes a random generator and a size and gives ``(faulty, twin)``: two dumps that share their samples as far
as the fault allows and differ in the fault alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kleash.audit import Declared
from kleash.audit.dumps import findings_of
from kleash.audit.dumps.rollouts import NUMBER_COLUMNS, Chunk
from kleash.audit.dumps.statistics import tally
from kleash.audit.findings import Finding

V, M = 64, 48  # vocabulary, contexts


def check_rollouts(chunks: Iterable[Chunk], declared: Declared | None = None) -> list[Finding]:
    """The findings on a dump that is in memory."""
    return findings_of(tally(chunks, declared))


# ------------------------------------------------------------------------------------------------------------ models


def log_softmax(logits):
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class Models:
    """Reference and policy as tables of log-probabilities (M, V), and where each token leads."""

    reference: np.ndarray
    policy: np.ndarray
    follow: np.ndarray

    def at(self, share: float) -> Models:
        """The policy after a share of its training: on the straight line between the logits."""
        return replace(self, policy=log_softmax(self.reference + share * (self.policy - self.reference)))


def models(rng, *, length=60.0, drift=0.3, tail="light"):
    """A pair of models whose answers are about ``length`` tokens long."""
    logits = 2.0 * rng.normal(size=(M, V))
    logits[:, 0] = -np.inf
    body = log_softmax(logits)
    stop = np.clip(np.exp(rng.normal(size=M) * 0.3) / length, 1e-4, 0.9)
    reference = body + np.log1p(-stop)[:, None]
    reference[:, 0] = np.log(stop)
    if tail == "light":
        change = drift * rng.normal(size=(M, V))
    else:
        change = np.clip(drift * rng.standard_t(1.5, size=(M, V)), -30, 30)
        change[rng.random((M, V)) < 0.03] -= 12.0  # tokens the policy has un-learned, whatever their mass was
    change[:, 0] = np.clip(change[:, 0], -1.0, 1.0)
    return Models(reference=reference, policy=log_softmax(reference + change), follow=rng.integers(0, M, size=(M, V)))


def tempered(table, temperature):
    return log_softmax(table / temperature)


def top_p(table, p):
    """Nucleus sampling: the smallest set of tokens with mass p, renormalised; -inf elsewhere."""
    order = np.argsort(-table, axis=1)
    mass = np.cumsum(np.take_along_axis(np.exp(table), order, axis=1), axis=1)
    keep = np.zeros(table.shape, dtype=bool)
    np.put_along_axis(keep, order, np.hstack([np.ones((len(table), 1), dtype=bool), mass[:, :-1] < p]), axis=1)
    return log_softmax(np.where(keep, table, -np.inf))


def sample(rng, table, follow, n, *, longest, at_least=0):
    """Answers drawn from a table: (offsets, contexts, tokens). ``at_least`` forbids the end token that long."""
    no_end = table.copy()
    no_end[:, 0] = -np.inf
    flat = [
        (np.arange(M)[:, None] + np.cumsum(np.exp(t), axis=1) / np.exp(t).sum(axis=1, keepdims=True)).ravel()
        for t in (table, log_softmax(no_end))
    ]
    live, context = np.arange(n), rng.integers(0, M, size=n)
    who, contexts, tokens = [], [], []
    for position in range(longest):
        at = np.searchsorted(flat[position < at_least], context + rng.random(live.size), side="right")
        token = np.clip(at - context * V, 0, V - 1)
        who.append(live)
        contexts.append(context)
        tokens.append(token)
        go = token != 0
        live, context = live[go], follow[context[go], token[go]]
        if live.size == 0:
            break
    owner = np.concatenate(who)
    order = np.argsort(owner, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n))])
    return offsets, np.concatenate(contexts)[order], np.concatenate(tokens)[order]


# ------------------------------------------------------------------------------------------------------------- dumps


def dump(offsets, tokens, *, mask=None, numbers=None, labels=None):
    """A chunk from flat columns."""
    numbers, labels = numbers or {}, labels or {}
    rows = len(offsets) - 1
    columns = (*tokens, *([] if mask is None else ["mask"]), *numbers, *labels)
    flat = np.ones(int(offsets[-1]), dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
    return Chunk(
        first_row=0,
        rows=rows,
        offsets=np.asarray(offsets, dtype=np.int64),
        tokens={name: np.asarray(x, dtype=np.float64) for name, x in tokens.items()},
        mask=flat,
        numbers={name: np.asarray(x, dtype=np.float64) for name, x in numbers.items()},
        labels={name: [str(i) if i != "" else "" for i in x] for name, x in labels.items()},
        columns=columns,
    )


def changed(chunk, *, tokens=None, numbers=None, mask=None):
    """The same dump with some columns replaced."""
    new_tokens, new_numbers = {**chunk.tokens, **(tokens or {})}, {**chunk.numbers, **(numbers or {})}
    columns = tuple(dict.fromkeys((*chunk.columns, *(tokens or {}), *(numbers or {}))))
    columns += () if mask is None or "mask" in columns else ("mask",)
    return replace(
        chunk, tokens=new_tokens, numbers=new_numbers, mask=chunk.mask if mask is None else mask, columns=columns
    )


def joined(*chunks):
    """Dumps one after the other."""
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(c.offsets) for c in chunks]))])
    first = chunks[0]
    return replace(
        first,
        rows=sum(c.rows for c in chunks),
        offsets=offsets,
        tokens={name: np.concatenate([c.tokens[name] for c in chunks]) for name in first.tokens},
        mask=np.concatenate([c.mask for c in chunks]),
        numbers={name: np.concatenate([c.numbers[name] for c in chunks]) for name in first.numbers},
        labels={name: [label for c in chunks for label in c.labels[name]] for name in first.labels},
    )


def rows_of(chunk):
    """The dump as dictionaries, one per answer."""
    for i in range(chunk.rows):
        part = slice(int(chunk.offsets[i]), int(chunk.offsets[i + 1]))
        row: dict[str, Any] = {name: x[part].tolist() for name, x in chunk.tokens.items()}
        if "mask" in chunk.columns:
            row["mask"] = chunk.mask[part].astype(int).tolist()
        for name, x in chunk.numbers.items():
            row[name] = None if np.isnan(x[i]) else int(x[i]) if name == "step" else float(x[i])
        for name, x in chunk.labels.items():
            row[name] = x[i] or None
        yield row


def write_jsonl(chunk, path):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows_of(chunk)))


def write_parquet(chunk, path):
    import polars as pl

    pl.DataFrame(list(rows_of(chunk)), infer_schema_length=None).write_parquet(path)


def sums_only(chunk, *, length=False):
    """The same dump with sums in place of lists, with or without the number of tokens."""
    owner = np.repeat(np.arange(chunk.rows), np.diff(chunk.offsets))
    numbers = {
        f"seq_{name}": np.bincount(owner, weights=np.where(chunk.mask, chunk.tokens[name], 0.0), minlength=chunk.rows)
        for name in ("logp", "ref_logp")
    }
    if length:
        numbers["length"] = np.bincount(owner, weights=chunk.mask, minlength=chunk.rows)
    kept = {**chunk.numbers, **numbers}
    columns = (*kept, *chunk.labels)
    assert set(kept) <= set(NUMBER_COLUMNS)
    return replace(
        chunk, offsets=np.zeros(chunk.rows + 1, dtype=np.int64), tokens={}, mask=np.zeros(0, dtype=bool), numbers=kept,
        columns=columns,
    )  # fmt: skip


def scored(drawn, pair, *, policy=None, reference=None, **more):
    """Policy's and reference's log-probabilities of drawn tokens, as a dump."""
    offsets, context, token = drawn
    policy = pair.policy if policy is None else policy
    reference = pair.reference if reference is None else reference
    return dump(offsets, {"logp": policy[context, token], "ref_logp": reference[context, token]}, **more)


def honest(rng, *, answers=512, length=60.0, drift=0.3, tail="light"):
    """A pair of models, answers drawn from the policy, and their dump."""
    pair = models(rng, length=length, drift=drift, tail=tail)
    drawn = sample(rng, pair.policy, pair.follow, answers, longest=int(4 * length) + 1)
    return pair, drawn, scored(drawn, pair)


def healthy(rng):
    """A healthy dump of random kind: size, length, tail, drift, scoring noise, steps and optional columns vary.

    Gives the dump, its tail, and what its owner declares. One in ten is an exact tilt as sums, its beta declared.
    """
    if rng.random() < 0.1:
        beta, answers = float(rng.uniform(0.4, 3.0)), int(rng.integers(64, 4097))
        noise = float(rng.choice([0.0, 0.1, 0.5]))
        return _tilted(rng, beta=beta, answers=answers, noise=noise), "sums", Declared(beta=beta)
    answers = int(np.exp(rng.uniform(np.log(64), np.log(4096.99))))
    length = float(np.exp(rng.uniform(np.log(5), np.log(500))))
    tail = ("light", "heavy")[int(rng.integers(2))]
    noise = float(rng.choice([0.0, 0.01, 0.05]))
    pair = models(rng, length=length, drift=float(np.exp(rng.uniform(np.log(0.02), np.log(1.0)))), tail=tail)
    steps = [(None, 1.0), (0, 0.0), (10, 0.5), (20, 1.0)]
    steps = steps[:1] if rng.random() < 0.4 else steps[1:]
    sampler, entropic = rng.random() < 0.5, rng.random() < 0.5
    stale = sampler and rng.random() < 0.3  # the engine's weights are some updates old
    parts = []
    for step, share in steps:
        model = pair.at(share)
        n = max(21, answers // len(steps))
        law = log_softmax(model.policy + 0.1 * rng.normal(size=(M, V))) if stale and step != 0 else model.policy
        drawn = sample(rng, law, model.follow, n, longest=max(5, int(2 * length)))
        size = int(drawn[0][-1])
        place = 1e-6 * rng.random(size)  # no two places of a real text share all digits, as two contexts here would
        exact = {name: x - place for name, x in scored(drawn, model, policy=law).tokens.items()}
        tables = {"logp": model.policy, "ref_logp": model.reference}
        tokens = {name: rescored(rng, table, drawn, noise) - place for name, table in tables.items()}
        if sampler:
            tokens["behavior_logp"] = exact["logp"]
        if entropic:
            tokens["entropy"] = -(np.exp(model.policy) * model.policy).sum(axis=1)[drawn[1]]
        group = np.arange(n) // 8
        ability = rng.uniform(0.2, 0.8, size=group.max() + 1)
        drift = float((exact["logp"] - exact["ref_logp"]).sum()) / n
        gain = min(0.15, 0.25 * np.sqrt(2 * max(drift, 0.0)))  # half of what so much KL can buy, at most
        reward = (rng.random(n) < ability[group] + gain).astype(float)
        numbers = {"reward": reward, "gold": reward + rng.normal(size=n)}
        if step is not None:
            numbers["step"] = np.full(n, float(step))
        parts.append(dump(drawn[0], tokens, numbers=numbers, labels={"prompt_id": group}))
    whole = joined(*parts)
    if len(steps) > 1 and rng.random() < 0.5:
        whole = joined(whole_with_probe_column(whole), probes(rng, pair, noise=noise, like=whole))
    padded = rng.random() < 0.5
    if rng.random() < 0.2:
        whole = changed(whole, numbers={n: x for n, x in sums_only(whole).numbers.items() if n.startswith("seq_")})
    said = Declared(estimator="k1", placement="reward", reward_min=0, reward_max=1)
    return (padded_dump(whole) if padded and length <= 100 else whole), tail, said


def rescored(rng, table, drawn, noise, *, kernels=8):
    """Drawn tokens as another kernel scores them: noise on every logit of the vocabulary, then renormalised.

    At each position one of a few such kernels speaks. The noise of a normaliser is part of the noise, and makes
    ``E[exp(-noise)]`` under the exact law exp(noise^2) and not exp(noise^2 / 2).
    """
    if not noise:
        return table[drawn[1], drawn[2]]
    off = log_softmax(table + noise * rng.normal(size=(kernels, M, V)))
    return off[rng.integers(kernels, size=len(drawn[1])), drawn[1], drawn[2]]


def whole_with_probe_column(chunk):
    return replace(chunk, labels={**chunk.labels, "probe_id": [""] * chunk.rows}, columns=(*chunk.columns, "probe_id"))


def probes(rng, pair, *, noise=0.0, like=None, texts=16, steps=(0, 10, 20), references=None):
    """Fixed texts scored at several steps; ``references`` are the tables used at each (the frozen one by default)."""
    drawn = sample(rng, pair.reference, pair.follow, texts, longest=200)
    parts = []
    for i, step in enumerate(steps):
        share = i / max(1, len(steps) - 1)
        table = pair.reference if references is None else references[i]
        chunk = scored(drawn, pair.at(share), reference=table)
        tokens = {**chunk.tokens, "ref_logp": rescored(rng, table, drawn, noise)}
        numbers = {"step": np.full(texts, float(step))}
        labels = {"probe_id": [f"p{j}" for j in range(texts)]}
        for name in () if like is None else like.tokens:
            tokens.setdefault(name, tokens["logp"])
        for name in () if like is None else like.numbers:
            numbers.setdefault(name, np.full(texts, np.nan))
        for name in () if like is None else like.labels:
            labels.setdefault(name, [""] * texts)
        parts.append(dump(drawn[0], tokens, numbers=numbers, labels=labels))
    return joined(*parts)


def padded_dump(chunk, *, fill=0.0, masked=True):
    """Lists padded to one length with ``fill``, with the mask that a trainer would keep (or without one)."""
    lengths = np.diff(chunk.offsets)
    width = int(lengths.max())
    inside = (np.arange(width)[None, :] < lengths[:, None]).ravel()
    tokens = {}
    for name, x in chunk.tokens.items():
        wide = np.full(inside.size, fill)
        wide[inside] = x
        tokens[name] = wide
    columns = (*chunk.columns, "mask") if masked and "mask" not in chunk.columns else chunk.columns
    return replace(
        chunk, offsets=np.arange(chunk.rows + 1, dtype=np.int64) * width, tokens=tokens,
        mask=inside if masked else np.ones(inside.size, dtype=bool), columns=columns,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ faults

SAID = Declared()


@dataclass(frozen=True)
class Fault:
    """A planted fault: its expected code, a public report of it, and what the user declares about the run."""

    code: str
    report: str
    make: Callable[..., tuple[Chunk, Chunk]]
    declared: Declared = SAID


def end_suppressed(rng, answers):
    """min_new_tokens: the end token is forbidden for 40 tokens, after training that taught the policy to be brief."""
    pair, _, _ = honest(rng, answers=answers, length=60, drift=0.2)
    policy = pair.policy.copy()
    policy[:, 0] += 2.0
    pair = replace(pair, policy=log_softmax(policy))
    bad = sample(rng, pair.policy, pair.follow, answers, longest=240, at_least=40)
    good = sample(rng, pair.policy, pair.follow, answers, longest=240)
    return scored(bad, pair), scored(good, pair)


def other_weights(rng, answers):
    """The generation engine still has the weights from before the last updates (or a quantised copy)."""
    pair, _, twin = honest(rng, answers=answers, drift=0.4)
    old = pair.at(0.3).policy
    return scored(sample(rng, old, pair.follow, answers, longest=241), pair), twin


def hot_sampling(rng, answers):
    """Sampled at temperature 1.3, scored at 1."""
    pair, _, twin = honest(rng, answers=answers, drift=0.4)
    return scored(sample(rng, tempered(pair.policy, 1.3), pair.follow, answers, longest=241), pair), twin


def sharp_sampling(rng, answers):
    """Sampled at temperature 0.8 and scored at 1; only the policy's entropies can show it."""
    pair, drawn, twin = honest(rng, answers=answers)
    entropy = -(np.exp(pair.policy) * pair.policy).sum(axis=1)
    bad = sample(rng, tempered(pair.policy, 0.8), pair.follow, answers, longest=241)
    return (
        changed(scored(bad, pair), tokens={"entropy": entropy[bad[1]]}),
        changed(twin, tokens={"entropy": entropy[drawn[1]]}),
    )


def _step0(rng, answers):
    pair = models(rng).at(0.0)
    drawn = sample(rng, pair.policy, pair.follow, answers, longest=241)
    twin = scored(drawn, pair, numbers={"step": np.zeros(answers)})
    noise = {name: np.minimum(x + 0.02 * rng.normal(size=x.size), 0.0) for name, x in twin.tokens.items()}
    return pair, drawn, changed(twin, tokens=noise)


def dropout(rng, answers):
    """Step 0 with dropout left on when the policy is scored: every token's log-probability jitters."""
    _, _, twin = _step0(rng, answers)
    logp = twin.tokens["logp"]
    return changed(twin, tokens={"logp": np.minimum(logp + 0.3 * rng.normal(size=logp.size), 0.0)}), twin


def base_as_reference(rng, answers):
    """Step 0 of a fine-tuned start whose reference is the base model: the adapter was switched off with it."""
    pair, drawn, twin = _step0(rng, answers)
    base = log_softmax(pair.reference + 0.5 * rng.normal(size=(M, V)))
    return changed(twin, tokens={"ref_logp": base[drawn[1], drawn[2]]}), twin


def temperature_on_one_model(rng, answers):
    """Step 0: the policy's logits are divided by the temperature of 0.7, the reference's are not."""
    pair, _, _ = _step0(rng, answers)
    warm = tempered(pair.policy, 0.7)
    drawn = sample(rng, warm, pair.follow, answers, longest=241)
    step = {"step": np.zeros(answers)}
    return (
        scored(drawn, pair, policy=warm, numbers=step),
        scored(drawn, pair, policy=warm, reference=warm, numbers=step),
    )


def temperature_not_scored(rng, answers):
    """The engine samples and reports at temperature 0.6, the trainer scores at 1."""
    pair, _, _ = honest(rng, answers=answers)
    cool = tempered(pair.policy, 0.6)
    drawn = sample(rng, cool, pair.follow, answers, longest=241)
    reported = {"behavior_logp": cool[drawn[1], drawn[2]]}
    return changed(scored(drawn, pair), tokens=reported), changed(scored(drawn, pair, policy=cool), tokens=reported)


def nucleus(rng, answers):
    """top_p 0.9 with log-probabilities renormalised over the kept tokens."""
    pair, _, twin = honest(rng, answers=answers)
    kept = top_p(pair.policy, 0.9)
    bad = sample(rng, kept, pair.follow, answers, longest=241)
    return (
        changed(scored(bad, pair), tokens={"behavior_logp": kept[bad[1], bad[2]]}),
        changed(twin, tokens={"behavior_logp": twin.tokens["logp"]}),
    )


def engine_mismatch(rng, answers):
    """Routing and kernels give the same token another probability in the engine: jitter of 0.4 nats per token."""
    _, _, twin = honest(rng, answers=answers)
    exact = twin.tokens["logp"]
    twin = changed(twin, tokens={"behavior_logp": exact})
    reported = np.minimum(exact + 0.4 * rng.normal(size=exact.size), 0.0)
    return changed(twin, tokens={"behavior_logp": reported}), twin


def off_by_one(rng, answers):
    """The reference's log-probabilities are cut one position too far left."""
    _, _, twin = honest(rng, answers=answers)
    ref = twin.tokens["ref_logp"].copy()
    for a, b in zip(twin.offsets[:-1], twin.offsets[1:], strict=True):
        ref[a:b] = np.roll(ref[a:b], -1)
    return changed(twin, tokens={"ref_logp": ref}), twin


def padding_filled_with_ones(rng, answers):
    """Log-probabilities filled with 1.0 on padding, and no mask in the mean."""
    _, _, chunk = honest(rng, answers=answers)
    return padded_dump(chunk, fill=1.0, masked=False), padded_dump(chunk, fill=1.0)


def padding_of_zeros(rng, answers):
    """Padding of zeros counted in an unmasked mean: KL per token is diluted. ``length`` tells zeros from certainty."""
    _, _, chunk = honest(rng, answers=answers)
    chunk = changed(chunk, numbers={"length": np.diff(chunk.offsets)})
    return padded_dump(chunk, masked=False), padded_dump(chunk)


def mask_off_by_one(rng, answers):
    """The mask takes in the first padding token, whose fill is -100."""
    _, _, chunk = honest(rng, answers=answers)
    twin = padded_dump(chunk, fill=-100.0)
    wide = twin.mask.reshape(twin.rows, -1)
    late = wide.copy()
    late[:, 1:] |= wide[:, :-1]
    late[:, 2:] |= wide[:, :-2]
    return changed(twin, mask=late.ravel()), twin


def filtered_to_minus_infinity(rng, answers):
    """Scored with the top-k filter on: a token outside the filter gets -inf."""
    _, _, twin = honest(rng, answers=answers)
    logp = twin.tokens["logp"].copy()
    logp[rng.choice(logp.size, size=max(1, logp.size // 2000), replace=False)] = -np.inf
    return changed(twin, tokens={"logp": logp}), twin


def overflowing(rng, answers):
    """A few tokens to which the policy gives a chance of e^-95: k3 overflows float32."""
    _, _, twin = honest(rng, answers=answers)
    logp = twin.tokens["logp"].copy()
    logp[rng.choice(logp.size, size=3, replace=False)] -= 95.0
    return changed(twin, tokens={"logp": logp}), twin


def stale_outliers(rng, answers):
    """One token in 2,000 was drawn by weights of another age: log ratios near -14, and nearly all of k3."""
    _, _, twin = honest(rng, answers=answers)
    logp = twin.tokens["logp"].copy()
    logp[rng.choice(logp.size, size=max(3, logp.size // 2000), replace=False)] -= 14.0
    return changed(twin, tokens={"logp": logp}), twin


def masked_out(rng, answers):
    """Answers cut at the length limit are masked out whole, and averaged all the same."""
    _, _, chunk = honest(rng, answers=answers)
    twin = padded_dump(chunk)
    wide = twin.mask.reshape(twin.rows, -1).copy()
    wide[rng.choice(twin.rows, size=max(1, twin.rows // 50), replace=False)] = False
    return changed(twin, mask=wide.ravel()), twin


def frozen_policy(rng, answers):
    """Twenty updates without a gradient: rewards vary, KL is 0 in every digit."""
    pair = models(rng)
    numbers = {"step": np.full(answers, 20.0), "reward": rng.normal(size=answers)}
    still = pair.at(0.0)
    still = replace(still, policy=still.reference)
    bad = scored(sample(rng, still.policy, pair.follow, answers, longest=241), still, numbers=numbers)
    good = scored(sample(rng, pair.policy, pair.follow, answers, longest=241), pair, numbers=numbers)
    return bad, good


def exchanged(rng, answers):
    """The two columns are exchanged: ref minus policy is taken for the log ratio."""
    _, _, twin = honest(rng, answers=answers, drift=0.3)
    return changed(twin, tokens={"logp": twin.tokens["ref_logp"], "ref_logp": twin.tokens["logp"]}), twin


def means_for_sums(rng, answers):
    """The sequence log-probabilities beside the lists are means over tokens."""
    _, _, chunk = honest(rng, answers=answers)
    sums = sums_only(chunk).numbers
    means = {name: x / np.diff(chunk.offsets) for name, x in sums.items()}
    return changed(chunk, numbers=means), changed(chunk, numbers=sums)


def _tilted(rng, *, beta, answers, options=40, noise=0.0):
    """Answers of the exact tilt at ``beta`` over ``options`` answers per prompt, eight each, as sums."""
    prompts = max(8, answers // 8)
    log_ref = log_softmax(rng.normal(size=(prompts, options)))
    reward = rng.normal(size=(prompts, options))
    tilt = log_softmax(log_ref + reward / beta)
    pick = np.array([rng.choice(options, size=8, p=np.exp(row)) for row in tilt])
    rows = np.arange(prompts)[:, None]
    numbers = {
        "seq_logp": tilt[rows, pick].ravel() - 50.0,  # fifty nats of text that both models agree on
        "seq_ref_logp": log_ref[rows, pick].ravel() - 50.0,
        "reward": reward[rows, pick].ravel() + noise * rng.normal(size=prompts * 8),
    }
    labels = {"prompt_id": np.repeat(np.arange(prompts), 8)}
    return dump(np.zeros(prompts * 8 + 1), {}, numbers=numbers, labels=labels)


def coefficient_lost(rng, answers):
    """beta 0.8 in the configuration, 0.4 in the loss; the twin is trained with what it says."""
    return _tilted(rng, beta=0.4, answers=answers), _tilted(rng, beta=0.8, answers=answers)


def only_kl(rng, answers):
    """Most groups are all right or all wrong: the KL is their only gradient."""
    _, _, chunk = honest(rng, answers=answers)
    group = np.arange(chunk.rows) // 8
    groups = int(group.max()) + 1
    flat = rng.permutation(groups) < 0.8 * groups
    mixed = rng.random(chunk.rows)
    same = rng.integers(0, 2, size=groups)[group].astype(float)
    labels = {"prompt_id": [str(g) for g in group]}
    twin = replace(
        changed(chunk, numbers={"reward": mixed}), labels=labels, columns=(*chunk.columns, "reward", "prompt_id")
    )
    return changed(twin, numbers={"reward": np.where(flat[group], same, mixed)}), twin


def reference_follows(rng, answers):
    """The reference is a moving average of the policy: the same text scores differently at each checkpoint."""
    pair = models(rng, drift=0.5)
    steps = tuple(range(0, 50, 10))
    moving = [pair.at(0.6 * i / 4).policy for i in range(5)]
    seed = int(rng.integers(2**32))
    texts = max(8, answers // 16)
    bad = probes(np.random.default_rng(seed), pair, noise=0.02, steps=steps, references=moving, texts=texts)
    good = probes(np.random.default_rng(seed), pair, noise=0.02, steps=steps, texts=texts)
    return bad, good


def resumed(rng, answers):
    """Resumed at step 200: the reference was loaded from the checkpoint, and the KL is back at nothing."""
    pair = models(rng, drift=0.5)
    parts, bad = [], []
    for step, share in ((100, 0.6), (150, 0.8), (200, 1.0), (250, 1.05)):
        model = pair.at(share)
        drawn = sample(rng, model.policy, model.follow, max(8, answers // 4), longest=241)
        more = {
            "numbers": {"step": np.full(max(8, answers // 4), float(step))},
            "labels": {"prompt_id": np.arange(max(8, answers // 4)) // 8},
        }
        parts.append(scored(drawn, model, **more))
        wrong = pair.policy if step >= 200 else pair.reference
        bad.append(scored(drawn, model, reference=wrong, **more))
    return joined(*bad), joined(*parts)


def paid_without_drift(rng, answers):
    """The reward rose by half its range, and the KL is that to a reference loaded from the trained policy."""
    pair = models(rng, drift=0.6)
    half = max(40, answers // 2)
    start, end = pair.at(0.0), pair
    first = scored(sample(rng, start.policy, pair.follow, half, longest=241), start, numbers={
        "step": np.zeros(half), "reward": (rng.random(half) < 0.3).astype(float)})  # fmt: skip
    drawn = sample(rng, end.policy, pair.follow, half, longest=241)
    numbers = {"step": np.full(half, 100.0), "reward": (rng.random(half) < 0.8).astype(float)}
    near = log_softmax(end.policy + 0.02 * rng.normal(size=(M, V)))
    return joined(first, scored(drawn, end, reference=near, numbers=numbers)), joined(
        first, scored(drawn, end, numbers=numbers)
    )


def gamed(rng, answers):
    """The judge's score rises at every step while gold peaks at step 20 and falls."""
    pair = models(rng, drift=0.5)
    parts, twin = [], []
    n = max(40, answers // 4)
    for step, share, reward, gold, better in (
        (0, 0, 0, 0, 0),
        (20, 0.4, 1, 0.6, 0.6),
        (40, 0.7, 1.6, 0.3, 0.8),
        (60, 1, 2, -0.4, 0.9),
    ):
        model = pair.at(share)
        chunk = scored(sample(rng, model.policy, pair.follow, n, longest=241), model)
        noise = rng.normal(size=n)
        numbers = {"step": np.full(n, float(step)), "reward": reward + rng.normal(size=n)}
        parts.append(changed(chunk, numbers={**numbers, "gold": gold + noise}))
        twin.append(changed(chunk, numbers={**numbers, "gold": better + noise}))
    return joined(*parts), joined(*twin)


GITHUB = "https://github.com/"
TRL = GITHUB + "huggingface/trl/"
RANGE = Declared(reward_min=0, reward_max=1)
FAULTS: dict[str, Fault] = {
    "end token suppressed": Fault("KL_NEGATIVE", TRL + "issues/736", end_suppressed),
    "sampler has other weights": Fault("IDENTITY", TRL + "issues/1005", other_weights),
    "sampled hotter than scored": Fault("IDENTITY", TRL + "issues/351", hot_sampling),
    "sampled sharper than scored": Fault("SURPRISAL", GITHUB + "natolambert/rlhf-book/issues/489", sharp_sampling),
    "dropout while scoring": Fault("STEP0_KL", TRL + "issues/3500", dropout),
    "base model as reference": Fault("STEP0_KL", TRL + "issues/495", base_as_reference),
    "temperature on one model": Fault("TEMPERATURE", TRL + "pull/3029", temperature_on_one_model),
    "temperature not scored": Fault("TEMPERATURE", TRL + "issues/4159", temperature_not_scored),
    "top-p renormalised": Fault("TRUNCATION", TRL + "issues/6789", nucleus),
    "engine and trainer differ": Fault("SAMPLER", GITHUB + "NVIDIA-NeMo/RL/issues/1330", engine_mismatch),
    "logits off by one": Fault("SHIFT", GITHUB + "unslothai/unsloth/pull/2736", off_by_one),
    "padding filled with 1.0": Fault("PADDING", TRL + "issues/6803", padding_filled_with_ones),
    "padding of zeros counted": Fault("PADDING", TRL + "pull/6654", padding_of_zeros),
    "mask off by one": Fault("PADDING", GITHUB + "CarperAI/trlx/pull/433", mask_off_by_one),
    "filtered tokens at -inf": Fault("NON_FINITE", GITHUB + "NVIDIA-NeMo/RL/pull/4154", filtered_to_minus_infinity),
    "k3 overflows": Fault("OVERFLOW", TRL + "issues/3015", overflowing),
    "outlier tokens carry the KL": Fault(
        "CONCENTRATION", GITHUB + "meta-pytorch/torchforge/issues/664", stale_outliers
    ),
    "answers masked out whole": Fault("MASK", GITHUB + "modelscope/ms-swift/issues/4465", masked_out),
    "policy never moves": Fault("KL_ZERO", TRL + "issues/6700", frozen_policy),
    "columns exchanged": Fault("SIGN", GITHUB + "lucidrains/PaLM-rlhf-pytorch/issues/43", exchanged),
    "means taken for sums": Fault("SUMS", TRL + "issues/2562", means_for_sums),
    "beta not passed on": Fault(
        "COEFFICIENT", GITHUB + "greyhaven-ai/autocontext/pull/1076", coefficient_lost, Declared(beta=0.8)
    ),
    "groups without spread": Fault("ZERO_VARIANCE", TRL + "pull/5640", only_kl),
    "reference follows the policy": Fault("REFERENCE_DRIFT", TRL + "issues/3194", reference_follows),
    "resume reloads the reference": Fault("RESUME", GITHUB + "NVIDIA-NeMo/RL/issues/2955", resumed),
    "reward without drift": Fault("GAIN_BOUND", TRL + "pull/3196", paid_without_drift, RANGE),
    "judge is gamed": Fault("HACKING", GITHUB + "rllm-org/rllm/issues/143", gamed),
}
