"""What the answers mean: honest limits, effective beta against the truth, evidence in numbers, one level for all."""

import math
from dataclasses import replace

import numpy as np
import pytest
from simulated_dumps import (
    FAULTS,
    _tilted,
    changed,
    check_rollouts,
    dump,
    healthy,
    honest,
    joined,
    log_softmax,
    models,
    probes,
    sample,
    scored,
    sums_only,
    tempered,
)

from kleash._files import dump_json
from kleash.audit import CHECKS, Declared
from kleash.audit.chance import FAMILY_LEVEL
from kleash.audit.dumps.rewards import effective_beta
from kleash.audit.dumps.statistics import tally
from kleash.errors import ConfigError, OptionError


def finding(chunk, code, **declared):
    return next(f for f in check_rollouts([chunk], declared=Declared(**declared)) if f.code == code)


def test_few_healthy_inputs_have_any_problem():
    """20 healthy dumps of every kind, family level at most 1 %: two or more with a problem have a chance of 1.7 %."""
    wrong = 0
    for seed in range(20):
        chunk, _, declared = healthy(np.random.default_rng((7, seed)))
        wrong += any(f.status == "problem" for f in check_rollouts([chunk], declared=declared))
    assert wrong <= 1


def test_every_check_answers_once_and_says_why_it_did_not_run():
    _, _, chunk = honest(np.random.default_rng(0), answers=64)
    findings = check_rollouts([chunk])
    assert [f.code for f in findings] == [check.code for check in CHECKS]
    for f in findings:
        assert f.message
        assert (f.status == "not-run") == f.message.startswith("needs ")
    level = next(f for f in findings if f.code == "IDENTITY").evidence["level"]
    ran = sum(check.chance and f.status != "not-run" for check, f in zip(CHECKS, findings, strict=True))
    assert level == pytest.approx(FAMILY_LEVEL / ran)


def test_a_heavy_tail_is_cannot_tell_and_not_ok():
    """The policy has un-learned tokens: the mean of exp(-delta) of a sample is below 1, honestly."""
    _, _, chunk = honest(np.random.default_rng(1), answers=2000, drift=1.0, tail="heavy")
    answer = finding(chunk, "IDENTITY")
    assert answer.status == "cannot-tell"
    assert answer.evidence["ess_answers"] < 50
    assert answer.evidence["mean_per_token"] < 1


def test_a_mean_below_1_is_no_proof_and_not_ok():
    """Sharpened sampling of a policy that has drifted looks like honest un-learning: cannot-tell, and what would."""
    pair, _, _ = honest(np.random.default_rng(1), answers=8, drift=0.3)
    drawn = sample(np.random.default_rng(1), tempered(pair.policy, 0.7), pair.follow, 2000, longest=241)
    answer = finding(scored(drawn, pair), "IDENTITY")
    assert answer.status == "cannot-tell"
    assert answer.message.endswith("below 1")
    assert "behavior_logp" in answer.fix


def test_one_log_probability_above_0_is_padding():
    _, _, chunk = honest(np.random.default_rng(1), answers=64)
    values = chunk.tokens["ref_logp"].copy()
    values[11] = 0.7
    assert finding(changed(chunk, tokens={"ref_logp": values}), "PADDING").status == "problem"
    values[11] = -1e9
    assert finding(changed(chunk, tokens={"ref_logp": values}), "PADDING").status == "problem"
    values[11] = 0.1  # rounding of large bfloat16 logits
    assert finding(changed(chunk, tokens={"ref_logp": values}), "PADDING").status == "ok"


def test_the_last_token_is_told_apart():
    """An end token that the policy prefers by 1 nat: the mean log ratio of last tokens is near 1, and no problem."""
    rng = np.random.default_rng(0)
    pair = models(rng, drift=0.0)
    eager = pair.reference.copy()
    eager[:, 0] += 1.0
    pair = replace(pair, policy=log_softmax(eager))
    chunk = scored(sample(rng, pair.policy, pair.follow, 500, longest=2000), pair)
    evidence = finding(chunk, "PADDING").evidence
    last = (chunk.tokens["logp"] - chunk.tokens["ref_logp"])[chunk.offsets[1:] - 1]
    assert evidence["kl_last_token"] == pytest.approx(last.mean(), rel=1e-12)
    assert evidence["kl_last_token"] > 0.9 > 10 * evidence["kl_per_token"]


