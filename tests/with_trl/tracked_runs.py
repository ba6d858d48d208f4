"""One run, written by each of the trackers: ``python tests/with_trl/tracked_runs.py FOLDER [TRACKER ...]``.

The golden files in tests/data/logs/tracked come from here. Each tracker runs in a process of its own, for they keep
settings of their own and stay alive.
"""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = {"beta": 0.04, "num_generations": 8, "loss_type": "dapo"}
NAME = "leash"


def rows() -> list[tuple[int, dict[str, float]]]:
    """A run of GRPO: steps 1 to 20, and behind every tenth one the numbers of an evaluation."""
    out = []
    for step in range(1, 21):
        kl = 0.0015 * (step - 1)
        train = {"loss": round(0.04 * kl, 4), "reward": 0.3 + 0.01 * step, "kl": kl, "frac_reward_zero_std": 0.125}
        out.append((step, {f"train/{key}": value for key, value in train.items()}))
        if step % 10 == 0:
            out.append((step, {"eval/reward": 0.25 + 0.01 * step, "eval/kl": kl}))
    return out


def write(folder: Path, tracker: str) -> None:
    """The run in a folder, by a process of its own."""
    env = os.environ | {"MLFLOW_ALLOW_FILE_STORE": "true", "TRACKIO_DIR": str(folder), "GIT_PYTHON_REFRESH": "quiet"}
    command = [sys.executable, __file__, str(folder), tracker]
    subprocess.run(command, check=True, env=env, cwd=folder, capture_output=True, timeout=300)


def tensorboard(folder: Path) -> None:
    from tensorboard.summary import Writer

    writer = Writer(str(folder))
    for step, row in rows():
        for key, value in row.items():
            writer.add_scalar(key, value, step)
    writer.close()


def wandb(folder: Path) -> None:
    import wandb

    quiet = wandb.Settings(
        mode="offline", console="off", host="host", program="train.py", disable_code=True, disable_git=True,
        x_disable_stats=True, x_disable_meta=True, x_save_requirements=False, _executable="python", run_id="leash01",
    )  # fmt: skip
    run = wandb.init(dir=folder, project="salt", name=NAME, config=SETTINGS, settings=quiet)
    for step, row in rows():
        run.log({**row, "train/global_step": step})
    run.finish()


def trackio(folder: Path) -> None:
    import trackio

    trackio.init(project="salt", name=NAME, config=SETTINGS, embed=False, auto_log_cpu=False, auto_log_gpu=False)
    for step, row in rows():
        trackio.log(row, step=step)
    trackio.finish()


def mlflow(folder: Path, store: str = "") -> None:
    import mlflow

    mlflow.set_tracking_uri(store or (folder / "mlruns").as_uri())
    mlflow.set_experiment("salt")
    with mlflow.start_run(run_name=NAME):
        mlflow.log_params(SETTINGS)
        for step, row in rows():
            mlflow.log_metrics(row, step=step)


def mlflow_database(folder: Path) -> None:
    mlflow(folder, f"sqlite:///{folder / 'mlflow.db'}")


def swanlab(folder: Path) -> None:
    import swanlab

    swanlab.init(project="salt", name=NAME, mode="offline", log_dir=str(folder), config=SETTINGS)
    for step, row in rows():
        swanlab.log(row, step=step)
    swanlab.finish()


TRACKERS = {writer.__name__: writer for writer in (tensorboard, wandb, trackio, mlflow, mlflow_database, swanlab)}

if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    for name in sys.argv[2:]:
        TRACKERS[name](target)
