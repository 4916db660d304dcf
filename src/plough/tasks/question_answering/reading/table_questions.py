"""Questions out of tables: CSV and TSV (or with semicolons) from spreadsheets and pandas, and parquet.

Yields `RawQuestion`s, a row at a time. Knows nothing of whether an answer is right (`settle`).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from plough.errors import DataError
from plough.tasks.question_answering.reading.raw import RawQuestion, from_row, shown

__all__ = ["delimiter_of", "parquet_questions", "table_questions"]

_NAMES = {",": "CSV", "\t": "TSV", ";": "CSV with semicolons"}
_COLUMNS = (
    "needed: question and context; for training also answers (JSON or Python text), or answer_text and"
    " answer_start; title, id and is_impossible are welcome"
)


def delimiter_of(header: str) -> str | None:
    """The delimiter under which a first line names the columns question and context; None if none does."""
    for delimiter in _NAMES:
        if {"question", "context"} <= set(_split_header(header, delimiter)):
            return delimiter
    return None


def table_questions(stream: TextIO, path: Path) -> tuple[str, Iterator[RawQuestion]]:
    """The format found and the questions. DataError when columns are missing, and while iterating for a row
    with too few or too many fields or a quote that never closes."""
    header = stream.readline()
    delimiter = delimiter_of(header)
    if delimiter is None:
        likely = max(_NAMES, key=header.count)
        found = ", ".join(shown(name, 30) for name in _split_header(header, likely)[:12])
        raise DataError(f"{path}: line 1 does not name the columns; found {found}", hint=_COLUMNS)
    return _NAMES[delimiter], _rows(chain([header], stream), delimiter, path)


def _rows(lines: Iterator[str], delimiter: str, path: Path) -> Iterator[RawQuestion]:
    # The limit is the process's own, and lower than the contexts people have.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        # Tab-separated files are often written without quoting, so a stray quote is no error there.
        reader = csv.reader(lines, delimiter=delimiter, strict=delimiter != "\t")
        names = [name.strip().lower() for name in next(reader)]
        line = reader.line_num + 1
        for fields in reader:
            if any(field.strip() for field in fields):
                yield from_row(_record(names, fields, line, path), f"line {line}", str(path))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}: line {line}: {error}",
            hint="a quote inside a quoted field must be doubled; the last quote may be missing",
        ) from error
    finally:
        csv.field_size_limit(limit)


def _record(names: list[str], fields: list[str], line: int, path: Path) -> dict[str, object]:
    if len(fields) < len(names) or any(fields[len(names) :]):
        raise DataError(
            f"{path}: line {line} has {len(fields)} fields, the first line names {len(names)}",
            hint="text that holds the delimiter or a line break must stand in double quotes",
        )
    record: dict[str, object] = dict(zip(names, fields, strict=False))
    # An empty cell is a missing value, but an empty answer text says "no answer".
    for name in ("id", "title", "answers", "answer_start", "is_impossible"):
        if record.get(name) == "":
            record[name] = None
    return record


def _split_header(header: str, delimiter: str) -> list[str]:
    try:
        return [name.strip().lower() for name in next(csv.reader([header], delimiter=delimiter), [])]
    except csv.Error:
        return []


def parquet_questions(path: Path) -> tuple[str, Iterator[RawQuestion]]:
    """The questions of a parquet file of flat rows, a batch at a time. DataError as for tables."""
    return "parquet", _parquet_rows(path)


def _parquet_rows(path: Path) -> Iterator[RawQuestion]:
    # Only who has parquet pays for loading it. It has no types.
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=512):
                for row in batch.to_pylist():
                    number += 1
                    yield from_row(row, f"row {number}", str(path))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} is not parquet that can be read: {reason}", hint="the file is damaged or was cut off"
        ) from error
