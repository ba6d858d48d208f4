"""Numbers of public logs come out to the digits given (facts of public threads; addresses in the tests)."""

import math

import numpy as np
import pytest
from simulated_logs import FULL, PER_ANSWER_REWARD, PER_TOKEN_LOSS, PER_TOKEN_REWARD, make

from kleash.audit.declared import Declared
from kleash.audit.logs import findings_of
from kleash.audit.logs.coefficient import recover
from kleash.audit.logs.facts import facts_of
from kleash.audit.logs.ratio_fit import fit_ratio, half_widths
from kleash.audit.logs.view import view
from kleash.logs import with_gold

REF = "reference"


def findings(log, declared=None, gold=None):
    (log,) = [log] if gold is None else with_gold([log], gold)
    return {f.code: f for f in findings_of(view(log, declared))}


def m1():
    """https://github.com/hongbo-miao/hongbomiao.com/pull/37684, TRL PPO."""
    columns = {
        "objective/kl": [10.948126792907715, 11.070764541625977],
        "objective/non_score_reward": [-0.5474063754081726, -0.5535382032394409],
        "objective/rlhf_reward": [1.3822810649871826, 1.602711796760559],
        "objective/scores": [1.9296875, 2.15625],
        "policy/approxkl_avg": [0.0024032, 0.0024032],
        "val/num_eos_tokens": [0, 0],
    }
    old = {"estimator": "k2", "unit": "nats per token", "placement": "none", "sampler": "behavior"}
    kl = [("objective/kl", PER_ANSWER_REWARD, REF), ("policy/approxkl_avg", old, "old-policy")]
    return make("trl-ppo", columns, kl=kl, step=[240, 256], fields={"reward": "objective/scores"})


def test_m1_coefficient_sum_and_no_end_token():
    v = view(m1())
    facts = facts_of(v)
    assert facts["coefficient"]["value"] == pytest.approx(0.05, rel=1e-6)
    assert facts["coefficient"]["lo"] <= 0.05 <= facts["coefficient"]["hi"]
    assert facts["coefficient"]["hi"] - facts["coefficient"]["lo"] < 2e-5
    assert (facts["placement"], facts["logged_kl_unit"], facts["penalty_kl_unit"]) == (
        "reward", "nats per answer", "nats per answer"
    )  # fmt: skip
    found = findings(m1())
    assert found["SIGN"].status == "ok"
    assert found["ENDINGS"].status == "problem"
    assert [c for c, f in found.items() if f.status == "problem"] == ["ENDINGS"]
    assert facts["kl_column"] == "objective/kl"  # never approxkl, which is against the old policy
    assert facts["kl_against_old_policy"] == ["policy/approxkl_avg"]


def m2():
    """https://github.com/verl-project/verl/issues/7412, verl with the KL in the loss, step 34."""
    columns = {
        "actor/pg_loss": [0.042396901015308686],
        "actor/kl_loss": [0.0013280365410537343],
        "actor/kl_coef": [0.001],
        "actor/loss": [0.042398229241371155],
        "actor/ppo_kl": [-8.16e-6],
        "actor/grad_norm": [0.1296],
        "critic/score/mean": [-0.01828],
        "critic/rewards/mean": [-0.01828],
        "response_length/mean": [1267.02],
    }
    old = {"estimator": "k1", "unit": "nats per token", "placement": "none"}
    kl = [("actor/kl_loss", PER_TOKEN_LOSS, REF), ("actor/ppo_kl", old, "old-policy")]
    fields = {"reward": "critic/score/mean", "length": "response_length/mean", "coefficient": "actor/kl_coef"}
    return make("verl", columns, kl=kl, step=[34], fields=fields)


def test_m2_loss_is_policy_loss_plus_penalty():
    log = m2()
    raw = {k: float(v[0]) for k, v in log.raw.items()}
    assert raw["actor/pg_loss"] + 0.001 * raw["actor/kl_loss"] == pytest.approx(raw["actor/loss"], abs=1e-8)
    facts, found = facts_of(view(log)), findings(log)
    assert facts["placement"] == "loss"
    assert facts["coefficient"]["value"] == pytest.approx(0.001, rel=0.001)
    assert facts["coefficient"]["lo"] <= 0.001 <= facts["coefficient"]["hi"]
    assert found["LOSS"].evidence["share"] == pytest.approx(3e-5, rel=0.1)
    assert not [f for f in found.values() if f.status == "problem"]


def test_m3_only_the_kl_moves_the_weights():
    """https://github.com/zhaochenyang20/Awesome-ML-SYS-Tutorial/issues/106, verl step 83, three decimals."""
    columns = {
        "actor/kl_loss": [0.024], "actor/kl_coef": [0.001], "actor/pg_loss": [0.0], "critic/score/mean": [0.906],
        "critic/advantages/max": [0.0], "critic/advantages/min": [0.0], "critic/advantages/mean": [0.0],
    }  # fmt: skip
    fields = {"reward": "critic/score/mean", "coefficient": "actor/kl_coef"}
    log = make("verl", columns, kl=[("actor/kl_loss", PER_TOKEN_LOSS, REF)], step=[83], fields=fields,
               decimals=dict.fromkeys(columns, 3))  # fmt: skip
    found = findings(log)
    assert [c for c, f in found.items() if f.status == "problem"] == ["ZERO_VARIANCE"]
    assert "only the KL moves the weights" in found["ZERO_VARIANCE"].message
    assert facts_of(view(log))["placement"] == "loss"


