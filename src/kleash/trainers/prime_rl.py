"""prime-rl: a leash to the sampling policy, none to a reference (read at 559b447, August 2026)."""

from __future__ import annotations

from kleash.trainers._common import ALARM
from kleash.trainers.columns import PER_TOKEN, Columns, kl
from kleash.trainers.facts import Identity, Trainer
from kleash.trainers.options import Option
from kleash.trainers.penalty import Leash, Penalty, Target

__all__ = ["PRIME_RL"]

_SAMPLER = (
    "kl_tau ties each update to the policy that drew the answers, and the masks cut tokens far from it: both bound a "
    "step and never the drift from a reference, so no beta of the tilt corresponds"
)

PRIME_RL = Trainer(
    name="prime-rl",
    project="prime-rl",
    marks=("mismatch_kl/mean", "mismatch_kl/all/mean"),
    columns=Columns(
        reward=("reward/all/mean", "reward/mean"),
        length=("seq_len/all/mean", "seq_len/mean"),
        entropy=("entropy/all/mean", "entropy/mean"),
        losses={"loss": ("loss/mean",)},
        kl=(
            kl("mismatch_kl/all/mean", "mismatch_kl/mean", estimator="k3", unit=PER_TOKEN, placement="none",
               sampler="behavior", against="old-policy"),
        ),
    ),
    options={"kl_tau": Option(names=("loss.kl_tau", "kl_tau"), default=0.001)},
    penalty=lambda o: Penalty(against=None if o["kl_tau"] is None else "sampler"),
    targets=(Target(name="prime-rl", settable=(), leash=lambda o: Leash(parameter="kl_tau", refused=_SAMPLER)),),
    place="loss",
    unleashed=_SAMPLER,
    estimator="k2",
    identity=Identity(kind="none", reason="prime-rl's penalty is on the squared log ratio to the sampler"),
    mismatch={"mismatch_kl/all/mean": ALARM},
)  # fmt: skip
