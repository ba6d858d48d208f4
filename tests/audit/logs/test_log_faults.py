"""Every fault of a log is found, and its twin, which differs in nothing else, has no problem at all."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simulated_logs import (
    LOG_FAULTS,
    WRITERS,
    f32,
    healthy,
    healthy_run,
    make,
    open_instruct,
    take,
    trl_grpo,
    trl_rloo,
    verl,
)

from kleash._files import dump_json
from kleash.audit import CheckReport, check
from kleash.audit.logs import check_logs
from kleash.audit.logs.facts import facts_of
from kleash.audit.logs.view import view
from kleash.errors import MissingColumnError

LEETCODE = Path(__file__).parents[2] / "data" / "leetcode_rl_hacking" / "curves.csv"


def problems(*logs, **more):
    return [f.code for f in check_logs(logs, **more)[1] if f.status == "problem"]


def the(code, *logs, **more):
    return [f for f in check_logs(logs, **more)[1] if f.code == code]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", LOG_FAULTS)
def test_found_on_the_fault_and_nothing_on_the_twin(name, seed):
    fault = LOG_FAULTS[name]
    bad, good = fault.make(np.random.default_rng((3, seed)))
    assert fault.code in problems(bad, declared=fault.declared)
    assert problems(good, declared=fault.declared) == []


def test_there_are_at_least_sixteen_mechanisms_with_sources():
    assert len(LOG_FAULTS) >= 16
    assert all(fault.source for fault in LOG_FAULTS.values())


@pytest.mark.parametrize("writer", WRITERS)
def test_healthy_logs_of_every_trainer(writer):
    for seed in range(4):
        log, _ = healthy(np.random.default_rng((4, seed)), writer)
        assert problems(log) == []


def test_every_finding_has_evidence_and_every_problem_a_fix():
    for fault in LOG_FAULTS.values():
        for f in check_logs([fault.make(np.random.default_rng(0))[0]])[1]:
            assert f.message
            assert f.status != "problem" or (f.causes and f.fix)
            f.to_dict()


def test_facts_name_place_unit_and_coefficient():
    rng = np.random.default_rng(5)
    run = healthy_run(rng, rows=100, noise=0.1, beta=0.04)
    both = facts_of(view(verl(run, in_reward=True)))
    assert both["placement"] == "both"
    facts = facts_of(view(verl(run)))
    assert (facts["placement"], facts["estimator"]) == ("loss", "k3")
    assert (facts["logged_kl_unit"], facts["penalty_kl_unit"]) == ("nats per token", "nats per token")
    assert facts["coefficient"]["from"].startswith("(actor/loss")
    rloo = facts_of(view(trl_rloo(run)))
    assert (rloo["logged_kl_unit"], rloo["penalty_kl_unit"]) == ("nats per token", "nats per answer")
    assert rloo["coefficient"] == {"value": 0.04, "lo": 0.04, "hi": 0.04, "from": "beta"}
    assert "multiply by the mean length" in the("KL_UNIT", trl_rloo(run))[0].message


def test_an_entropy_bonus_of_unknown_weight_is_told_apart():
    run = healthy_run(np.random.default_rng(6), rows=60, noise=0.1, beta=0.01)
    log = verl(run)
    entropy = f32(1.0 + 0.3 * run.rng.random(60))
    raw = {**log.raw, "actor/entropy": entropy, "actor/loss": f32(log.raw["actor/loss"] - 0.005 * entropy)}
    facts = facts_of(view(replace(log, raw=raw)))
    assert facts["coefficient"]["value"] == pytest.approx(0.01, rel=0.02)
    assert problems(replace(log, raw=raw)) == []


def test_old_against_new_policy_is_not_the_distance_from_the_reference():
    run = healthy_run(np.random.default_rng(7), rows=60)
    log = verl(run, in_loss=False, config={})
    found = check_logs([log])
    assert found[0][0].facts["placement"] == "none"
    assert found[0][0].facts["kl_column"] is None
    assert {f.code for f in found[1] if f.status == "problem"} == set()


def test_open_instruct_index_is_found_from_the_log():
    run = healthy_run(np.random.default_rng(8), rows=60, beta=0.05)
    for index, name in ((0, "k1"), (1, "k2"), (2, "k3")):
        assert facts_of(view(open_instruct(run, index=index)))["estimator"] == name


def test_grpo_and_rloo_with_the_same_keys_are_left_open():
    log = trl_grpo(healthy_run(np.random.default_rng(9), rows=60), old=False, config={})
    kl = replace(log.kl[0], spec=replace(log.kl[0].spec, placement="unknown"))
    found = the("PLACEMENT", replace(log, kl=(kl,)))[0]
    assert found.status == "cannot-tell"
    assert "--trainer" in found.message


def written(tmp_path, rows, name="log.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def place_of(report):
    (one,) = report.inputs
    return one.facts["placement"], [f.code for f in report.problems]


def test_a_nemo_log_cannot_show_a_penalty_in_the_reward(tmp_path):
    """kl_penalty is 0 both where the KL is in the reward and where there is none (grpo.py, loss_functions.py)."""
    rows = [{"step": i, "train/kl_penalty": 0.0, "train/loss": 0.01 * (-1) ** i, "train/reward": 0.5,
             "train/token_mult_prob_error": 1.01} for i in range(20)]  # fmt: skip
    path, config = written(tmp_path, rows), tmp_path / "grpo.yaml"
    text = "loss_fn:\n  reference_policy_kl_penalty: 0.01\n  use_kl_in_reward: {}\n"
    config.write_text(text.format("true"))
    assert place_of(check(path, config=config)) == ("unknown", [])
    config.write_text(text.format("false"))
    assert place_of(check(path, config=config)) == ("none", ["PLACEMENT"])
    assert place_of(check(path)) == ("none", [])


def test_an_excerpt_without_kl_and_loss_is_no_run_without_a_penalty(tmp_path):
    """A chart of rewards exported from a tracker says nothing about the KL; a log with losses and no KL does."""
    rows = [{"step": i, "reward": 0.5, "rewards/accuracy/mean": 0.3} for i in range(20)]
    assert place_of(check(written(tmp_path, rows), beta=0.04)) == ("unknown", [])
    rows = [{**row, "loss": 0.01} for row in rows]
    assert place_of(check(written(tmp_path, rows), beta=0.04)) == ("none", ["PLACEMENT"])


def test_a_kl_that_is_shown_and_not_trained_on(tmp_path):
    """slime's examples: --use-kl-loss --kl-loss-coef 0.00, to watch the KL."""
    kl, pg = [0.00123456789 * i for i in range(20)], 0.0123456789
    rows = [{"step": i, "rollout/raw_reward": 0.5, "train/pg_loss": pg, "train/loss": pg, "train/kl_loss": kl[i]}
            for i in range(20)]  # fmt: skip
    config = tmp_path / "slime.json"
    config.write_text(
        json.dumps({"use_kl_loss": True, "kl_loss_coef": 0.0, "kl_loss_type": "low_var_kl", "kl_coef": 0.0})
    )
    assert place_of(check(written(tmp_path, rows), config=config)) == ("none", [])
    rows = [{**row, "train/loss": pg + 0.1 * row["train/kl_loss"]} for row in rows]
    assert place_of(check(written(tmp_path, rows), config=config)) == ("loss", ["COEFFICIENT"])