def test_m5_a_gradient_that_is_no_number():
    """https://github.com/verl-project/verl/pull/1037, verl step 2."""
    columns = {"actor/grad_norm": [np.nan], "actor/kl_loss": [0.0], "critic/score/mean": [0.903]}
    log = make("verl", columns, kl=[("actor/kl_loss", PER_TOKEN_LOSS, REF)], step=[2],
               fields={"reward": "critic/score/mean"}, decimals=dict.fromkeys(columns, 3))  # fmt: skip
    found = findings(log)
    assert [c for c, f in found.items() if f.status == "problem"] == ["NON_FINITE"]
    assert found["NON_FINITE"].evidence["first_key"] == "actor/grad_norm"
    assert found["NON_FINITE"].evidence["first_step"] == 2


def grpo(loss, kl, *, loss_places=4, kl_places=FULL, **columns):
    raw = {"loss": loss, "kl": kl, "completion_length": np.full(len(loss), 300.0), **columns}
    return make("trl-grpo", raw, kl=[("kl", PER_TOKEN_LOSS, REF)], decimals={"loss": loss_places, "kl": kl_places},
                fields={"reward": "reward"} if "reward" in columns else {})  # fmt: skip


def test_m6_beta_from_loss_over_kl():
    """https://github.com/FareedKhan-dev/train-deepseek-r1/issues/4, TRL GRPO."""
    for loss, kl, value in ((0.0007, 0.0174568, 0.0401), (0.0009, 0.0229734, 0.0392)):
        found = recover(view(grpo([loss], [kl], kl_places=7)))
        assert found.holds
        assert found.fit.value == pytest.approx(value, abs=5e-5)
        assert found.fits(0.04)
    log = grpo([0.0007, 0.0009, np.nan], [0.0174568, 0.0229734, np.nan], kl_places=7,
               eval_loss=[np.nan, np.nan, 0.000617961], eval_kl=[np.nan, np.nan, 0.0154309])  # fmt: skip
    facts = facts_of(view(log))["coefficient"]
    assert facts["value"] == pytest.approx(0.04005, abs=1e-3)
    assert facts["lo"] <= 0.04 <= facts["hi"] < 0.0413
    exact = fit_ratio([0.000617961], [0.0154309], target_error=half_widths([0.000617961], 9), regressor_error=5e-8)
    assert exact.value == pytest.approx(0.04005, abs=5e-6)
    for declared, status in ((0.04, "ok"), (0.1, "problem")):
        assert findings(log, Declared(beta=declared))["COEFFICIENT"].status == status


def test_j155_loss_that_starts_at_0_and_grows():
    """https://github.com/huggingface/open-r1/issues/239: (loss .0007, kl .018375), (.0019, .048572)."""
    log = grpo([0.0007, 0.0019], [0.0183746337890625, 0.04857177734375])
    assert facts_of(view(log))["coefficient"]["value"] == pytest.approx(0.04, abs=0.0015)
    assert recover(view(log)).fits(0.04)
    assert "starts at 0 and grows with the KL" in findings(log)["LOSS"].message


M7_KL = [0, 0, 1e-5, 2.8e-5, 5.6e-5, 1.56e-4, 4.46e-4, 6.58e-4, 0.001667, 0.0023, 0.002576]


def test_m7_growth_is_near_exponential_and_rounding_hides_beta():
    """https://github.com/unslothai/unsloth/issues/2291, TRL GRPO, steps 1 to 11; the loss goes from 0 to .0001.

    The facts give the loss at both ends only: between them it is .04 * kl, rounded as TRL rounds it.
    """
    log = grpo(np.round(0.04 * np.array(M7_KL), 4), M7_KL, kl_places=6, reward=[-17.25] * 11)
    assert (log.raw["loss"][0], log.raw["loss"][-1]) == (0.0, 0.0001)
    found = findings(log, Declared(beta=0.04))
    growth = found["KL_GROWTH"]
    assert growth.evidence["exponential_r2"] > 0.9
    assert growth.evidence["doubling_steps"] == pytest.approx(1.0, abs=0.2)
    assert "near-exponential" in growth.message
    v = recover(view(log))
    assert v.fits(0.04)
    assert v.hi > 1.9 * v.lo  # four places leave a factor of two
    early = recover(view(grpo([0.0] * 8, M7_KL[:8], kl_places=6)))
    assert early.lo < 0 < early.hi
    assert not [f.code for f in found.values() if f.status == "problem"]


