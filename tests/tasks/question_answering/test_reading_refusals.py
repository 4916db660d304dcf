"""Files that cannot be read as questions: always a DataError that names the file and says what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.errors import DataError
from plough.tasks.question_answering.reading import read_examples

GOOD = {"id": "1", "question": "q", "context": "c d", "answers": {"text": ["c"], "answer_start": [0]}}
LINE = json.dumps(GOOD)
NESTED = json.dumps(
    {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [{"id": "1", "question": "q"}]}]}]},
    indent=1,
)
HEADER = "id,question,context,answers\n"

# file name, bytes, part of the cause, part of the hint
REFUSALS: dict[str, tuple[str, bytes, str, str]] = {
    "empty": ("a.json", b"", "is empty", "at least one question"),
    "blank": ("a.json", b"\n \n", "only blank lines", "needed"),
    "only a mark": ("a.json", b"\xef\xbb\xbf", "only blank lines", "needed"),
    "cut document": ("a.json", NESTED[:60].encode(), "line 7, column 2: it looks cut off", "fetch it again"),
    "cut after a key": ("a.json", NESTED[: NESTED.index('"c"')].encode(), "looks cut off", "fetch it again"),
    "cut lines": ("a.jsonl", f"{LINE}\n{LINE[:40]}".encode(), "line 2, column", "fetch it again"),
    "bad line": ("a.jsonl", f"{LINE}\n{{'id': 1}}\n".encode(), "not valid JSON at line 2, column 2", "mend"),
    "bad document": ("a.json", b'[\n {"id": 1,}\n]', "not valid JSON at line 2, column", "mend"),
    "not JSON": ("a.json", b"hello there", "is not JSON: it begins with 'hello there'", "SQuAD JSON"),
    "not anything": ("a.txt", b"hello there", "not a known format", "SQuAD JSON"),
    "two lists": ("a.json", b"[]\n[]", "line 2: there is more text after the end", "two files"),
    "deep": ("a.json", b"[" * 100_000, "cannot be read", ""),
    "long number": ("a.json", b'[{"id": ' + b"9" * 5000 + b"}]", "cannot be read", ""),
    "a number": ("a.json", b"[1, 2]", "[0] is a number, expected an object", "SQuAD JSON"),
    "nothing in it": ("a.json", b'{"data": []}', "its list is empty", "SQuAD JSON"),
    "no questions": ("a.json", b'{"data": [{"paragraphs": []}]}', "holds no questions", ""),
    "data no list": ("a.json", b'{"data": "x"}', "'data' is text, expected a list", ""),
    "flat keys": (
        "a.json", b'[{"id": 1, "query": "q", "context": "c"}]',
        "[0] has no 'question'; found 'id', 'query', 'context'", "a flat row needs",
    ),
    "other object": ("a.json", b'{"model": 1}', "the object has no 'question'; found 'model'", ""),
    "no context": (
        "a.json", b'{"data": [{"paragraphs": [{"qas": [], "text": "c"}]}]}',
        "data[0].paragraphs[0] has no 'context'; found 'qas', 'text'", "",
    ),
    "no qas": (
        "a.json", b'{"data": [{"paragraphs": [{"context": "c"}]}]}',
        "data[0].paragraphs[0] has no 'qas'; found 'context'", "",
    ),
    "no question": (
        "a.json", b'{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": 1}]}]}]}',
        "data[0].paragraphs[0].qas[0] has no 'question'; found 'id'", "",
    ),
    "line keys": ("a.jsonl", f'{LINE}\n\n{{"q": 1}}'.encode(), "line 3 has no 'question'; found 'q'", ""),
    "answers of a kind": (
        "a.json", json.dumps([GOOD | {"answers": [{"answer": "c"}]}]).encode(),
        "[0]: an answer has no 'text'; found 'answer'", "answers look like",
    ),
    "question a list": ("a.json", json.dumps([GOOD | {"question": ["q"]}]).encode(),
                        "[0]: its question is a list, expected text", ""),
    "flag": ("a.json", json.dumps([GOOD | {"is_impossible": "maybe"}]).encode(),
             "[0]: is_impossible is 'maybe'", ""),
    "latin-1": ("a.json", b"[\n" + '{"question": "né"}]'.encode("latin-1"),
                "is not UTF-8: line 2, column 16 (byte 0xe9)", "iconv -f windows-1252"),
    "latin-1 lines": ("a.jsonl", f"{LINE}\n".encode() * 999 + b"\xff", "line 1000, column 1 (byte 0xff)", ""),
    "half a letter": ("a.json", '[{"question": "é'.encode()[:-1], "is not UTF-8: line 1, column 16", ""),
    "utf-16 bare": ("a.json", LINE.encode("utf-16-le"), "UTF-16 without a byte order mark", "iconv"),
    "utf-16 cut": ("a.json", LINE.encode("utf-16")[:-1], "not all utf-16", "UTF-8"),
    "columns": ("a.csv", b"text,category\nx,y\n", "line 1 does not name the columns; found 'text'",
                "needed: question and context"),
    "short row": ("a.csv", (HEADER + "1,q,c,\n2,q\n").encode(), "line 3 has 2 fields, the first line names 4",
                  "double quotes"),
    "long row": ("a.csv", (HEADER + "1,q,c,d, e\n").encode(), "line 2 has 5 fields", "double quotes"),
    "open quote": ("a.csv", (HEADER + '1,q,c,\n2,q,"c,\n').encode(), "line 3: unexpected end", "quote"),
    "header alone": ("a.csv", HEADER.encode(), "holds no questions", ""),
    "zip": ("a.json", b"PK\x03\x04abc", "a zip archive", "unpack"),
    "page": ("a.json", b"<!DOCTYPE html><html>", "a web page", "raw file"),
    "pointer": ("a.json", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer", "git lfs pull"),
    "cut gzip": ("a.json.gz", gzip.compress(NESTED.encode() * 50)[:60], "damaged or was cut off", "again"),
    "false gzip": ("a.json.gz", b"\x1f\x8bxxxxxxxxxxxxxxxx", "damaged or was cut off", "again"),
    "false parquet": ("a.parquet", b"hello", "not parquet", "damaged"),
    "cut parquet": ("a.parquet", b"PAR1" + b"x" * 100, "not parquet", "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(tmp_path: Path, name: str, training: bool) -> None:
    file, content, cause, hint = REFUSALS[name]
    path = tmp_path / file
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_examples(path, require_answers=training)
    assert str(path) in caught.value.cause
    assert cause in caught.value.cause
    assert caught.value.hint
    assert hint in caught.value.hint


def test_not_there_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read_examples(tmp_path / "none.json", require_answers=True)
    with pytest.raises(DataError, match="is a folder"):
        read_examples(tmp_path, require_answers=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be read"):
        read_examples(tmp_path / "file" / "a.json", require_answers=True)


def test_parquet_without_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "label": [1]}), path)
    with pytest.raises(DataError, match="row 1 has no 'question'; found 'text', 'label'"):
        read_examples(path, require_answers=True)


@given(st.binary(max_size=60), st.sampled_from(["a.json", "a.csv", "a.tsv", "a.gz", "a.parquet", "a"]))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    with pytest.raises(DataError):
        read_examples(path, require_answers=True)


@given(st.data())
def test_any_cut_of_a_good_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = data.draw(
        st.sampled_from([NESTED, LINE, f"{LINE}\n{LINE}", f'{HEADER}1,"q","c d","[""c""]"\n'])
    ).encode()
    path = tmp_path_factory.getbasetemp() / "cut"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        read_examples(path, require_answers=False)
    except DataError as error:
        assert str(path) in error.cause  # noqa: PT017
