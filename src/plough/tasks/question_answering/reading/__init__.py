"""Reading question answering files as people have them: `read_examples`.

In the order of the data: `opening` (bytes to text), `json_questions` and `table_questions` (text to raw
questions), `answer_fields` (the shapes of answers), `repair` (where an answer stands), `settle` (raw question
to `Example`), `ledger` (the account). Knows nothing of tokens or torch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from plough.errors import DataError
from plough.tasks.question_answering.examples import Example, ReadReport, render_finding
from plough.tasks.question_answering.reading.json_questions import json_questions
from plough.tasks.question_answering.reading.ledger import Ledger
from plough.tasks.question_answering.reading.opening import is_parquet, suffix_of, text_stream
from plough.tasks.question_answering.reading.raw import RawQuestion, shown
from plough.tasks.question_answering.reading.settle import Settler
from plough.tasks.question_answering.reading.table_questions import (
    delimiter_of,
    parquet_questions,
    table_questions,
)

__all__ = ["read_examples"]


def read_examples(
    path: str | os.PathLike[str],
    *,
    require_answers: bool,
    strict: bool = False,
    limit: int | None = None,
) -> tuple[list[Example], ReadReport]:
    """The usable questions of a file, in file order, and the account of what was repaired and dropped.

    path: SQuAD JSON (v1.1 or v2.0, nested or flat), a JSON list, JSON lines, CSV, TSV (any of them gzipped,
    UTF-8, or UTF-16 and UTF-32 with a byte order mark) or parquet. The content decides, not the name.
    require_answers: True for training: every example returned has a placed answer or is impossible. False
    for evaluation and prediction: unlabelled questions stay, and gold texts that the context lacks stay as
    answers without a position (`Answer.start` None), for scoring.
    strict: anything repaired, dropped or kept without a position is a DataError that lists it.
    limit: stop once so many examples are kept.

    Raises DataError, naming the file and the line or item, when the file cannot be read as questions, or
    when answers are required and no question in it has any.
    """
    file = Path(path)
    ledger = Ledger()
    settler = Settler(str(file), ledger, require_answers=require_answers)
    examples: list[Example] = []
    with _questions(file) as (format_, questions):
        if limit is None or limit > 0:
            for raw in questions:
                example = settler.settle(raw)
                if example is not None:
                    examples.append(example)
                    if len(examples) == limit:
                        break
    report = ledger.report(str(file), format_)
    if ledger.read == 0 and (limit is None or limit > 0):
        raise DataError(f"{file} holds no questions", hint="it has the form of a data file, but no content")
    if not examples and require_answers and report.counts().get("unlabelled") == report.read:
        raise DataError(
            f"{file}: none of its {report.read:,} questions has answers",
            hint="training needs answers; a file without them can still be predicted on",
        )
    if strict:
        _refuse_flaws(report)
    return examples, report


@contextlib.contextmanager
def _questions(path: Path) -> Iterator[tuple[str, Iterator[RawQuestion]]]:
    if is_parquet(path):
        yield parquet_questions(path)
        return
    with text_stream(path) as stream:
        # Enough to tell the formats apart, without reading a file that is all one line.
        head = stream.read(1 << 16).lstrip()
        if not head:
            raise DataError(f"{path} holds only blank lines", hint="a data file with questions is needed")
        first_line = head.splitlines()[0]
        with text_stream(path) as again:
            if head[0] in "{[":
                yield json_questions(again, path)
            elif delimiter_of(first_line) is not None or suffix_of(path) in (".csv", ".tsv"):
                yield table_questions(again, path)
            else:
                kind = "JSON" if suffix_of(path).startswith((".json", ".ndjson")) else "a known format"
                raise DataError(
                    f"{path} is not {kind}: it begins with {shown(first_line)}",
                    hint="read are SQuAD JSON, JSON lines, CSV or TSV with a header line, and parquet",
                )


def _refuse_flaws(report: ReadReport) -> None:
    flaws = report.of_kind("repaired", "dropped", "unplaced")
    if not flaws:
        return
    lines = [line for flaw in flaws for line in render_finding(flaw, indent="  ")]
    raise DataError(
        f"{report.paths[0]}: strict reading allows no flaws, and found:\n" + "\n".join(lines),
        hint="mend the file, or read it without strict to have them repaired or dropped",
    )
