"""lm-human-preferences, the code of Ziegler et al. 2019: PPO with an adaptive penalty in the reward."""

from __future__ import annotations

from kleash.trainers.columns import PER_ANSWER, Columns, kl, old
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option, Options
from kleash.trainers.penalty import Penalty
from kleash.trainers.trl_ppo import ZIEGLER

__all__ = ["LM_HUMAN_PREFERENCES"]


def _penalty(o: Options) -> Penalty:
    adaptive = True if o["target"] is not None else None
    return Penalty(coefficient="kl_coef", adaptive=adaptive, target=o["target"], horizon=o["horizon"])


LM_HUMAN_PREFERENCES = Trainer(
    name="lm-human-preferences",
    project="lm-human-preferences",
    marks=("objective/kl_coef objective/score !ppo/mean_scores !env/reward_mean !ppo/mean_non_score_reward",),
    columns=Columns(
        **ZIEGLER,
        reward=("objective/score",),
        kl=(kl("objective/kl", estimator="k1", unit=PER_ANSWER, placement="reward"), old("ppo/policy/approxkl")),
    ),
    options={
        "kl_coef": Option(names=("rewards.kl_coef", "kl_coef"), default=0.2),
        "target": Option(names=("method.target", "target")),
        "horizon": Option(names=("method.horizon", "horizon"), default=10000.0),
    },
    penalty=_penalty,
    place="reward",
    estimator="k1",
    identity=Identity(kind="difference", keys=("objective/score", "objective/score_total", "objective/kl")),
)