def test_identity_evidence_is_what_it_says():
    _, _, chunk = honest(np.random.default_rng(2), answers=500, length=10, drift=0.2)
    evidence = finding(chunk, "IDENTITY").evidence
    delta = chunk.tokens["logp"] - chunk.tokens["ref_logp"]
    weight = np.exp(-delta)
    whole = np.exp(-np.add.reduceat(delta, chunk.offsets[:-1]))
    assert evidence["mean_per_token"] == pytest.approx(weight.mean(), rel=1e-12)
    assert evidence["ess_tokens"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum(), rel=1e-12)
    assert evidence["mean_per_answer"] == pytest.approx(whole.mean(), rel=1e-12)
    assert evidence["ess_answers"] == pytest.approx(whole.sum() ** 2 / (whole**2).sum(), rel=1e-12)
    assert evidence["mean_per_token"] == pytest.approx(1, abs=4 * evidence["se_per_token"])


def test_share_of_the_top_tokens_is_exact_to_a_bin():
    _, _, chunk = honest(np.random.default_rng(3), answers=300, drift=0.8)
    evidence = finding(chunk, "CONCENTRATION").evidence
    delta = chunk.tokens["logp"] - chunk.tokens["ref_logp"]
    k3 = np.sort(np.expm1(-delta) + delta)[::-1]
    exact = k3[: math.ceil(k3.size / 1000)].sum() / k3.sum()
    assert evidence["top_share_k3"] == pytest.approx(exact, rel=0.02)


def test_samples_of_the_reference_are_told_from_samples_of_the_policy():
    pair, _, _ = honest(np.random.default_rng(4), answers=8)
    drawn = sample(np.random.default_rng(4), pair.reference, pair.follow, 512, longest=241)
    assert finding(scored(drawn, pair), "SIGN").status == "problem"


# ------------------------------------------------------------------------------------------------- rewards and leash


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_effective_beta_of_a_tilt_is_its_beta(beta):
    chunk = _tilted(np.random.default_rng(0), beta=beta, answers=800)
    found = effective_beta(tally([chunk]))
    assert (found.slope, found.reverse) == (pytest.approx(beta, rel=1e-9), pytest.approx(beta, rel=1e-9))
    assert found.r2 == pytest.approx(1)
    moved = changed(chunk, numbers={"reward": 3 * chunk.numbers["reward"] + 7})
    assert effective_beta(tally([moved])).slope == pytest.approx(3 * beta, rel=1e-9)


def test_effective_beta_lies_between_its_slopes_when_rewards_are_noisy():
    """95 % limits over 80 tilts with noisy rewards: beta inside in at least 90 %."""
    inside = 0
    for seed in range(80):
        found = effective_beta(tally([_tilted(np.random.default_rng(seed), beta=1.0, answers=400, noise=0.5)]))
        inside += found.lo <= 1.0 <= found.hi
    assert inside >= 72


@pytest.mark.parametrize(
    ("declared", "noise", "status"),
    [(0.5, 0.0, "ok"), (1.0, 0.0, "problem"), (0.25, 0.0, "cannot-tell"), (0.5, 3.0, "cannot-tell")],
)
def test_coefficient(declared, noise, status):
    """Looser than declared is a fault; tighter may be a run that has not converged; R squared below .5 is no answer."""
    chunk = _tilted(np.random.default_rng(1), beta=0.5, answers=800, noise=noise)
    answer = finding(chunk, "COEFFICIENT", beta=declared)
    assert answer.status == status
    if status != "ok":
        assert answer.fix


def test_gain_bound_at_its_edge():
    """Two answers of score 0 and 1: an honest policy comes near the bound and is not accused."""
    rng, n = np.random.default_rng(2), 4000
    p, q = 0.6, 0.4
    right = np.concatenate([rng.random(n) < q, rng.random(n) < p])
    policy = np.concatenate([np.full(n, q), np.full(n, p)])
    numbers = {
        "seq_logp": np.log(np.where(right, policy, 1 - policy)),
        "seq_ref_logp": np.log(np.where(right, q, 1 - q)),
        "reward": right.astype(float),
        "step": np.repeat([0.0, 50.0], n),
    }
    chunk = dump(np.zeros(2 * n + 1), {}, numbers=numbers)
    answer = finding(chunk, "GAIN_BOUND", reward_min=0, reward_max=1)
    assert answer.status == "ok"
    assert answer.evidence["gain"] / answer.evidence["bound"] > 0.85
    half = finding(chunk, "GAIN_BOUND", reward_min=0, reward_max=0.5)
    assert half.status == "problem"


