"""A question as a file holds it, before anything is judged, and where in the file it stands.

Knows nothing of formats (those yield these) nor of repairs (`settle` consumes them).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from plough.errors import DataError

__all__ = ["RawQuestion", "from_row", "shown"]


class RawQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The values under a question's keys, whatever their type; None where null or absent.

    locator: where it stands, such as `data[3].paragraphs[2].qas[5]`, `line 17` or `row 4`.
    """

    locator: str
    id: object
    question: object
    context: object
    title: object
    answers: object
    impossible: object


def from_row(row: Mapping[str, object], locator: str, path: str) -> RawQuestion:
    """A flat row (JSON object, CSV record, parquet row). DataError when question or context has no key."""
    for key in ("question", "context"):
        if key not in row:
            raise DataError(
                f"{path}: {locator} has no {key!r}; found {_keys(row)}",
                hint="a flat row needs 'question' and 'context', and to train on also 'answers'",
            )
    return RawQuestion(
        locator=locator,
        id=row.get("id"),
        question=row["question"],
        context=row["context"],
        title=row.get("title"),
        answers=_answers(row),
        impossible=row.get("is_impossible"),
    )


def shown(value: object, limit: int = 48) -> str:
    """A value as it may stand in a message: its repr, cut to about `limit` characters."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit + 2 else text[:limit] + "…"


def _answers(row: Mapping[str, object]) -> object:
    """The answers field, or the pair of columns that stands in for it in spreadsheets and exports."""
    if "answers" in row:
        return row["answers"]
    for text, start in (
        ("answer_text", "answer_start"),
        ("answers.text", "answers.answer_start"),
        ("answer", "answer_start"),
    ):
        if text in row:
            value = row[text]
            if value is None or (isinstance(value, (dict, list)) and start not in row):
                return value
            return {"text": value, "answer_start": row.get(start)}
    if "text" in row and "answer_start" in row:
        return {"text": row["text"], "answer_start": row["answer_start"]}
    return None


def _keys(row: Mapping[str, object]) -> str:
    keys = [shown(key, 30) for key in row]
    return ", ".join(keys[:12]) + (", …" if len(keys) > 12 else "") if keys else "nothing"
