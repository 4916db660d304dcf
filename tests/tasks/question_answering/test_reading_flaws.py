"""What becomes of a question that is not as it should be, in training and in evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.errors import DataError
from plough.tasks.question_answering.examples import Answer, Example, ReadReport
from plough.tasks.question_answering.reading import read_examples

CONTEXT = "Berlin has 10 inhabitants."


def read(
    tmp_path: Path, *rows: dict[str, Any], training: bool = True, strict: bool = False
) -> tuple[list[Example], ReadReport]:
    path = tmp_path / "rows.json"
    filled = [{"id": f"q{i}", "question": "How many?", "context": CONTEXT} | r for i, r in enumerate(rows)]
    # A sound question beside, so that a dropped one does not empty the file.
    sound = {"id": "sound", "question": "Q", "context": CONTEXT, "answers": ["Berlin has"]}
    sound["answers"] = [{"text": "Berlin", "answer_start": 0}]
    path.write_text(json.dumps([*filled, sound]))
    examples, report = read_examples(path, require_answers=training, strict=strict)
    assert examples[-1].id == "sound"
    assert report.read == len(rows) + 1
    return examples[:-1], report


def answer(text: object, start: object = None) -> dict[str, object]:
    return {"text": text, "answer_start": start}


PLACED = (Answer("10", 11),)
DROP = "drop"

# row, answers kept (or DROP) and impossible in training, the same in evaluation (None: as in training),
# reasons in training, reasons in evaluation (None: as in training)
CASES: dict[str, tuple[dict[str, Any], Any, Any, dict[str, int], dict[str, int] | None]] = {
    "sound": ({"answers": [answer("10", 11)]}, PLACED, None, {}, None),
    "wrong offset": ({"answers": [answer("10", 3)]}, PLACED, None, {"offset_moved": 1}, None),
    "offset -1": ({"answers": [answer("10", -1)]}, PLACED, None, {"offset_found": 1}, None),
    "offset null": ({"answers": [answer("10")]}, PLACED, None, {"offset_found": 1}, None),
    "offset absent": ({"answers": [{"text": "10"}]}, PLACED, None, {"offset_found": 1}, None),
    "offset as text": ({"answers": [answer("10", "11")]}, PLACED, None, {}, None),
    "offset nonsense": ({"answers": [answer("10", "eleven")]}, PLACED, None, {"offset_found": 1}, None),
    "offset true": ({"answers": [answer("10", True)]}, PLACED, None, {"offset_found": 1}, None),
    "case": (
        {"answers": [answer("BERLIN", 0)]}, (Answer("Berlin", 0),), None, {"text_folded": 1}, None,
    ),
    "text a number": ({"answers": [answer(10, 11)]}, PLACED, None, {"answer_number": 1}, None),
    "text a float": ({"answers": [answer(10.0, 11)]}, PLACED, None, {"answer_number": 1}, None),
    "edges": ({"answers": [answer(" 10\n", 10)]}, PLACED, None, {"edge_whitespace": 1}, None),
    "edges and offset": (
        {"answers": [answer(" 10", 3)]}, PLACED, None, {"edge_whitespace": 1, "offset_moved": 1}, None,
    ),
    "answer not there": (
        {"answers": [answer("11", 11)]}, DROP, (Answer("11", None),),
        {"answer_absent": 1, "answers_lost": 1}, {"answer_unplaced": 1},
    ),
    "one of two not there": (
        {"answers": [answer("11", 11), answer("10", 11)]}, PLACED, (Answer("11", None), *PLACED),
        {"answer_absent": 1}, {"answer_unplaced": 1},
    ),
    "no answers": ({"answers": []}, "impossible", None, {}, None),
    "no answers, lists": ({"answers": {"text": [], "answer_start": []}}, "impossible", None, {}, None),
    "said to be impossible": ({"answers": [], "is_impossible": True}, "impossible", None, {}, None),
    "impossible, no key": ({"is_impossible": True}, "impossible", None, {}, None),
    "impossible as text": ({"answers": [], "is_impossible": "True"}, "impossible", None, {}, None),
    "impossible with an empty text": (
        {"answers": [answer("", 0)], "is_impossible": True}, "impossible", None, {}, None,
    ),
    "an empty text": ({"answers": [answer("", -1)]}, "impossible", None, {"empty_is_none": 1}, None),
    "a null text": ({"answers": [answer(None)]}, "impossible", None, {"empty_is_none": 1}, None),
    "an empty text beside a sound one": (
        {"answers": [answer("", 0), answer("10", 11)]}, PLACED, None, {"answer_empty": 1}, None,
    ),
    "impossible with answers": (
        {"answers": [answer("10", 11)], "is_impossible": True}, PLACED, None, {"not_impossible": 1}, None,
    ),
    "possible without answers": (
        {"answers": [], "is_impossible": False}, DROP, (), {"unlabelled": 1}, {},
    ),
    "possible with an empty text": (
        {"answers": [answer(" ", 0)], "is_impossible": False}, DROP, (),
        {"answer_empty": 1, "unlabelled": 1}, {"answer_empty": 1},
    ),
    "not labelled": ({}, DROP, (), {"unlabelled": 1}, {}),
    "answers null": ({"answers": None}, DROP, (), {"unlabelled": 1}, {}),
    "empty question": ({"question": " \n", "answers": []}, DROP, DROP, {"question_empty": 1}, None),
    "null question": ({"question": None, "answers": []}, DROP, DROP, {"question_empty": 1}, None),
    "empty context": ({"context": "", "answers": []}, DROP, DROP, {"context_empty": 1}, None),
    "integer id": ({"id": 7, "answers": [answer("10", 11)]}, PLACED, None, {"id_number": 1}, None),
    "float id": ({"id": 7.0, "answers": [answer("10", 11)]}, PLACED, None, {"id_number": 1}, None),
    "no id": ({"id": None, "answers": [answer("10", 11)]}, PLACED, None, {"id_missing": 1}, None),
    "plain texts": ({"answers": ["10"]}, PLACED, None, {"offset_found": 1}, None),
    "half a character": (
        {"question": "\ud83d?", "answers": [answer("10", 11)]}, PLACED, None, {"surrogate": 1}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("name", CASES)
def test_flaw(tmp_path: Path, name: str, training: bool) -> None:
    row, kept, kept_in_evaluation, reasons, reasons_in_evaluation = CASES[name]
    if not training:
        kept = kept if kept_in_evaluation is None else kept_in_evaluation
        reasons = reasons if reasons_in_evaluation is None else reasons_in_evaluation
    examples, report = read(tmp_path, row, training=training)
    assert report.counts() == reasons
    if kept == DROP:
        assert examples == []
        assert (report.kept, report.dropped) == (1, 1)
    else:
        assert examples[0].impossible == (kept == "impossible")
        assert examples[0].answers == (() if kept == "impossible" else kept)
        assert report.repaired == bool(report.of_kind("repaired"))
    if report.of_kind("repaired", "dropped", "unplaced"):
        with pytest.raises(DataError, match="strict reading allows no flaws"):
            read(tmp_path, row, training=training, strict=True)
    else:
        read(tmp_path, row, training=training, strict=True)


def test_ids_become_unique_and_made_ids_are_stable(tmp_path: Path) -> None:
    sound: dict[str, Any] = {"answers": [answer("10", 11)]}
    rows = [sound | {"id": id_} for id_ in ("a", "a", "a-2", None, None, "", "sound-2")]
    examples, report = read(tmp_path, *rows)
    ids = [example.id for example in examples]
    assert ids[:3] == ["a", "a-2", "a-2-2"]
    assert len(ids[3]) == 24
    assert ids[4:6] == [f"{ids[3]}-2", f"{ids[3]}-3"]
    assert report.counts() == {"id_duplicate": 4, "id_missing": 3}
    again, _ = read(tmp_path, *rows)
    assert [example.id for example in again] == ids


def test_items_name_their_place(tmp_path: Path) -> None:
    _, report = read(tmp_path, {"id": 262, "answers": [answer("10", 3)]})
    findings = {finding.reason.code: finding.first for finding in report.findings}
    assert findings["offset_moved"] == ("[0] (id 262): '10' at 3, found at 11",)


def test_a_test_file_without_answers(tmp_path: Path) -> None:
    path = tmp_path / "test.csv"
    path.write_text("id,question,context\n1,Who?,Berlin\n2,What?,Berlin\n")
    examples, report = read_examples(path, require_answers=False, strict=True)
    assert [example.labelled for example in examples] == [False, False]
    assert report.counts() == {}
    with pytest.raises(DataError, match="none of its 2 questions has answers") as caught:
        read_examples(path, require_answers=True)
    assert "predicted" in str(caught.value.hint)


TEXTS = st.text(alphabet="ab \n中𠮷éﬁ\ud800", max_size=20)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 30), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
ANSWERS = st.one_of(
    SCALARS,
    st.lists(
        st.one_of(SCALARS, st.fixed_dictionaries({"text": SCALARS, "answer_start": SCALARS})), max_size=3
    ),
    st.fixed_dictionaries(
        {
            "text": st.lists(SCALARS, max_size=3),
            "answer_start": st.one_of(SCALARS, st.lists(SCALARS, max_size=3)),
        }
    ),
)
ROWS = st.fixed_dictionaries(
    {"question": SCALARS, "context": SCALARS},
    optional={"id": SCALARS, "title": SCALARS, "answers": ANSWERS, "is_impossible": SCALARS},
)


@given(st.lists(ROWS, min_size=1, max_size=6), st.booleans())
def test_any_rows_are_read_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], training: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(rows))
    try:
        examples, report = read_examples(path, require_answers=training)
    except DataError as error:
        assert str(path) in error.cause  # noqa: PT017
        return
    assert report.read == len(rows)
    assert report.kept == len(examples) == len({example.id for example in examples})
    assert report.render()
    json.dumps(report.to_builtins())
    for example in examples:
        assert example.question.strip()
        assert example.context.strip()
        assert not (example.impossible and example.answers)
        assert example.labelled or not training
        (example.id + example.question + example.context).encode()  # no half characters
        for placed in example.answers:
            if placed.start is None:
                assert not training
            else:
                end = placed.start + len(placed.text)
                assert example.context[placed.start : end] == placed.text == placed.text.strip() != ""
