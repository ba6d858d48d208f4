"""``kleash sample`` against a real server: transformers' own, with a tiny model made from a configuration."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scipy import stats

for _package in ("openai", "fastapi", "uvicorn"):
    pytest.importorskip(_package)

sys.path.insert(0, str(Path(__file__).parents[1] / "sampling"))
from pantry import PROMPTS, save_model  # noqa: E402

from kleash.sampling.model import Server  # noqa: E402
from kleash.sampling.run import sample  # noqa: E402

pytestmark = pytest.mark.trl


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A folder with a model, and the address where it is served."""
    folder = save_model(tmp_path_factory.mktemp("models") / "small")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder), "--device", "cpu"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, env=offline, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None
            time.sleep(0.2)
        yield folder, f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def length(prompts, completions, **columns):
    return [float(len(text.split())) for text in completions]


def first_words(frame):
    words = frame["answer"].str.split(" ").list.first()
    return {word: int((words == word).sum()) for word in words.unique()}


def test_its_answers_are_those_of_the_model(server):
    """Its first words are drawn like those here: chi-squared, an honest server fails once in a thousand."""
    folder, url = server
    asked = {"model": folder, "judge": length, "max_new_tokens": 2, "k": 250}
    theirs = sample(PROMPTS[:1], url=Server(url=url, at_once=16), **asked)
    assert "sampling not verified" in theirs.cost()
    assert theirs.drawn == theirs.frame.height == 250
    mine, other = first_words(sample(PROMPTS[:1], **asked).frame), first_words(theirs.frame)
    words = sorted(mine | other)
    table = [[counts.get(word, 0) for word in words] for counts in (mine, other)]
    assert len(words) > 5
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_every_draw_is_another_answer(server):
    folder, url = server
    frame = sample(PROMPTS, model=folder, url=url, judge=length, k=10, max_new_tokens=12).frame
    assert frame.group_by("prompt_id").n_unique()["answer"].min() > 5
    assert frame["n_tokens"].max() == 12
    assert set(frame["finished"]) == {True, False}