def test_a_logged_coefficient_without_a_kl_is_not_called_healthy():
    run = healthy_run(np.random.default_rng(20), rows=30)
    log = verl(run, in_loss=False, config={})
    coefficient = np.full(30, 0.001)
    log = replace(log, coefficient=coefficient, raw={**log.raw, "actor/kl_coef": coefficient})
    assert the("PLACEMENT", log)[0].status == "cannot-tell"


def test_a_reference_that_is_meant_to_follow_makes_no_broken_resume():
    """TRL's sync_ref_model: the KL falls at every synchronisation."""
    run = healthy_run(np.random.default_rng(21), rows=60)
    run.kl = 0.06 * (1 + np.arange(60) % 30) / 30
    run.kl[30:] = 0.0005 * (1 + np.arange(30)) / 30
    run.kl[0] = 0.0
    assert "RESUME" in problems(trl_grpo(run))
    synced = trl_grpo(run, config={"beta": run.beta, "sync_ref_model": True, "ref_model_sync_steps": 30})
    assert problems(synced) == []
    assert "sync_ref_model" in the("RESUME", synced)[0].message


# ---------------------------------------------------------------------------------------------------------- hacking


def test_leetcode_is_judge_gain_without_gold_gain():
    """Real runs: the proxy rises from .2 to .7, gold stays at the floor, which is not a peak and a fall."""
    report = check(LEETCODE, gold="gold_f")
    shapes = {f.input.rpartition("#")[2]: f for f in report.findings if f.code == "HACKING"}
    assert len(shapes) == 5
    found = [f for f in shapes.values() if f.status == "problem"]
    assert len(found) == 4
    assert {f.evidence["shape"] for f in found} == {"judge gain without gold gain"}
    assert all("peak and fall" not in f.message for f in report.findings)
    assert shapes["rl-leetcode-entropy/llama-3.2-3b/bin3-100f_g"].status != "problem"  # its judge does not move
    assert {f.code for f in report.problems} == {"HACKING"}