def test_declared_settings_are_checked():
    with pytest.raises(OptionError, match=r"beta: expected a .*number at least 0"):
        Declared(beta=-1)
    with pytest.raises(ConfigError, match="reward_min below reward_max"):
        Declared(reward_min=1, reward_max=0)
    with pytest.raises(OptionError, match="did you mean 'k3'"):
        Declared(estimator="k33")


# ------------------------------------------------------------------------------------------------ steps and references


def test_scoring_noise_at_step_0_is_ok_and_beyond_it_is_not():
    """Noise as large as is granted (0.05 in each pass) raises alarm in at most 1 of 25; 1.3 times as much in all."""
    alarms = {0.07: 0, 0.092: 0}
    for noise in alarms:
        for seed in range(25):
            rng = np.random.default_rng(seed)
            pair = models(rng).at(0.0)
            drawn = sample(rng, pair.policy, pair.follow, 256, longest=241)
            chunk = scored(drawn, pair, numbers={"step": np.zeros(256)})
            ref = chunk.tokens["ref_logp"] + noise * rng.normal(size=drawn[1].size)
            alarms[noise] += finding(changed(chunk, tokens={"ref_logp": ref}), "STEP0_KL").status == "problem"
    assert alarms[0.07] <= 1
    assert alarms[0.092] == 25


def test_causes_at_step_0_follow_the_evidence():
    for name, word in (("dropout while scoring", "dropout"), ("base model as reference", "another model")):
        bad, _ = FAULTS[name].make(np.random.default_rng(6), 512)
        assert word in finding(bad, "STEP0_KL").causes[0]


def test_one_token_of_the_sampler_is_the_samplers():
    numbers = {"reward": np.zeros(1)}
    own = dump(np.array([0, 1]), {"logp": np.array([-1.0]), "ref_logp": np.array([-1.0])}, numbers=numbers)
    both = dump(np.array([0, 1]), {**own.tokens, "behavior_logp": np.array([-1.0])}, numbers=numbers)
    assert [tally([chunk]).has_sampler for chunk in (own, both)] == [False, True]


def test_no_step_is_no_verdict():
    frozen, _ = FAULTS["policy never moves"].make(np.random.default_rng(0), 64)
    early = changed(frozen, numbers={"step": np.full(frozen.rows, 2.0)})
    assert finding(early, "KL_ZERO").status == "cannot-tell"
    assert "the last step is 2" in finding(early, "KL_ZERO").message


def test_probes_are_not_samples():
    """A text of nobody's making must not enter the sampling checks, and its reference score must not move."""
    rng = np.random.default_rng(0)
    pair = models(rng, drift=1.0)
    fixed = probes(rng, pair, texts=40)
    findings = check_rollouts([fixed])
    by_code = {f.code: f.status for f in findings}
    assert by_code["REFERENCE_DRIFT"] == "ok"
    assert by_code["IDENTITY"] == by_code["KL_NEGATIVE"] == by_code["SHIFT"] == "not-run"
    few = check_rollouts([probes(rng, pair, texts=3)])
    assert {f.code: f.status for f in few}["REFERENCE_DRIFT"] == "cannot-tell"


def test_a_kl_that_falls_slowly_is_no_resume():
    rng = np.random.default_rng(1)
    pair, parts = models(rng, drift=0.5), []
    for step, share in ((100, 1.0), (101, 0.7), (102, 0.45), (103, 0.3)):
        model = pair.at(share)
        drawn = sample(rng, model.policy, model.follow, 200, longest=241)
        parts.append(scored(drawn, model, numbers={"step": np.full(200, float(step))}))
    assert finding(joined(*parts), "RESUME").status == "ok"


