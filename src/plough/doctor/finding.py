"""One thing the doctor found out, and how a list of them reads. Pure: knows no check and no terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

__all__ = ["SEVERITIES", "Finding", "Severity", "exit_code", "render"]

Severity = Literal["ok", "note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("ok", "note", "warning", "error")

INDENT = "  "


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one check says.

    what: one line. evidence: what was seen. consequence: what it means for a job. fix: a command that mends
    it, to be typed as it is; empty where there is none or nothing needs mending.
    """

    check: str
    severity: Severity
    what: str
    evidence: str = ""
    consequence: str = ""
    fix: str = ""


def exit_code(findings: Sequence[Finding]) -> int:
    """0: nothing worse than a note; 1: warnings; 2: errors."""
    found = {finding.severity for finding in findings}
    return 2 if "error" in found else 1 if "warning" in found else 0


def render(
    findings: Sequence[Finding],
    *,
    width: int = 160,
    paint: Callable[[str, Severity], str] = lambda text, severity: text,
) -> str:
    """The findings as a person reads them: a line each, the rest indented below those not ok, a summary.

    width: columns evidence and consequence are wrapped at; a fix stays whole, to be copied.
    paint: colours a mark.
    """
    marks, names = max(map(len, SEVERITIES)), max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        mark = paint(finding.severity, finding.severity) + " " * (marks - len(finding.severity))
        lines.append(f"{mark}  {finding.check:<{names}}  {finding.what}".rstrip())
        if finding.severity != "ok":
            lines += _details(finding, width)
    return "\n".join([*lines, "", _summary(findings)])


def _details(finding: Finding, width: int) -> list[str]:
    lines = []
    for label in ("evidence", "consequence", "fix"):
        text: str = getattr(finding, label)
        start = f"{INDENT}{label:<11}  "
        if label == "fix" and text:
            lines.append(start + text)
        elif text:
            lines += textwrap.wrap(
                text,
                max(width, len(start) + 20),
                initial_indent=start,
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            )
    return lines


def _summary(findings: Sequence[Finding]) -> str:
    found = Counter(finding.severity for finding in findings)
    parts = [_counted(found[severity], severity) for severity in SEVERITIES if found[severity]]
    return f"{len(findings)} findings: {', '.join(parts)}"


def _counted(count: int, severity: Severity) -> str:
    return f"{count} {severity}{'s' if count > 1 and severity != 'ok' else ''}"