def test_shapes_are_told_apart():
    rng = np.random.default_rng(10)
    t = np.linspace(0, 1, 60)
    up = 0.2 + 0.5 * t

    def shape(gold):
        gold = gold + 0.01 * rng.normal(size=60)
        log = make("table", {"reward": up + 0.01 * rng.normal(size=60), "gold": gold},
                   fields={"reward": "reward", "gold": "gold"})  # fmt: skip
        found = the("HACKING", log)[0]
        return found.status, found.evidence.get("shape")

    assert shape(0.5 + 0.3 * t) == ("ok", None)
    assert shape(0.5 + 0.0 * t) == ("problem", "judge gain without gold gain")
    assert shape(0.6 - 0.3 * t) == ("problem", "judge up, gold down")
    assert shape(0.4 + 0.8 * t * (1 - t)) == ("problem", "peak and fall")


def test_a_reward_function_of_weight_0_is_gold():
    run = healthy_run(np.random.default_rng(11), rows=80, noise=0.1)
    run.reward = 0.2 + 0.5 * np.linspace(0, 1, 80) + 0.01 * run.rng.normal(size=80)
    run.gold = 0.3 + 0.005 * run.rng.normal(size=80)
    log = trl_grpo(run, gold=None)
    assert the("HACKING", log)[0].status == "not-run"
    assert problems(log, gold="accuracy") == ["HACKING"]
    with pytest.raises(MissingColumnError, match="gold: expected the name"):
        check_logs([log], gold="nothing_like_it")


# ------------------------------------------------------------------------------------------------------ several runs


def runs_at(betas, kl_of, seed=12, **more):
    logs = []
    for i, beta in enumerate(betas):
        run = healthy_run(np.random.default_rng(seed), rows=100, noise=0.05, beta=beta)
        run.kl = run.kl * kl_of(beta) / run.kl[-20:].mean()
        run.reward = run.reward - 0.1 * np.linspace(0, 1, 100) * (beta >= 0.01) - 0.1 * (beta >= 0.1)
        logs.append(verl(run, named=f"beta{beta}-{i}", path=f"{beta}-{i}.jsonl", **more))
    return logs


def test_several_runs_fill_a_frontier():
    logs = runs_at([0.1, 0.01, 0.001, 0.01], lambda beta: 0.01 * beta**-0.3)
    _, findings, frontier = check_logs(logs)
    assert frontier.source == "log"
    assert frontier.beta.tolist() == [0.001, 0.01, 0.1]
    assert frontier.n.tolist() == [1, 2, 1]
    assert (np.diff(frontier.kl.value) < 0).all()
    length = logs[0].length[-20:].mean()
    assert frontier.kl.value[2] == pytest.approx(0.01 * 0.1**-0.3 * length, rel=0.1)  # nats per answer
    for end in (frontier.kl.lo, frontier.kl.hi):
        np.testing.assert_allclose(np.abs(end - frontier.kl.value), 1.96 * frontier.kl.se, rtol=1e-9)
    assert frontier.gold.gain is not None
    assert [f.status for f in findings if f.code == "SWEEP"] == ["ok"]
    assert frontier.to_dict()["source"] == "log"
    assert check_logs(logs[:1])[2] is None


