"""What does a log say about its own configuration? Printed settings, command lines, and small files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kleash.trainers import TRAINERS, option_names
from kleash.trainers.options import flatten

__all__ = ["ConfigScan", "Neighbours", "neighbours"]

_GENERAL = (
    "calculate_per_token_loss", "disable_dropout", "entropy_coef", "entropy_coeff", "init_coef", "learning_rate",
    "logging_steps", "loss_fn", "max_completion_length", "reward_weights", "sync_ref_model", "token_level_loss",
    "train_batch_size", "use_on_policy_kl_approximation",
)  # fmt: skip
_ALIASES, _OWN = option_names()
_NAMES = (*_GENERAL, *sorted(_OWN))
_WORDS = "|".join(sorted((re.escape(n).replace("_", "[_-]") for n in _NAMES), key=len, reverse=True))
_DOTTED_WORDS = "|".join(re.escape(name) for name in sorted(_ALIASES, key=len, reverse=True))
_VALUE = r"""('[^']*'|"[^"]*"|\[[^\]]*\]|[^\s,{}()'"\[\]]+)"""
_SETTING = re.compile(rf"""['"](?:[\w.]+\.)?({_WORDS})['"]\s*:\s*{_VALUE}|(?:^|[\s,(+.])({_WORDS})={_VALUE}""")
_FLAG = re.compile(
    rf"(?:^|\s)--((?:[\w-]+\.)*(?:{_WORDS}|{_DOTTED_WORDS}))(?:(?:=|\s+)(?!-[-a-zA-Z])([^\s\\]+))?(?=\s|$|\\)"
)
_DOTTED = re.compile(rf"^\s*({_WORDS}) \.{{3,}} (\S+)")
_YAML = re.compile(rf"^(\s*)(?:- )?({_WORDS})\s*:\s*(\S.*)?$")
_WORDY = {"beta", "target", "horizon", "loss_fn", "learning_rate", "kl_penalty"}
"""Names that a printed answer may hold as well ("let beta=4"): believed only where the line is one of settings."""
_ALONE = re.compile(rf"""^\s*[{{(]*\s*(?:[\w.]+\.)?['"]?(?:{_WORDS})['"]?\s*[:=]\s*{_VALUE}\s*[,)}}]+\s*$""")
_PROGRAMS = "|".join(sorted({re.escape(trainer.command) for trainer in TRAINERS.values() if trainer.command}))
_COMMAND = re.compile(rf"^\s*--|\.py\b|\b(?:python3?|torchrun|accelerate|deepspeed|ray job|{_PROGRAMS})\s")
_OBJECT = re.compile(r"\b\w*(?:Config|Args|Arguments|Namespace|Parameters)\(")
_SETTINGS = 3
_CARDS = {trainer.card for trainer in TRAINERS.values()} - {""}
_HINT = ("kl", "beta", "loss_", "--", "horizon", "_estimator", "reward_weights")
_LONGEST = 50_000
_SMALL = 1 << 22


def plain(text: str) -> Any:
    """A setting's value from its text.

    Examples
    --------
    >>> plain("0.001"), plain("True"), plain("'k3'"), plain("null"), plain("[1.0, 0.0]")
    (0.001, True, 'k3', None, [1.0, 0.0])
    """
    text = text.strip().rstrip(",").strip("'\"")
    known = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in known:
        return known[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        pass
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


class ConfigScan:
    """Collects settings line by line; the first value of a name stands."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def see(self, text: str) -> None:
        """Look for settings in one line that is not a row of metrics."""
        if len(text) > _LONGEST or not any(hint in text for hint in _HINT):
            return
        pairs = [(quoted or bare, value or given) for quoted, value, bare, given in _SETTING.findall(text)]
        listed = len(pairs) >= _SETTINGS or _ALONE.match(text) is not None or _OBJECT.search(text) is not None
        command = _COMMAND.search(text) is not None
        for name, value in pairs:
            if listed or command or name not in _WORDY:
                self._put(name, value)
        for name, value in _FLAG.findall(text):
            if command or name not in _WORDY:
                self._put(name, value or "True")
        if (dotted := _DOTTED.match(text)) is not None:
            self._put(dotted[1], dotted[2])

    def take(self, row: Mapping[str, Any]) -> None:
        """Settings among the values of a row that is none of metrics."""
        for name in _NAMES:
            if name in row and (row[name] is None or isinstance(row[name], bool | int | float | str | list)):
                self.found.setdefault(name, row[name])

    def nested(self, table: Mapping[str, Any]) -> None:
        """Settings in a configuration that somebody kept whole: nested, or flat with dots or slashes in its names."""
        for full, value in flatten(table).items():
            name = full.replace("/", ".")
            own = next((key for key in _ALIASES if f".{name}".endswith(f".{key}")), name.rsplit(".", 1)[-1])
            if own in _ALIASES or own in _NAMES:
                self._put(own, value)

    def yaml(self, text: str) -> None:
        """Look for settings in a YAML file: ``name: value`` at any depth, or wandb's ``name:`` over ``value:``."""
        waiting = ""
        for line in text.splitlines():
            if (match := _YAML.match(line)) is not None:
                if match[3] and not match[3].startswith("#"):
                    self._put(match[2], match[3].split(" #")[0])
                waiting = "" if match[3] else match[2]
            elif waiting and (value := re.match(r"^\s+value:\s*(\S.*)$", line)) is not None:
                self._put(waiting, value[1])
                waiting = ""

    def _put(self, name: str, value: Any) -> None:
        name = _ALIASES.get(name, name.rsplit(".", 1)[-1].replace("-", "_"))
        self.found.setdefault(name, plain(value) if isinstance(value, str) else value)


class Neighbours:
    """What the files beside a log say: settings, versions, which trainer wrote the model card."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        self.tag: str = ""


def neighbours(log: Path) -> Neighbours:
    """Read model card, arguments and configuration beside a log, or one folder up from a checkpoint."""
    found = Neighbours()
    folders = [log.parent]
    if log.parent.name.startswith("checkpoint"):
        folders.append(log.parent.parent)
    scan = ConfigScan()
    for folder in folders:
        card = small(folder / "README.md")
        found.versions = dict(re.findall(r"^- ([\w-]+): *(\S+)", card, re.MULTILINE)) | found.versions
        tags = [tag for tag in re.findall(r"^- ([\w-]+)\s*$", card, re.MULTILINE) if tag in _CARDS]
        found.tag = found.tag or (tags[0] if tags else "")
        for name in ("training_args.json", "args.json", "trainer_args.json"):
            _take_json(scan, small(folder / name))
        for name in ("config.yaml", "training_args.yaml", ".hydra/config.yaml"):
            scan.yaml(small(folder / name))
    found.config = scan.found
    return found


def _take_json(scan: ConfigScan, text: str) -> None:
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        scan.take(value)


def small(path: Path) -> str:
    """The text of a file that lies beside a log; empty where there is none to read."""
    try:
        if not path.is_file() or path.stat().st_size > _SMALL:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
