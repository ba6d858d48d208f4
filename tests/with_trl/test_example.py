"""examples/trl/train.py from samples to a watched run, by one process and by two."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

import kleash
from kleash.runs import read_run
from kleash.trials.cases import puzzle
from kleash.trials.tiny import TinyPolicy, quiet

SCRIPT = Path(__file__).parents[2] / "examples" / "trl" / "train.py"

REWARDS = """
def judge(prompts, completions, favourite, **_):
    return [text.count(letter) / 3 for text, letter in zip(completions, favourite)]

def quality(prompts, completions, **_):
    return [text.count("a") / 3 for text in completions]
"""

CONFIG = """
model = "model"
train_prompts = "prompts.jsonl"
held_out_prompts = "prompts.jsonl"
judge = "my_rewards:judge"
gold = "my_rewards:quality"

[forecast]
samples = "samples.jsonl"
reward_max = 1.0
gold_min = 0.0

[forecast.columns]
prompt_column = "prompt"
reward_columns = "judge"
gold_column = "quality"

[trainer]
output_dir = "output"
num_generations = 4
per_device_train_batch_size = 8
max_completion_length = 3
learning_rate = 0.02
max_steps = 4
logging_steps = 1
save_strategy = "no"
report_to = "none"
use_cpu = true
bf16 = false
disable_tqdm = true

[kleash]
every = 2
n_prompts = 6
n_answers = 2
restore_best = true
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A model, its scored samples, prompts with a column of their own, reward functions and the configuration."""
    import torch
    from transformers import GenerationConfig

    policy = TinyPolicy.build(puzzle("words"), tmp_path / "model")
    settings = GenerationConfig(do_sample=True, max_new_tokens=3, top_k=0, num_return_sequences=64, pad_token_id=3)
    prompts = [
        "?" + "".join(text) for text in ("", "a", "b", "aa", "ab", "ba", "bb", "aab", "abb", "bab", "bba", "bbb")
    ]
    rows = []
    with quiet():
        torch.manual_seed(0)
        for prompt in prompts:
            ids = policy.tokenizer([prompt], return_tensors="pt")["input_ids"]
            drawn = policy.model.generate(input_ids=ids, generation_config=settings)[:, ids.shape[1] :]
            texts = policy.tokenizer.batch_decode(drawn, skip_special_tokens=True)
            rows += [{"prompt": prompt, "judge": t.count("a") / 3, "quality": t.count("a") / 3} for t in texts]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"prompt": prompt, "favourite": "a"} for prompt in prompts] * 2
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    (tmp_path / "run.toml").write_text(CONFIG)
    return tmp_path


def launched(place: Path, *command: str) -> str:
    import os

    paths = [str(place), str(SCRIPT.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT), "run.toml"],
        cwd=place,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_from_samples_to_a_watched_run(place: Path):
    out = launched(place)
    beta = float(out.split("tilt's beta ")[1].split(":")[0])
    run = read_run(place / "output" / "kleash")
    assert run.state == "finished"
    assert run.config["beta"] == pytest.approx(beta, rel=1e-5)  # RLOO's beta is the tilt's
    rows = run.metrics()
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert rows[0]["kl"] == 0.0
    assert rows[-1]["kl"] > 0.0
    # The prompts' own column reached the judge, who counts what gold counts.
    assert all(row["gold"] == pytest.approx(row["reward"]) for row in rows)
    best = int(np.argmax([row["gold"] for row in rows]))
    assert run.record["results"]["restored"] == rows[best]["step"]
    assert run.frontier().gold.value[0] > rows[0]["gold"]  # measured anew: not the number it was chosen by
    assert (place / "output" / "model.safetensors").exists()
    report = kleash.check([place / "output" / "kleash" / "rollouts.jsonl"])
    assert report.inputs
    assert not [finding for finding in report.findings if finding.status == "problem"]


@pytest.mark.slow
def test_two_processes_share_the_prompts(place: Path):
    launched(place, "-m", "accelerate.commands.launch", "--num_processes", "2", "--cpu", "--num_machines", "1",
             "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
    run = read_run(place / "output" / "kleash")
    assert run.state == "finished"
    assert [row["step"] for row in run.metrics()] == [0, 2, 4]
    rows = [json.loads(line) for line in (place / "output" / "kleash" / "prompts.jsonl").read_text().splitlines()]
    assert all(len(row["kl"]) == 6 and None not in row["kl"] + row["gold"] for row in rows)
