"""The many shapes of an `answers` field, made one: a list of claims.

Takes a value as JSON, a table cell or parquet gives it. Knows nothing of contexts: whether a claim is true
is for `repair` to find out.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence

import msgspec

__all__ = ["Claim", "claims_of"]


class Claim(msgspec.Struct, frozen=True):
    """An answer as a file claims it. `start` is None when missing, negative or not a whole number.

    `number` says that the text was a number in the file.
    """

    text: str
    start: int | None
    number: bool = False


def claims_of(value: object) -> list[Claim] | None:
    """The claims in an `answers` value; None when nobody labelled the question (null or absent).

    Understands `[{"text", "answer_start"}]`, `{"text": [...], "answer_start": [...]}`, one such dict with
    plain values, a list of texts, a text, and any of these as JSON, Python or numpy-repr text in a table
    cell. Raises ValueError, saying what it found, for anything else.
    """
    if value is None:
        return None
    if isinstance(value, str):
        parsed = _literal(value)
        value = [value] if parsed is None else parsed
    if isinstance(value, Mapping):
        return _from_columns(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_from_item(item) for item in value]
    return [_claim(value, None)]


def _from_columns(value: Mapping[object, object]) -> list[Claim]:
    if "text" not in value:
        if not value:
            return []
        raise ValueError(f"an answer has no 'text'; found {', '.join(map(repr, list(value)[:8]))}")
    texts, starts = value["text"], value.get("answer_start")
    # In a table both lists may be written out as text. One list alone is an answer such as "[12]".
    starts = _list_literal(starts)
    if isinstance(starts, list):
        texts = _list_literal(texts)
    if not isinstance(texts, list):
        first = starts[0] if isinstance(starts, list) and starts else starts
        return [_claim(texts, first)]
    listed = starts if isinstance(starts, list) else [starts]
    return [_claim(text, listed[i] if i < len(listed) else None) for i, text in enumerate(texts)]


def _from_item(item: object) -> Claim:
    if not isinstance(item, Mapping):
        return _claim(item, None)
    claims = _from_columns(item)
    if len(claims) != 1:
        raise ValueError(f"an answer in a list holds {len(claims)} texts, expected one")
    return claims[0]


def _claim(text: object, start: object) -> Claim:
    if text is None:
        text = ""
    if isinstance(text, (Mapping, list, tuple, bytes)):
        raise ValueError(f"an answer's text is a {type(text).__name__}, expected text")
    if isinstance(text, str):
        return Claim(text, _whole(start))
    if isinstance(text, float) and text.is_integer():
        text = int(text)  # tables turn 1912 into 1912.0 when a column has gaps
    return Claim(str(text), _whole(start), number=True)


def _whole(start: object) -> int | None:
    if isinstance(start, str):
        try:
            start = float(start) if "." in start else int(start)
        except ValueError:
            return None
    if isinstance(start, float):
        if not math.isfinite(start) or not start.is_integer():
            return None
        start = int(start)
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        return None
    return start


def _list_literal(value: object) -> object:
    if isinstance(value, str) and value.lstrip().startswith("["):
        parsed = _literal(value)
        return value if parsed is None else parsed
    return value


def _literal(text: str) -> object:
    """The dict or list that `text` writes out as JSON or Python; None when it is ordinary text."""
    if not text.strip():
        return None
    if text.lstrip()[0] not in "{[":
        return None
    try:
        parsed: object = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        try:
            parsed = _evaluate(ast.parse(text.strip(), mode="eval").body)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    return parsed if isinstance(parsed, (dict, list)) else None


def _evaluate(node: ast.expr) -> object:
    """A Python literal, and the `array([...], dtype=object)` that pandas writes for numpy values."""
    match node:
        case ast.Dict(keys, values):
            return {
                _evaluate(key): _evaluate(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.List(items) | ast.Tuple(items):
            return [_evaluate(item) for item in items]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[inner, *_]) if name.startswith(
            ("array", "int", "float", "str")
        ):
            return _evaluate(inner)
        case ast.Name(id="nan"):
            return None
        case _:
            value: object = ast.literal_eval(node)
            return value
