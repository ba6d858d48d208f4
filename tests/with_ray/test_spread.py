"""A sweep on a Ray cluster of this machine is the sweep on one machine, whatever is killed on the way."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from kitchen_hands import write_kitchen

pytestmark = pytest.mark.ray
MAIN = "from kleash.cli import main; main()"
DEADLY = '''
import os, pathlib, signal, time
HERE = pathlib.Path(__file__).parent

def salt(prompts, completions, **columns):
    """Kills its own process at some of its calls, three times in all, or is slow."""
    calls, kills = HERE / "calls", HERE / "kills"
    with open(calls, "a") as file:
        file.write(".")
    if (HERE / "slow").exists():
        time.sleep(0.3)
    at = {5, 9, 14}
    if (HERE / "deadly").exists() and calls.stat().st_size in at:
        with open(kills, "a") as file:
            file.write(".")
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(text.split().count("salt")) for text in completions]

def taste(prompts, completions, **columns):
    return [1.0 - abs(text.split().count("salt") - 1) for text in completions]
'''


@pytest.fixture
def elsewhere():
    """An environment in which all that Ray writes goes to a folder that is removed; short, for its sockets' names."""
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        yield os.environ | {
            "RAY_TMPDIR": folder,
            "HOME": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }


def sweep(*args, env, check=True):
    command = [sys.executable, "-c", MAIN, "sweep", *map(str, args), "--format", "json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert not check or done.returncode == 0, done.stderr
    return json.loads(done.stdout) if check else done


def without_rounding(content, digits=5):
    if isinstance(content, dict):
        return {key: without_rounding(value) for key, value in content.items()}
    if isinstance(content, list):
        return [without_rounding(value) for value in content]
    return float(f"{content:.{digits}g}") if isinstance(content, float) else content


def test_a_world_in_parts_is_the_world_in_one(elsewhere, tmp_path):
    asked = ["--beta", 0, "--beta", 1, "--beta", 5, "--beta", 15, "--seeds", 2]
    one = sweep(*asked, env=elsewhere)
    spread = sweep(*asked, "--ray", "--out", tmp_path / "run", env=elsewhere)
    assert spread == one
    assert sweep(*asked, "--ray", "--out", tmp_path / "run", "--resume", env=elsewhere) == one
    other = sweep("--beta", 2, "--ray", "--out", tmp_path / "run", "--resume", env=elsewhere, check=False)
    assert other.returncode == 2
    assert "betas 0, 1, 5, 15 as in its parts" in other.stderr


def kitchen(folder):
    config = write_kitchen(folder)
    (folder / "kitchen_judges.py").write_text(DEADLY)
    return config


def test_workers_are_killed_three_times_and_the_table_is_the_same(elsewhere, tmp_path):
    config = kitchen(tmp_path / "kitchen")
    one = sweep(config, "--out", tmp_path / "one", env=elsewhere)
    (tmp_path / "kitchen" / "calls").unlink()
    (tmp_path / "kitchen" / "deadly").touch()
    spread = sweep(config, "--ray", "--out", tmp_path / "run", env=elsewhere)
    assert (tmp_path / "kitchen" / "kills").stat().st_size == 3
    for key in ("rows", "answers", "reference", "forecast"):
        assert without_rounding(spread[key]) == without_rounding(one[key]), key


def test_the_head_is_stopped_and_another_one_goes_on(elsewhere, tmp_path):
    config = kitchen(tmp_path / "kitchen")
    one = sweep(config, "--out", tmp_path / "one", env=elsewhere)
    calls = tmp_path / "kitchen" / "calls"
    calls.unlink()
    (tmp_path / "kitchen" / "slow").touch()
    command = [sys.executable, "-c", MAIN, "sweep", str(config), "--ray", "--out", str(tmp_path / "run")]
    running = subprocess.Popen(command, env=elsewhere, start_new_session=True, stderr=subprocess.DEVNULL)
    while not (calls.exists() and calls.stat().st_size > 4) and running.poll() is None:
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGKILL)  # driver, head and workers: all are of its session
    running.wait()
    (tmp_path / "kitchen" / "slow").unlink()
    again = sweep(config, "--ray", "--out", tmp_path / "run", "--resume", env=elsewhere)
    for key in ("rows", "answers", "reference", "forecast"):
        assert without_rounding(again[key]) == without_rounding(one[key]), key
