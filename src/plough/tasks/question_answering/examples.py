"""What a question is once it has been read, and the account of how reading went.

Frozen data and its rendering only: knows nothing of file formats (`reading`), of tokens or of torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Answer", "Example", "Finding", "Kind", "ReadReport", "Reason", "merge_reports", "render_finding"]

Kind: TypeAlias = Literal["repaired", "dropped", "unplaced", "noted"]

KIND_TITLES: dict[Kind, str] = {
    "repaired": "repaired",
    "dropped": "dropped",
    "unplaced": "kept for scoring only",
    "noted": "noted",
}


class Answer(msgspec.Struct, frozen=True):
    """A gold answer. Placed: `context[start : start + len(text)] == text`, in Python characters.

    `start` is None only in evaluation, for a gold text that the context does not contain: it is scored
    against (as SQuAD's own scripts would) but cannot be trained on.
    """

    text: str
    start: int | None


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """A question about a context.

    id: unique within its file.
    answers: the gold answers in file order; empty when impossible, and when nobody labelled the question.
    title: "" when the file has none.
    impossible: labelled as having no answer in the context (SQuAD v2.0).
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    title: str = ""
    impossible: bool = False

    @property
    def labelled(self) -> bool:
        """Whether predictions for this question can be scored."""
        return self.impossible or bool(self.answers)


class Reason(msgspec.Struct, frozen=True):
    """Something that reading may have to do to a question or an answer, with the words to say it.

    `unit` is the singular noun that counts are of. Anything but "noted" makes `strict` reading fail:
    what is noted loses and changes nothing (an integer id written as text).
    """

    code: str
    kind: Kind
    unit: Literal["question", "answer"]
    text: str


class Finding(msgspec.Struct, frozen=True):
    """How often one `Reason` applied in a file, and the first items it applied to, each with its locator."""

    reason: Reason
    count: int
    first: tuple[str, ...] = ()


class ReadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The account of one read: what was in the files and what became of it.

    paths, formats: one entry per file, in reading order.
    read: questions looked at; fewer than the files hold when a limit stopped the reading.
    kept: questions returned. `read - kept` were dropped.
    repaired: kept questions that needed at least one repair.
    findings: per reason, in the order in which reasons first applied. An answer can have several reasons.
    """

    paths: tuple[str, ...]
    formats: tuple[str, ...]
    read: int
    kept: int
    repaired: int
    findings: tuple[Finding, ...] = ()

    @property
    def dropped(self) -> int:
        """Questions that were read and not kept."""
        return self.read - self.kept

    def counts(self, kind: Kind | None = None) -> dict[str, int]:
        """Count per reason code, of one kind or of all."""
        return {f.reason.code: f.count for f in self.findings if kind is None or f.reason.kind == kind}

    def of_kind(self, *kinds: Kind) -> tuple[Finding, ...]:
        """The findings of these kinds, in report order."""
        return tuple(f for f in self.findings if f.reason.kind in kinds)

    def to_builtins(self) -> dict[str, Any]:
        """The report as JSON-able dicts, lists, text and numbers; `dropped` included."""
        built: dict[str, Any] = msgspec.to_builtins(self)
        built["dropped"] = self.dropped
        return built

    def render(self) -> str:
        """The report as a block of text for a terminal, without a trailing newline."""
        lines = [f"{path}: {format_}" for path, format_ in zip(self.paths, self.formats, strict=True)]
        lines.append(
            f"  {_counted(self.read, 'question')} read, {self.kept:,} kept,"
            f" {self.repaired:,} repaired, {self.dropped:,} dropped"
        )
        for kind, title in KIND_TITLES.items():
            findings = self.of_kind(kind)
            if findings:
                lines.append(f"  {title}:")
                for finding in findings:
                    lines.extend(render_finding(finding, indent="    "))
        return "\n".join(lines)


def render_finding(finding: Finding, *, indent: str) -> list[str]:
    """The lines that tell of one finding: its count and reason, then its first items, then how many more."""
    lines = [f"{indent}{_counted(finding.count, finding.reason.unit)}: {finding.reason.text}"]
    lines.extend(f"{indent}  {item}" for item in finding.first)
    more = finding.count - len(finding.first)
    if more > 0 and finding.first:
        lines.append(f"{indent}  and {more:,} more")
    return lines


def merge_reports(reports: Iterable[ReadReport], *, keep_first: int = 3) -> ReadReport:
    """One report for several files: counts added, first items prefixed by the file they are in.

    `keep_first` bounds the items kept per reason. Raises ValueError when there is no report.
    """
    parts = list(reports)
    if not parts:
        raise ValueError("merge_reports needs at least one report")
    if len(parts) == 1:
        return parts[0]
    merged: dict[str, Finding] = {}
    for part in parts:
        # A report that is itself a merge has its items prefixed already.
        prefix = f"{Path(part.paths[0]).name}: " if len(part.paths) == 1 else ""
        for finding in part.findings:
            first = tuple(prefix + item for item in finding.first)
            known = merged.get(finding.reason.code)
            if known is None:
                merged[finding.reason.code] = Finding(finding.reason, finding.count, first[:keep_first])
            else:
                merged[finding.reason.code] = Finding(
                    known.reason, known.count + finding.count, (known.first + first)[:keep_first]
                )
    return ReadReport(
        paths=_concatenated(part.paths for part in parts),
        formats=_concatenated(part.formats for part in parts),
        read=sum(part.read for part in parts),
        kept=sum(part.kept for part in parts),
        repaired=sum(part.repaired for part in parts),
        findings=tuple(merged.values()),
    )


def _concatenated(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(item for group in groups for item in group)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
