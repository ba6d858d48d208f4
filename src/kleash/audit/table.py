"""How do findings look on a terminal? Problems first with causes and fix, what is open, one line per check."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kleash.audit.engine import Check
    from kleash.audit.findings import CheckedInput, Finding

__all__ = ["catalogue_view", "report_view"]

STYLES = {"problem": "bold red", "cannot-tell": "yellow", "ok": "green", "not-run": "dim"}
FEW, MANY = 3, 60  # inputs of a folder that are all shown in full; files of it that all have a row
MARKS = {"problem": "✗", "cannot-tell": "?", "ok": "✓", "not-run": "·"}


def report_view(
    inputs: Sequence[CheckedInput],
    findings: Sequence[Finding],
    summary: str,
    *,
    files: Sequence[Mapping[str, Any]] = (),
) -> RenderableType:
    """Everything a person needs from a report; of a folder what each file is, and in full those with a problem."""
    parts: list[RenderableType] = [_files(_grouped(files), findings), Text()] if files else []
    brief = bool(files) and len(inputs) > FEW
    for item in inputs:
        mine = [finding for finding in findings if finding.input == item.path]
        if brief and not any(finding.status == "problem" for finding in mine):
            continue
        counted = _LINES.get(item.kind, _dump_line)(item)
        parts += [
            Text.assemble((item.path, "bold"), f"  {counted}"),
            *_reach(item.facts),
            *_effective(item.facts),
            Text(),
        ]
        parts += [_table(mine), Text()]
        parts += [_not_run(mine)] if any(f.status == "not-run" for f in mine) else []
    failed = any(finding.status == "problem" for finding in findings)
    parts += [Text("In full are those with a problem; kleash check FILE shows another."), Text()] if brief else []
    return Group(*parts, Text(summary + ".", style="bold red" if failed else "bold"))


def _files(files: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> Table:
    """A row per file of a folder: what it is and how many problems it has, or why it is not checked."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("", width=1, no_wrap=True)
    table.add_column("File", ratio=1, overflow="fold")
    table.add_column("What it is", ratio=2)
    above = _common([str(file["path"]) for file in files])
    for file in files:
        name = Text(str(file["path"]).removeprefix(above) + str(file.get("more", "")))
        if file["why"]:
            status, words = "not-run", _short(str(file["why"]))
        else:
            mine = [f for f in findings if f.input == file["path"] or f.input.startswith(f"{file['path']}#")]
            status = next((s for s in ("problem", "cannot-tell") if any(f.status == s for f in mine)), "ok")
            counted = "configuration" if file["kind"] == "config" else f"{file['rows'] or 0:,} rows"
            words = f"{file['trainer'] or 'rollout dump'}, {counted}: {_counted(mine)}"
        table.add_row(Text(MARKS[status], style=STYLES[status]), name, Text(words, style="dim" * bool(file["why"])))
    return table


