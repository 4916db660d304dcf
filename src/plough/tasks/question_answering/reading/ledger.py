"""The reasons that reading can have, in words, and the tally of them while a file is read.

Knows nothing of how a reason comes about (`settle`).
"""

from __future__ import annotations

from plough.tasks.question_answering.examples import Finding, Kind, ReadReport, Reason

__all__ = ["REASONS", "Ledger"]

REASONS: dict[str, Reason] = {
    reason.code: reason
    for reason in (
        Reason("offset_moved", "repaired", "answer", "answer_start was wrong; moved to the text's place"),
        Reason("offset_found", "repaired", "answer", "answer_start was missing or negative; text found"),
        Reason("offset_utf16", "repaired", "answer", "answer_start counted UTF-16 code units"),
        Reason("offset_bytes", "repaired", "answer", "answer_start counted UTF-8 bytes"),
        Reason(
            "text_folded",
            "repaired",
            "answer",
            "the text differed in case, spacing or Unicode form; the context's own text taken",
        ),
        Reason("edge_whitespace", "repaired", "answer", "whitespace at the edges trimmed"),
        Reason("empty_is_none", "repaired", "question", "an empty answer text was read as 'no answer'"),
        Reason("not_impossible", "repaired", "question", "is_impossible denied its answers; answers kept"),
        Reason("surrogate", "repaired", "question", "half characters (lone surrogates) replaced by U+FFFD"),
        Reason("id_missing", "repaired", "question", "no id; one made from question and context"),
        Reason("id_duplicate", "repaired", "question", "the id was taken by a question before; made unique"),
        Reason("question_empty", "dropped", "question", "the question is empty"),
        Reason("context_empty", "dropped", "question", "the context is empty"),
        Reason("unlabelled", "dropped", "question", "no answer is given, nor that there is none"),
        Reason("answers_lost", "dropped", "question", "none of its answers is in the context"),
        Reason("answer_empty", "dropped", "answer", "the answer text is empty"),
        Reason("answer_absent", "dropped", "answer", "the context does not contain the text"),
        Reason("answer_unplaced", "unplaced", "answer", "the context does not contain the gold text"),
        Reason("id_number", "noted", "question", "the id was a number; written as text"),
        Reason("answer_number", "noted", "answer", "the answer text was a number; written as text"),
    )
}


class Ledger:
    """Counts reasons and keeps the first `keep_first` items of each."""

    def __init__(self, *, keep_first: int = 3) -> None:
        self._keep_first = keep_first
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[str]] = {}
        self.read = 0
        self.kept = 0
        self.repaired = 0

    def drop(self, entries: list[tuple[str, str]]) -> None:
        """A question that was not kept. What was repaired or noted in it no longer matters."""
        self.read += 1
        for code, item in entries:
            if REASONS[code].kind == "dropped":
                self._count(code, item)

    def keep(self, entries: list[tuple[str, str]]) -> None:
        """A question that was kept, with the (reason code, item) pairs of what was done to it."""
        self.read += 1
        self.kept += 1
        kinds: set[Kind] = {REASONS[code].kind for code, _ in entries}
        self.repaired += "repaired" in kinds
        for code, item in entries:
            self._count(code, item)

    def _count(self, code: str, item: str) -> None:
        self._counts[code] = self._counts.get(code, 0) + 1
        first = self._first.setdefault(code, [])
        if len(first) < self._keep_first:
            first.append(item)

    def report(self, path: str, format_: str) -> ReadReport:
        """The account so far."""
        return ReadReport(
            paths=(path,),
            formats=(format_,),
            read=self.read,
            kept=self.kept,
            repaired=self.repaired,
            findings=tuple(
                Finding(REASONS[code], count, tuple(self._first[code]))
                for code, count in self._counts.items()
            ),
        )
