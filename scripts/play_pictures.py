"""The pictures of `kleash play` for README and docs: the animation, and the page as Chromium shows it.

python scripts/play_pictures.py docs/pictures
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from kleash.report.animation import animate
from kleash.report.play import write_play

SETTING = "beta=7.25&oversalt=0.0005"


def play_pictures(folder: Path) -> list[Path]:
    """Write leash.gif and, where Chromium is, play.png into a folder; returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    animate(folder / "leash.gif")
    chromium = shutil.which("chromium")
    if chromium is None:
        print("play.png: left as it is, there is no chromium here", file=sys.stderr)
        return [folder / "leash.gif"]
    with tempfile.TemporaryDirectory() as home:
        page, picture = Path(home) / "play.html", Path(home) / "play.png"
        write_play(page)
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        flags += [f"--user-data-dir={home}/profile", "--hide-scrollbars", "--window-size=1280,1440"]
        flags += [f"--screenshot={picture}"]
        subprocess.run([chromium, *flags, f"{page.as_uri()}#{SETTING}"], check=True, capture_output=True, timeout=120)
        shutil.copyfile(picture, folder / "play.png")
    return [folder / "leash.gif", folder / "play.png"]


if __name__ == "__main__":
    for path in play_pictures(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/pictures")):
        print(path)