def test_a_larger_coefficient_with_a_larger_kl():
    """https://github.com/allenai/open-instruct/issues/534: a penalty without pull."""
    found = the("SWEEP", *runs_at([0.01, 0.1], lambda beta: 0.02 * beta**0.5))
    assert [f.status for f in found] == ["problem"]


def test_a_sweep_that_shows_nothing():
    """https://github.com/jsboige/CoursIA/pull/11305: beta .05, .5, 2 give KL .67, .41, .28, reward 1.0 throughout."""
    logs = []
    for beta, kl in ((0.05, 0.67), (0.5, 0.41), (2.0, 0.28)):
        run = healthy_run(np.random.default_rng(0), rows=40, noise=0.01, beta=beta)
        run.kl, run.reward = np.where(np.arange(40) < 1, 0.0, kl), np.ones(40)
        logs.append(verl(run, named=str(beta), path=f"{beta}.jsonl", gold=None))
    found = the("SWEEP", *logs)[0]
    assert found.status == "cannot-tell"
    assert "0.67 at 0.05, 0.41 at 0.5, 0.28 at 2" in found.message


def test_an_upgrade_that_drops_the_penalty():
    """TRL GRPO: beta 0.04 up to 0.18, 0.0 since 0.19 (grpo_config.py)."""
    run = healthy_run(np.random.default_rng(13), rows=60, beta=0.04)
    old = trl_grpo(run, config={}, version="0.18.2", path="old.json", named="old")
    new = trl_grpo(run, config={}, version="0.19.0", path="new.json", named="new")
    gone = replace(new, raw={k: v for k, v in new.raw.items() if k != "kl"}, kl=())
    found = [f for f in the("UPGRADE", old, gone) if f.status == "problem"]
    assert [f.input for f in found] == ["new.json"]
    assert "beta defaults to 0.0 instead of 0.04" in found[0].message
    assert problems(old, new) == []
    alone = the("UPGRADE", gone)[0]
    assert alone.status == "cannot-tell"  # one log does not say for which version the script was written
    assert not [f for f in the("UPGRADE", old, replace(gone, config={"beta": 0.0})) if f.status == "problem"]


def test_a_healthy_resume_and_one_that_reloads_the_reference():
    run = healthy_run(np.random.default_rng(14), rows=100, noise=0.05, beta=0.01)
    run.kl = np.linspace(0.001, 0.1, 100)
    rows = np.concatenate([np.arange(60), np.arange(55, 100)])
    segment = np.repeat([0, 1], [60, 45])
    good = take(verl(run), rows, segment=segment)
    assert problems(good) == []
    assert "1 restarts" in the("RESUME", good)[0].message
    kl = good.kl[0].values.copy()
    kl[60:] = np.linspace(0.0001, 0.004, 45)
    bad = replace(good, kl=(replace(good.kl[0], values=kl), *good.kl[1:]))
    assert "RESUME" in problems(bad)


@pytest.mark.parametrize("rows", [1, 2, 5, 30])
def test_logs_with_holes_infinities_and_one_row_are_answered(rows):
    for seed, name in enumerate(WRITERS):
        rng = np.random.default_rng((15, seed, rows))
        log = WRITERS[name](healthy_run(rng, rows=rows))
        for value in (np.nan, np.inf, 0.0):
            raw = {k: np.where(rng.random(rows) < 0.5, value, v) for k, v in log.raw.items()}
            kl = tuple(replace(c, values=raw[c.key]) for c in log.kl)
            inputs, findings, frontier = check_logs([replace(log, raw=raw, kl=kl), log])
            report = CheckReport(
                inputs=tuple(inputs),
                findings=tuple(findings),
                frontier=frontier,
            )
            dump_json(report.to_dict())  # refuses NaN
            infinite = np.isinf(value) and any(np.isinf(v).any() for k, v in raw.items() if "loss" in k)
            assert not infinite or "NON_FINITE" in [f.code for f in report.problems]
