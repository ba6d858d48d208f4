"""``--config`` as trainers write it: TOML, YAML (hydra, overrides, wandb), JSON; and what is none of them."""

import json

import numpy as np
import pytest
from simulated_logs import healthy_run, verl

from kleash.audit import check
from kleash.audit.declared import read_config
from kleash.audit.logs import check_logs
from kleash.audit.logs.settings import settings_of
from kleash.errors import ConfigError

HYDRA = """
algorithm:
  use_kl_in_reward: false
  kl_ctrl: {type: fixed, kl_coef: 0.001}
actor_rollout_ref:
  actor:
    use_kl_loss: true
    kl_loss_coef: 1e-2   # no point: a word to YAML 1.1
    kl_loss_type: low_var_kl
    ppo_epochs: 1
"""
OVERRIDES = """
- algorithm.use_kl_in_reward=False
- +actor_rollout_ref.actor.use_kl_loss=True
- actor_rollout_ref.actor.kl_loss_coef=0.01
- actor_rollout_ref.actor.kl_loss_type=low_var_kl
"""
WANDB = """
wandb_version: 1
use_kl_loss: {desc: null, value: true}
use_kl_in_reward:
  value: false
kl_loss_coef:
  value: 0.01
kl_loss_type:
  value: low_var_kl
"""
AS_TOML = """
[actor_rollout_ref.actor]
use_kl_loss = true
kl_loss_coef = 0.01
kl_loss_type = "low_var_kl"
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", HYDRA), ("a.yml", OVERRIDES), ("config.yaml", WANDB), ("a.toml", AS_TOML),
     ("a.json", json.dumps({"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"}))],
)  # fmt: skip
def test_one_configuration_in_five_spellings(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    declared, table = read_config(tmp_path / name)
    settings = settings_of("verl", table, declared)
    assert (settings.where, settings.beta, settings.estimator) == ("loss", 0.01, "k3")
    run = healthy_run(np.random.default_rng(0), rows=60, beta=0.01)
    log = verl(run, config={})
    assert not [f for f in check_logs([log], config=table)[1] if f.status == "problem"]
    wrong = {"kl_loss_coef": 0.5, **{k: v for k, v in table.items() if k != "kl_loss_coef"}}
    assert "COEFFICIENT" in [
        f.code for f in check_logs([verl(run, config={})], config=wrong)[1] if f.status == "problem"
    ]


def test_open_instruct_and_declarations_in_yaml(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text("beta: 0.05\nkl_estimator: 2\nnum_epochs: 1\nlearning_rate: 5e-7\n")
    settings = settings_of("open-instruct", read_config(path)[1], read_config(path)[0])
    assert (settings.beta, settings.estimator) == (0.05, "k3")
    path.write_text("beta: 1e-3\nestimator: k3\nplacement: loss\n")
    declared, table = read_config(path)
    assert (declared.beta, declared.estimator, table) == (0.001, "k3", {})


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.yaml", "beta: [0.1\n", "YAML"),
        ("a.yaml", "beta: 0.1\n---\nbeta: 0.2\n", "YAML"),
        ("a.yaml", "- 1\n- 2\n", "a table of settings"),
        ("a.yaml", "", "a table of settings"),
        ("a.yaml", "betta: 0.1\n", "betta"),
        ("a.yaml", "!!python/object/apply:os.system ['true']\n", "YAML"),
        ("a.toml", "beta: 0.1\n", "TOML"),
        ("a.json", "{", "JSON"),
        ("a.json", "[" * 100_000, "JSON"),
    ],
)
def test_what_is_no_configuration_is_one_line(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        check([tmp_path / "x.jsonl"], config=tmp_path / name)
    assert "\n" not in str(error.value)