def _grouped(files: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The rows; of more than `MANY`, those that are left out for one reason as one row."""
    alike = Counter(file["why"] for file in files)
    if len(files) <= MANY:
        return files
    first = {file["why"]: file["path"] for file in reversed(files)}
    more = {why: f"  and {count - 1} more" if count > 1 else "" for why, count in alike.items()}
    kept = [file for file in files if not file["why"] or first[file["why"]] == file["path"]]
    return [{**file, "more": more[file["why"]] if file["why"] else ""} for file in kept]


def _short(why: str) -> str:
    """Of ``thing: expected this, got that`` what it is, with at most four of its keys."""
    expected, _, got = why.partition(": expected ")[2].rpartition(", got ")
    if not expected:
        return why
    if not got.startswith(("keys ", "columns ")):
        return f"no {expected}"
    keys = [key for key in got.partition(" ")[2].split(", ") if key != "..."]
    shown = ", ".join(keys[:4]) + ", ..." * (len(keys) > 4)
    scored = {"prompt", "completion", "response"} & set(keys)
    return f"{shown}: scored answers? kleash forecast reads them" if scored else f"no log or dump: {shown}"


def _common(paths: Sequence[str]) -> str:
    """The folder that all lie in, with its slash."""
    shared = os.path.commonpath([os.path.dirname(path) for path in paths])
    return f"{shared}{os.sep}" if shared else ""


def _counted(findings: Sequence[Finding]) -> str:
    problems = [finding.code for finding in findings if finding.status == "problem"]
    ok, open_ = (sum(finding.status == status for finding in findings) for status in ("ok", "cannot-tell"))
    said = [", ".join(problems)] if problems else []
    return ", ".join([*said, *([f"{open_} cannot tell"] if open_ else []), f"{ok} ok"])


def _dump_line(item: CheckedInput) -> str:
    counted = f"{item.rows:,} answers"
    tokens = item.facts.get("tokens")
    counted += "" if tokens is None else f", {tokens:,} counted tokens"
    kl = item.facts.get("kl_per_answer")
    return counted + ("" if kl is None else f", KL {kl:.3g} nats per answer")


def _log_line(item: CheckedInput) -> str:
    facts = item.facts
    said = f"{item.trainer}, {item.rows:,} rows, penalty: {facts['placement']}"
    found = facts["coefficient"]
    said += "" if found is None else f", coefficient {found['value']:.3g} ({found['from']})"
    unit = facts["logged_kl_unit"] or "(in a unit that is not known)"
    return said + ("" if facts["kl_last"] is None else f", last KL {facts['kl_last']:.3g} {unit}")


def _reach(facts: dict[str, Any]) -> list[RenderableType]:
    """What the last KL of a log means, in one line; why it cannot be told."""
    if facts.get("kl_last") is None:
        return []
    if facts.get("gain_at_most") is None:
        missing = "the KL's unit" if facts["logged_kl_unit"] is None else "the length of answers"
        missing = "a KL of 0 or more, of the policy" if facts["length_last"] or facts["kl_last"] < 0 else missing
        return [Text(f"nats an answer: cannot tell without {missing}")]
    kl, length, answers = facts["kl_last_per_answer"], facts["length_last"], facts["answers_to_see"]
    product = f"{facts['kl_last']:.3g} a token x {length:.0f} tokens = " if "token" in facts["logged_kl_unit"] else ""
    share = 100 * facts["gain_at_most"]
    gain = (
        "a judge may gain all of its range" if share == 100 else f"no judge gains more than {share:.2g} % of its range"
    )
    see = f"{max(2.0, answers):,.0f}" if answers is not None and answers < 1e6 else "a million"
    return [
        Text(f"{product}{kl:.3g} nats an answer: {gain}; at least {see} reference answers to a prompt see that far")
    ]


def _config_line(item: CheckedInput) -> str:
    found = item.facts["coefficient"]
    said = f"{item.trainer}, {item.rows} option{'s' * (item.rows != 1)} of its KL, penalty: {item.facts['placement']}"
    return said + ("" if found is None else f", coefficient {found['value']:g} ({found['from']})")


_LINES = {"log": _log_line, "rollouts": _dump_line, "config": _config_line}


def _effective(facts: dict[str, object]) -> list[RenderableType]:
    found, reason = facts.get("effective_beta"), facts.get("effective_beta_reason")
    if not isinstance(found, dict):
        return [Text(f"effective beta: {reason}")] if reason else []
    value, low, high, r2 = (found[name] for name in ("value", "lo", "hi", "r2"))
    return [Text(f"effective beta {value:.3g} [{low:.3g}, {high:.3g}], R² {r2:.2f}")]


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("", width=1, no_wrap=True)
    table.add_column("Check", no_wrap=True)
    table.add_column("What it found", ratio=1)
    told: dict[tuple[str, ...], str] = {}
    for status in ("problem", "cannot-tell", "ok"):
        for finding in findings:
            if finding.status == status:
                mark = Text(MARKS[status], style=STYLES[status])
                table.add_row(mark, Text(finding.code, style=STYLES[status]), _told(finding, told))
    return table


def _told(finding: Finding, told: dict[tuple[str, ...], str]) -> RenderableType:
    """The message, and for what is not ok its causes and what to do; advice given once is not repeated."""
    text = Text(finding.message)
    if finding.status == "ok":
        return text
    first = told.setdefault(finding.causes, finding.code) if finding.causes else finding.code
    if first != finding.code:
        return Group(text, Padding(Text(f"causes as for {first}"), (0, 0, 0, 2)))
    lines = [f"{'or' if i else 'likely'}: {cause}" for i, cause in enumerate(finding.causes)]
    more = [Text(line) for line in lines] + ([Text(f"do: {finding.fix}", style="bold")] if finding.fix else [])
    return Group(text, *(Padding(line, (0, 0, 0, 2)) for line in more))


def _not_run(findings: Sequence[Finding]) -> RenderableType:
    """One line per reason, with the checks that it kept from running."""
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        if finding.status == "not-run":
            reasons.setdefault(finding.message, []).append(finding.code)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column("", width=1)
    table.add_column("", ratio=3)
    table.add_column("", ratio=4)
    for reason, codes in reasons.items():
        table.add_row(MARKS["not-run"], ", ".join(codes), f"not run: {reason}", style=STYLES["not-run"])
    return Group(table, Text())


def catalogue_view(
    checks: Sequence[Check[Any]], log_checks: Sequence[Check[Any]], config_checks: Sequence[Check[Any]]
) -> RenderableType:
    """The catalogue: what each check asks, what it needs, when it says problem."""
    return Group(
        Text("Checks of rollout dumps", style="bold"),
        _listed(checks),
        Text("\nChecks of training logs", style="bold"),
        _listed(log_checks),
        Text("\nChecks of configurations", style="bold"),
        _listed(config_checks),
    )


def _listed(checks: Sequence[Check[Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("Check", no_wrap=True)
    table.add_column("Asks, needs, and says problem when", ratio=1)
    for check in checks:
        wanted = ", ".join(need.words for need in check.needs) or "nothing more"
        table.add_row(
            check.code,
            Group(Text(check.asks), Text(f"needs: {wanted}", style="dim"), Text(f"problem: {check.rule}", style="dim")),
        )
    return table
