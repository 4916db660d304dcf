"""The same questions out of every format that people have them in."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from plough.tasks.question_answering.examples import Answer, Example
from plough.tasks.question_answering.reading import read_examples

CONTEXT = 'Berlin has 10 "inhabitants",\nall of them\tเมือง 中𠮷.'
EXPECTED = [
    Example(id="7", question="How many?", context=CONTEXT, title="B", answers=(Answer("10", 11),)),
    Example(
        id="b", question="谁住?", context=CONTEXT, title="B", answers=(Answer("中𠮷", 47), Answer("all", 29))
    ),
    Example(id="c", question="Paris?", context=CONTEXT, title="B", impossible=True),
]


def rows(answers: Callable[[Example], Any]) -> list[dict[str, Any]]:
    return [
        {"id": e.id, "title": e.title, "context": e.context, "question": e.question, "answers": answers(e)}
        for e in EXPECTED
    ]


def in_lists(example: Example) -> dict[str, list[Any]]:
    return {
        "text": [answer.text for answer in example.answers],
        "answer_start": [answer.start for answer in example.answers],
    }


def in_dicts(example: Example) -> list[dict[str, Any]]:
    return [{"text": answer.text, "answer_start": answer.start} for answer in example.answers]


def numpy_repr(example: Example) -> str:
    """What pandas writes into a CSV cell for a row of a Hugging Face data set."""
    texts, starts = in_lists(example)["text"], in_lists(example)["answer_start"]
    return f"{{'text': array({texts!r}, dtype=object), 'answer_start': array({starts!r}, dtype=int32)}}"


def nested() -> dict[str, Any]:
    qas = [
        {"id": r["id"], "question": r["question"], "answers": r["answers"], "is_impossible": not r["answers"],
         "plausible_answers": [{"text": "Berlin", "answer_start": 0}]}
        for r in rows(in_dicts)
    ]  # fmt: skip
    return {"version": "v2.0", "data": [{"title": "B", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


def table(delimiter: str, answers: Callable[[Example], Any], line_end: str = "\n") -> str:
    text = io.StringIO()
    records = rows(answers)
    writer = csv.DictWriter(text, list(records[0]), delimiter=delimiter, lineterminator=line_end)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def lines(answers: Callable[[Example], Any], line_end: str = "\n") -> str:
    return "".join(json.dumps(row) + line_end for row in rows(answers))


FILES: dict[str, tuple[str, str]] = {
    # file name -> (text, format reported)
    "nested.json": (json.dumps(nested(), indent=1), "SQuAD JSON, nested"),
    "nested-one-line.json": (json.dumps(nested()), "SQuAD JSON, nested"),
    "nested-crlf.json": (json.dumps(nested(), indent=1).replace("\n", "\r\n"), "SQuAD JSON, nested"),
    "one-article.json": (json.dumps(nested()["data"][0], indent=1), "JSON, one object"),
    "articles-list.json": (json.dumps(nested()["data"]), "JSON list"),
    "articles.jsonl": (json.dumps(nested()["data"][0]) + "\n\n", "JSON, one object"),
    "flat.json": (json.dumps({"data": rows(in_lists)}), "SQuAD JSON, flat"),
    "flat-dicts.json": (json.dumps({"version": "1", "data": rows(in_dicts)}), "SQuAD JSON, flat"),
    "list.json": ("\n \n" + json.dumps(rows(in_lists), indent=2), "JSON list"),
    "lines.jsonl": (lines(in_lists), "JSON lines"),
    "lines-dicts.json": (lines(in_dicts), "JSON lines"),
    "lines-blank-crlf.txt": ("\r\n" + lines(in_dicts, "\r\n\r\n"), "JSON lines"),
    "no-extension": (lines(lambda e: json.dumps(in_lists(e))), "JSON lines"),
    "answers-json.csv": (table(",", lambda e: json.dumps(in_lists(e))), "CSV"),
    "answers-python.csv": (table(",", in_lists, "\r\n"), "CSV"),
    "answers-python-dicts.csv": (table(",", in_dicts), "CSV"),
    "answers-numpy.csv": (table(",", numpy_repr), "CSV"),
    "semicolons.csv": (table(";", in_lists), "CSV with semicolons"),
    "tabs.tsv": (table("\t", in_lists), "TSV"),
    "tabs-named.csv": (table("\t", in_lists), "TSV"),
    "table.json": (table(",", in_lists), "CSV"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "gzip"])
def test_text_formats(tmp_path: Path, name: str, encoding: str) -> None:
    text, format_ = FILES[name]
    path = tmp_path / name
    if encoding == "gzip":
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_bytes(text.encode(encoding))
    examples, report = read_examples(path, require_answers=True, strict=True)
    assert examples == EXPECTED
    assert report.formats == (format_,)
    assert (report.read, report.kept, report.repaired, report.counts()) == (3, 3, 0, {})


@pytest.mark.parametrize("answers", [in_lists, in_dicts])
def test_parquet(tmp_path: Path, answers: Callable[[Example], Any]) -> None:
    path = tmp_path / "train-00000-of-00001"  # known by its first bytes
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows(answers)), path)
    examples, report = read_examples(path, require_answers=True, strict=True)
    assert examples == EXPECTED
    assert report.formats == ("parquet",)


@pytest.mark.parametrize(
    ("header", "cells", "answers"),
    [
        ("answer_text,answer_start", "10,11", (Answer("10", 11),)),
        ("answer_text,answer_start", "10,11.0", (Answer("10", 11),)),
        ("answer_text,answer_start", "10,", (Answer("10", 11),)),
        ("Text, Answer_Start", "10,11", (Answer("10", 11),)),
        (
            "answers.text,answers.answer_start", "\"['10', '10 [1]']\",\"[11, 11]\"",
            (Answer("10", 11), Answer("10 [1]", 11)),
        ),
        ("answer", "10", (Answer("10", 11),)),
        ("answers", "10", (Answer("10", 11),)),
        ("answer_text,answer_start", ",", ()),
        ("answer_text,answer_start", '"[1]",15', (Answer("[1]", 14),)),
    ],
)  # fmt: skip
def test_answer_columns(tmp_path: Path, header: str, cells: str, answers: tuple[Answer, ...]) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"Question,context,{header}\nHow many?,Berlin has 10 [1] inhabitants,{cells}\n")
    examples, _ = read_examples(path, require_answers=True)
    assert examples[0].answers == answers
    assert examples[0].impossible == (not answers)


def test_limit_stops_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(in_lists) + "this line is never reached")
    examples, report = read_examples(path, require_answers=True, limit=2)
    assert examples == EXPECTED[:2]
    assert (report.read, report.kept) == (2, 2)
    assert read_examples(path, require_answers=True, limit=0)[0] == []


def test_long_contexts_in_every_cell(tmp_path: Path) -> None:
    context = "word " * 40_000 + "end"  # longer than the csv module's own limit
    path = tmp_path / "a.csv"
    before = csv.field_size_limit()
    path.write_text(f"question,context,answers\nq,{context},\"{{'text': ['end'], 'answer_start': [3]}}\"\n")
    examples, report = read_examples(path, require_answers=True)
    assert examples[0].answers == (Answer("end", 200_000),)
    assert report.counts() == {"id_missing": 1, "offset_moved": 1}
    assert csv.field_size_limit() == before
