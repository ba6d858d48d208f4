"""The animation of the dial: what it shows, how long and how large it is, and that it is the same each time."""

import io
import math
import re

import pytest
import vl_convert
from click.testing import CliRunner
from PIL import Image

from kleash.cli import cli
from kleash.errors import OptionError
from kleash.playground import animation, drawing, kitchen


def pixels(svg):
    return Image.open(io.BytesIO(vl_convert.svg_to_png(svg))).convert("RGB")


def test_the_dial_turns_from_loose_to_tight_and_back():
    betas = [beta for beta, _, _ in animation.script()]
    tightest = betas.index(math.inf)
    assert betas[0] == betas[-1] == 0.0
    assert betas[: tightest + 1] == sorted(betas[: tightest + 1])
    assert betas[tightest:] == sorted(betas[tightest:], reverse=True)
    assert [beta for beta in betas if beta in animation.BETAS] == [*animation.BETAS, 0.0]


def test_the_table_fills_up_and_never_ahead_of_the_dial():
    filled = [rows for _, rows, _ in animation.script()]
    assert filled == sorted(filled)
    for beta, rows, _ in animation.script()[: filled.index(6) + 1]:
        assert animation.BETAS[rows - 1] <= beta


def test_it_is_short_enough_to_be_watched():
    assert sum(milliseconds for _, _, milliseconds in animation.script()) < 15_000


def test_a_frame_is_drawn_by_the_drawing_code_of_the_page():
    frame = animation.frame_svg(15.0, filled=4)
    now = kitchen.read(15.0)
    for part in (drawing.leash(now), drawing.knob(now), drawing.gauge(now, "judge"), drawing.gauge(now, "quality")):
        assert part in frame
    assert "1.541" in frame
    assert ">9.68<" not in frame, "a row that the dial has not reached"


def test_words_are_drawn():
    frame = animation.frame_svg(math.inf, filled=6)
    bare = re.sub(r"<text[^>]*>.*?</text>", "", frame)
    ink = [sum(pixels(svg).convert("L").point(lambda v: v < 128).histogram()[1:]) for svg in (frame, bare)]
    assert ink[0] > ink[1] + 3000


def test_more_rows_than_there_are_is_an_error():
    with pytest.raises(OptionError, match="filled: expected from 0 to 6, got 7"):
        animation.frame_svg(1.0, filled=7)


def test_another_ending_is_refused_and_nothing_is_written(tmp_path):
    done = CliRunner().invoke(cli, ["play", "--animate", str(tmp_path / "leash.mp4")])
    assert done.exit_code == 2
    assert "animation's ending: expected one of .gif, .webp" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def three_frames(monkeypatch):
    """Fewer frames: the writing is tested here, the whole script in the slow test."""
    frames = animation.script()
    monkeypatch.setattr(animation, "script", lambda: [frames[0], frames[20], frames[-1]])
    return [frames[0], frames[20], frames[-1]]


@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_the_file_holds_the_frames_and_is_the_same_each_time(tmp_path, three_frames, ending):
    for name in ("one", "two"):
        animation.animate(tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()
    with Image.open(tmp_path / f"one.{ending}") as picture:
        assert picture.size == (animation.WIDTH, animation.HEIGHT)
        assert picture.n_frames == 3
        assert picture.info["loop"] == 0
        for number, (beta, filled, milliseconds) in enumerate(three_frames):
            picture.seek(number)
            picture.load()
            assert picture.info["duration"] == milliseconds
            drawn = pixels(animation.frame_svg(beta, filled=filled))
            away = [abs(a - b) for a, b in zip(drawn.tobytes(), picture.convert("RGB").tobytes(), strict=True)]
            assert sum(away) / len(away) < 1.0, "mean difference of a channel, of 255"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["gif", "webp"])
def test_the_whole_animation_is_small_enough_for_a_readme(tmp_path, ending):
    animation.animate(tmp_path / f"leash.{ending}")
    assert (tmp_path / f"leash.{ending}").stat().st_size < 3_000_000
    with Image.open(tmp_path / f"leash.{ending}") as picture:
        assert picture.n_frames == len(animation.script())


def test_the_command_writes_the_page_where_it_is_told(tmp_path):
    done = CliRunner().invoke(cli, ["play", "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "open it in a browser" in done.stderr
    assert "How long should the leash be?" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_command_without_options_writes_kleash_play_html(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["play"]).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kleash-play.html"]


def test_with_an_animation_alone_no_page_is_written(tmp_path, monkeypatch, three_frames):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["play", "--animate", "leash.gif"]).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["leash.gif"]


def test_a_folder_that_does_not_exist_is_one_line(tmp_path):
    done = CliRunner().invoke(cli, ["play", "-o", str(tmp_path / "no" / "page.html")])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "expected a folder that exists" in done.stderr
