"""Questions out of JSON: SQuAD as published (nested), flat rows under "data", a bare list, JSON lines.

Yields `RawQuestion`s. Knows nothing of encodings (`opening`) nor of whether an answer is right (`settle`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from plough.errors import DataError
from plough.tasks.question_answering.reading.raw import RawQuestion, from_row, shown

__all__ = ["json_questions"]

_SHAPES = 'expected SQuAD JSON {"data": [...]}, a list of questions, or a question per line'


def json_questions(stream: TextIO, path: Path) -> tuple[str, Iterator[RawQuestion]]:
    """The format found and the questions, in file order.

    A document is read whole; JSON lines are read as they are asked for. DataError, at once or while
    iterating, for what is not JSON or not questions, with line and column or the item's place.
    """
    head = ""
    first = stream.readline()
    while first and not first.strip():
        head += first
        first = stream.readline()
    line = head.count("\n") + 1
    try:
        value = _loads(first)
    except (ValueError, RecursionError):
        rest = stream.read()
        return _document(_parse(head + first + rest, path), path)
    following = stream.readline()
    skipped = 1
    while following and not following.strip():
        following = stream.readline()
        skipped += 1
    if not following:
        return _document(value, path)
    if not isinstance(value, dict):
        raise DataError(
            f"{path}: line {line + skipped}: there is more text after the end of the JSON list",
            hint="the file looks like two files in one; keep one of them",
        )
    lines = _lines(stream, path, (line, first), (line + skipped, following))
    return "JSON lines", (question for place, item in lines for question in _walk(item, place, path))


def _lines(stream: TextIO, path: Path, *known: tuple[int, str]) -> Iterator[tuple[str, object]]:
    """(locator, value) per line that is not blank; `known` are those already taken from the stream."""
    for number, text in chain(known, enumerate(stream, start=known[-1][0] + 1)):
        if text.strip():
            yield f"line {number}", _parse(text, path, line=number)


def _document(value: object, path: Path) -> tuple[str, Iterator[RawQuestion]]:
    if isinstance(value, dict) and "data" in value:
        items, prefix = value["data"], "data"
        if not isinstance(items, list):
            raise DataError(f"{path}: 'data' is {_kind(items)}, expected a list", hint=_SHAPES)
        nested = any(isinstance(item, dict) and ("paragraphs" in item or "qas" in item) for item in items)
        format_ = "SQuAD JSON, nested" if nested else "SQuAD JSON, flat"
    elif isinstance(value, list):
        items, prefix = value, ""
        format_ = "JSON list"
    elif isinstance(value, dict):
        items, prefix, format_ = [value], "", "JSON, one object"
    else:
        raise DataError(f"{path} holds {_kind(value)}", hint=_SHAPES)
    if not items:
        raise DataError(f"{path} holds no questions: its list is empty", hint=_SHAPES)
    if len(items) == 1 and not prefix and isinstance(value, dict):
        return format_, _walk(value, "the object", path)
    return format_, (q for i, item in enumerate(items) for q in _walk(item, f"{prefix}[{i}]", path))


def _walk(item: object, place: str, path: Path) -> Iterator[RawQuestion]:
    """An article, a paragraph or a flat row: each may stand at the top of a list or on a line."""
    row = _dict(item, place, path)
    if "paragraphs" in row:
        for i, paragraph in enumerate(_list(row, "paragraphs", place, path)):
            where = f"{place}.paragraphs[{i}]"
            yield from _paragraph(_dict(paragraph, where, path), row.get("title"), where, path)
    elif "qas" in row:
        yield from _paragraph(row, row.get("title"), place, path)
    else:
        yield from_row(row, place, str(path))


def _paragraph(row: dict[str, object], title: object, place: str, path: Path) -> Iterator[RawQuestion]:
    if "context" not in row:
        raise DataError(f"{path}: {place} has no 'context'; found {_found(row)}", hint=_SHAPES)
    for i, item in enumerate(_list(row, "qas", place, path)):
        where = f"{place}.qas[{i}]"
        qa = _dict(item, where, path)
        if "question" not in qa:
            raise DataError(f"{path}: {where} has no 'question'; found {_found(qa)}", hint=_SHAPES)
        yield RawQuestion(
            locator=where,
            id=qa.get("id"),
            question=qa["question"],
            context=row["context"],
            title=title,
            answers=qa.get("answers"),
            impossible=qa.get("is_impossible"),
        )


def _loads(text: str) -> object:
    # strict=False: line breaks inside strings are wrong in JSON, common, and harm nothing.
    value: object = json.loads(text, strict=False)
    return value


def _parse(text: str, path: Path, *, line: int | None = None) -> object:
    """The JSON value in `text`, which is line `line` of the file or all of it."""
    try:
        return _loads(text)
    except json.JSONDecodeError as error:
        at = f"line {line or error.lineno}, column {error.colno}"
        ending = text.rstrip()
        # A document that was cut breaks at its end, without the bracket that would close it.
        if not ending.endswith(("}", "]")) and (
            error.msg.startswith("Unterminated string") or error.pos >= len(ending) - 6
        ):
            raise DataError(
                f"{path}: the JSON ends in the middle of a value, {at}: it looks cut off",
                hint="if it is the end of the file, the download or copy did not finish: fetch it again",
            ) from error
        raise DataError(
            f"{path}: not valid JSON at {at}: {error.msg}, near {shown(text[error.pos :], 30)}",
            hint=f"mend that place; {_SHAPES}",
        ) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets thousands deep
        where = f"line {line}: " if line else ""
        raise DataError(f"{path}: {where}JSON that cannot be read: {error}", hint=_SHAPES) from error


def _dict(value: object, place: str, path: Path) -> dict[str, object]:
    if not isinstance(value, dict):
        raise DataError(f"{path}: {place} is {_kind(value)}, expected an object", hint=_SHAPES)
    return value


def _list(row: dict[str, object], key: str, place: str, path: Path) -> list[object]:
    value = row.get(key)
    if value is None:
        raise DataError(f"{path}: {place} has no {key!r}; found {_found(row)}", hint=_SHAPES)
    if not isinstance(value, list):
        raise DataError(f"{path}: {place}.{key} is {_kind(value)}, expected a list", hint=_SHAPES)
    return value


def _found(row: dict[str, object]) -> str:
    return ", ".join(shown(key, 30) for key in list(row)[:12]) or "nothing"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