def test_a_reference_replaced_by_a_near_copy_is_a_resume():
    rng = np.random.default_rng(1)
    pair, parts = models(rng, drift=0.5), []
    for step, share in ((100, 1.0), (101, 0.1)):
        model = pair.at(share)
        drawn = sample(rng, model.policy, model.follow, 200, longest=241)
        groups = {"prompt_id": np.arange(200) // 8}
        parts.append(scored(drawn, model, numbers={"step": np.full(200, float(step))}, labels=groups))
    whole = joined(*parts)
    bare = replace(whole, labels={}, columns=tuple(c for c in whole.columns if c != "prompt_id"))
    assert finding(bare, "RESUME").status == "cannot-tell"
    assert "prompt_id" in finding(bare, "RESUME").fix
    answer = finding(whole, "RESUME")
    assert answer.status == "problem"
    assert answer.evidence["largest_fall"] == pytest.approx(100, rel=0.3)


def test_a_shift_is_found_under_a_heavy_tail():
    """A few log ratios of 30 nats must not speak for their answers: with squared distances (the mutant) they do."""
    rng = np.random.default_rng(4)
    _, _, chunk = honest(rng, answers=512)
    ref = chunk.tokens["ref_logp"].copy()
    ref[rng.random(ref.size) < 0.05] -= 30.0
    assert finding(changed(chunk, tokens={"ref_logp": ref}), "SHIFT").status == "ok"
    for a, b in zip(chunk.offsets[:-1], chunk.offsets[1:], strict=True):
        ref[a:b] = np.roll(ref[a:b], -1)
        ref[b - 1] = -25.0
    assert finding(changed(chunk, tokens={"ref_logp": ref}), "SHIFT").status == "problem"


def test_temperature_is_estimated():
    bad, _ = FAULTS["temperature not scored"].make(np.random.default_rng(3), 512)
    answer = finding(bad, "TEMPERATURE")
    assert answer.evidence["behavior_logp"]["lo"] > 1.03
    assert 1 / answer.evidence["behavior_logp"]["slope"] == pytest.approx(0.6, abs=0.1)


def test_small_dumps_do_not_pass_as_ok():
    """Only what is seen in a single token may be ok: numbers, masks, and that the two columns differ."""
    one = dump([0, 2], {"logp": [-1.0, -0.5], "ref_logp": [-1.1, -0.5]})
    _, _, four = honest(np.random.default_rng(5), answers=4, length=5, drift=0.5)
    for chunk in (one, four):
        said = {f.code for f in check_rollouts([chunk]) if f.status == "ok"}
        assert said == {"NON_FINITE", "MASK", "KL_ZERO"}


def test_answers_to_one_prompt_are_not_independent():
    """Two steps of 40 new prompts each, no drift, no gain: GAIN_BOUND accuses at most 1 of 100.

    With answers as units (the mutant) it would accuse about twelve: eight answers share a prompt's difficulty.
    """
    accused = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        ability = np.repeat(rng.integers(0, 2, size=80), 8)
        numbers = {
            "seq_logp": np.full(640, -20.0),
            "seq_ref_logp": np.full(640, -20.0),
            "reward": (rng.random(640) < ability).astype(float),
            "step": np.repeat([0.0, 9.0], 320),
        }
        labels = {"prompt_id": np.repeat(np.arange(80), 8)}
        chunk = dump(np.zeros(641), {}, numbers=numbers, labels=labels)
        accused += finding(chunk, "GAIN_BOUND", reward_min=0, reward_max=1).status == "problem"
    assert accused <= 1


def test_rows_are_numbered_as_in_the_file():
    rng = np.random.default_rng(8)
    pair = models(rng)
    _, _, chunk = honest(rng, answers=20)
    broken = chunk.tokens["logp"].copy()
    broken[chunk.offsets[6]] = np.nan
    chunk = changed(chunk, tokens={"logp": broken}, numbers={"step": np.full(20, 5.0)})
    chunk = replace(chunk, labels={"probe_id": [""] * 20}, columns=(*chunk.columns, "probe_id"))
    fixed = probes(rng, pair, texts=3, steps=(0, 5))
    assert "first: row 13)" in finding(joined(fixed, chunk), "NON_FINITE").message


@pytest.mark.parametrize("far", [300.0, 800.0, 5000.0])
def test_ratios_past_every_float_are_answered_in_finite_json(far):
    """Evidence that overflows is null, never NaN or infinity, and no warning escapes."""
    _, _, chunk = honest(np.random.default_rng(9), answers=64)
    for name in ("logp", "ref_logp"):
        values = chunk.tokens[name].copy()
        values[7] -= far
        broken = changed(chunk, tokens={name: values})
        sampled = changed(broken, tokens={"behavior_logp": chunk.tokens["logp"]})
        dump_json([f.to_dict() for f in check_rollouts([sampled])])
        if name == "logp":  # honest for the sampler's law, and past float32 for the trainer all the same
            assert finding(sampled, "IDENTITY").status != "problem"
            assert finding(sampled, "OVERFLOW").status == "problem"
        for item in (broken, sums_only(broken)):
            findings = check_rollouts([item])
            dump_json([f.to_dict() for f in findings])
            if name == "logp":
                assert next(f for f in findings if f.code == "IDENTITY").status == "problem"