def test_m9_proxy_up_gold_down():
    """https://github.com/huggingface/open-r1/issues/255, TRL GRPO: format up, accuracy down."""
    columns = {
        "loss": [0.0, 0.0002, 0.0045],
        "reward": [0.7114849153440446, 0.6940873321145773, 0.8866595663130283],
        "rewards/accuracy_reward": [0.15982143627479672, 0.1178571494296193, 0.06428571762517095],
        "rewards/format_reward": [0.4758928777649999, 0.5544643074274063, 0.8571428976953029],
        "completion_length": [387.50359020233157, 378.24644565582275, 190.537],
        "kl": [0.0001536548137664795, 0.0039509057998657225, np.nan],
    }
    names = {"accuracy_reward": "rewards/accuracy_reward", "format_reward": "rewards/format_reward"}
    components = {name: np.asarray(columns[key]) for name, key in names.items()}
    log = make("trl-grpo", columns, kl=[("kl", PER_TOKEN_LOSS, REF)], decimals={"loss": 4},
               fields={"reward": "reward", "length": "completion_length"}, components=components)  # fmt: skip
    assert findings(log)["HACKING"].status == "not-run"
    assert "accuracy_reward" in findings(log)["HACKING"].message
    hacking = findings(log, gold="accuracy_reward")["HACKING"]
    assert hacking.status == "cannot-tell"  # three rows
    assert hacking.evidence["shape"] == "judge up, gold down"
    assert hacking.evidence["gold_gain"] == pytest.approx(-0.09554, abs=1e-5)
    assert hacking.evidence["judge_gain"] == pytest.approx(0.17517, abs=1e-5)


@pytest.mark.parametrize(
    ("judge", "gold", "shape"),
    [(1, 1, "judge up, gold up"), (1, -1, "judge up, gold down"), (-1, 1, "mixed"), (-1, -1, "mixed")],
)
def test_a_few_rows_have_a_shape_and_no_verdict(judge, gold, shape):
    rows = np.arange(4.0)
    raw = {"reward": judge * rows, "rewards/gold": gold * rows**2}
    log = make("trl-grpo", raw, fields={"reward": "reward"}, components={"gold": gold * rows**2})
    assert findings(log, gold="gold")["HACKING"].evidence["shape"] == shape


def test_m10_a_loss_of_0_that_is_rounding():
    """https://github.com/huggingface/trl/issues/3452, TRL GRPO: loss 0.0, KL small."""
    kl = [0.00056032, 0.00055024, 0.00053188, 0.00055152]
    log = grpo([0.0] * 4, kl, reward=[1.872, 1.775, 1.799, 1.702])
    found = findings(log, Declared(beta=0.04))
    assert found["LOSS"].status == "ok"
    assert "not a failure" in found["LOSS"].message
    assert found["LOSS"].evidence["beta_hi"] == pytest.approx(0.00005 / 0.00056032, rel=0.02)
    assert found["COEFFICIENT"].status == "cannot-tell"
    assert not [f.code for f in found.values() if f.status == "problem"]
    assert findings(log, Declared(beta=1.0))["COEFFICIENT"].status == "problem"


@pytest.mark.parametrize("mass", [0.95, 0.9, 0.8, 0.1712, 0.1084])
def test_m13_the_mean_ratio_is_the_kept_mass(mass):
    """https://github.com/huggingface/trl/issues/6789: top_p .95, .9, .8; top_k 50 and 20."""
    rows = mass + 0.0005 * np.array([1, -1, 1, -1, 0])
    stem, top = "sampling/importance_sampling_ratio/", np.full(5, math.exp(0.477))  # the report's largest difference
    log = grpo([0.0] * 5, [1e-3] * 5, **{f"{stem}mean": rows, f"{stem}max": top})
    found = findings(log)["TRUNCATION"]
    assert found.status == "problem"
    assert found.evidence["kept_mass"] == pytest.approx(mass, abs=2e-4)
    whole = grpo([0.0] * 5, [1e-3] * 5, **{f"{stem}mean": rows - mass + 0.9985, f"{stem}max": top})
    assert findings(whole)["TRUNCATION"].status == "ok"


def test_where_the_log_cannot_hold_it():
    """TRL's RLOO without a configuration, GRPO with a loss weighted by length: cannot-tell, never a guess."""
    rng = np.random.default_rng(0)
    kl = np.linspace(0.001, 0.1, 50)
    spec = [("kl", PER_TOKEN_REWARD, REF)]
    rloo = make("trl-rloo", {"loss": rng.normal(size=50), "kl": kl}, kl=spec)
    found = findings(rloo)["COEFFICIENT"]
    assert found.status == "cannot-tell"
    assert "--config" in found.fix
    assert facts_of(view(rloo))["coefficient"] is None
    dapo = make("trl-grpo", {"loss": 0.04 * kl + 0.01 * rng.normal(size=50), "kl": kl}, decimals={"loss": 4},
                kl=[("kl", PER_TOKEN_LOSS, REF)], config={"loss_type": "dapo"})  # fmt: skip
    found = findings(dapo)["COEFFICIENT"]
    assert found.status == "cannot-tell"
    assert "weighted by length" in found.message
    one = make("trl-grpo", {"loss": [0.0123], "kl": [0.02]}, kl=[("kl", PER_TOKEN_LOSS, REF)])
    assert findings(one)["COEFFICIENT"].status == "cannot-tell"  # one row always "agrees"
