"""From what a file claims about a question to an `Example` that can be trusted, or to dropping it.

Pure but for its tally. Knows nothing of formats; the search for an answer's place is `repair`'s.

Training and evaluation differ in one point. A gold text that the context does not contain cannot be trained
on: it is dropped, and with its last answer the question. In evaluation SQuAD's scripts still score against
it, so it is kept, without a position, and the question with it.

Whether a question has an answer is decided by its answers, as SQuAD v2.0's evaluation decides it;
`is_impossible` is heard only when there are none.
"""

from __future__ import annotations

import hashlib
import re

from plough.errors import DataError
from plough.tasks.question_answering.examples import Answer, Example
from plough.tasks.question_answering.reading.answer_fields import Claim, claims_of
from plough.tasks.question_answering.reading.ledger import Ledger
from plough.tasks.question_answering.reading.raw import RawQuestion, shown
from plough.tasks.question_answering.reading.repair import ContextFinder, How

__all__ = ["Settler"]

_CODES: dict[How, str] = {
    "moved": "offset_moved",
    "found": "offset_found",
    "utf16": "offset_utf16",
    "bytes": "offset_bytes",
    "folded": "text_folded",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_FLAGS: dict[object, bool | None] = {
    None: None,
    "": None,
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "yes": True,
    "no": False,
}


class Settler:
    """Settles the questions of one file, in order: ids are unique among those it has kept."""

    def __init__(self, path: str, ledger: Ledger, *, require_answers: bool) -> None:
        self._path = path
        self._ledger = ledger
        self._require_answers = require_answers
        self._ids: set[str] = set()
        self._finder = ContextFinder("")

    def settle(self, raw: RawQuestion) -> Example | None:
        """The example, or None when the question is dropped; either is tallied.

        DataError, naming file and place, for a field of a type that cannot be meant.
        """
        case = _Case(self._path, raw)
        question, context = case.text("question"), case.text("context")
        if not question.strip():
            return self._drop(case, "question_empty")
        if not context.strip():
            return self._drop(case, "context_empty")
        claims = case.claims()
        flag = case.flag()
        usable = [claim for claim in claims or () if claim.text.strip()]
        answers: list[Answer] = []
        impossible = False
        if usable:
            for claim in claims or ():
                answers.extend(self._answers(case, claim, context))
            if not answers:
                return self._drop(case, "answers_lost")
            if flag:
                case.add("not_impossible")
        elif flag is False or (claims is None and flag is None):
            for _ in claims or ():
                case.add("answer_empty")
            if self._require_answers:
                return self._drop(case, "unlabelled")
        else:
            impossible = True
            if claims and flag is None:
                case.add("empty_is_none")
        example = Example(
            id=self._unique_id(case, question, context),
            question=question,
            context=context,
            answers=tuple(answers),
            title=case.text("title"),
            impossible=impossible,
        )
        if case.surrogates:
            case.add("surrogate")
        self._ledger.keep(case.entries)
        return example

    def _drop(self, case: _Case, code: str) -> Example | None:
        case.add(code)
        self._ledger.drop(case.entries)
        return None

    def _answers(self, case: _Case, claim: Claim, context: str) -> list[Answer]:
        """The one answer that a claim comes to, or none."""
        text = case.whole(claim.text)
        if not text.strip():
            case.add("answer_empty")
            return []
        if self._finder.context is not context:  # the questions of a paragraph share it
            self._finder = ContextFinder(context)
        place = self._finder.place(text, claim.start)
        if place is None:
            case.add("answer_absent" if self._require_answers else "answer_unplaced", shown(text))
            return [] if self._require_answers else [Answer(text, None)]
        if claim.number:
            case.add("answer_number", shown(text))
        if place.trimmed:
            case.add("edge_whitespace", shown(text))
        own = context[place.start : place.end]
        if place.how != "exact":
            claimed = "no offset" if claim.start is None else str(claim.start)
            found = f" as {shown(own)}" if place.how == "folded" else ""
            case.add(_CODES[place.how], f"{shown(text)} at {claimed}, found at {place.start}{found}")
        return [Answer(own, place.start)]

    def _unique_id(self, case: _Case, question: str, context: str) -> str:
        given = case.raw.id
        if isinstance(given, float) and given.is_integer():
            given = int(given)  # a table's column of integers with gaps
        if isinstance(given, int) and not isinstance(given, bool):
            case.add("id_number")
            given = str(given)
        if not isinstance(given, str) or not given.strip():
            # The same question gets the same id in every run and on every rank.
            content = f"{question}\0{context}".encode("utf-8", "replace")
            given = hashlib.sha256(content).hexdigest()[:24]
            case.add("id_missing", f"became {given}")
        given = case.whole(given)
        unique, number = given, 1
        while unique in self._ids:
            number += 1
            unique = f"{given}-{number}"
        if unique != given:
            case.add("id_duplicate", f"became {unique}")
        self._ids.add(unique)
        return unique


class _Case:
    """A question being settled: its raw fields as clean values, and what was done to it so far."""

    def __init__(self, path: str, raw: RawQuestion) -> None:
        self._path = path
        self.raw = raw
        self.entries: list[tuple[str, str]] = []
        self.surrogates = False

    def add(self, code: str, detail: str = "") -> None:
        name = "" if self.raw.id is None else f" (id {self.raw.id})"
        self.entries.append((code, f"{self.raw.locator}{name}" + (f": {detail}" if detail else "")))

    def whole(self, text: str) -> str:
        """`text` without halves of characters, which tokenizers refuse; as long as before."""
        if _SURROGATE.search(text) is None:
            return text
        self.surrogates = True
        return _SURROGATE.sub("\ufffd", text)

    def text(self, field: str) -> str:
        value = getattr(self.raw, field)
        if value is None:
            return ""
        if isinstance(value, (dict, list, tuple, bytes)):
            raise self._error(f"its {field} is a {type(value).__name__}, expected text")
        return self.whole(value if isinstance(value, str) else str(value))

    def claims(self) -> list[Claim] | None:
        try:
            return claims_of(self.raw.answers)
        except ValueError as error:
            raise self._error(str(error)) from error

    def flag(self) -> bool | None:
        value = self.raw.impossible
        known = value.strip().lower() if isinstance(value, str) else value
        if isinstance(known, (int, float)):
            return bool(known)
        if isinstance(known, (dict, list)) or known not in _FLAGS:
            raise self._error(f"is_impossible is {shown(value)}, expected true or false")
        return _FLAGS[known]

    def _error(self, what: str) -> DataError:
        return DataError(
            f"{self._path}: {self.raw.locator}: {what}",
            hint='answers look like {"text": ["..."], "answer_start": [0]} or'
            ' [{"text": "...", "answer_start": 0}]',
        )
