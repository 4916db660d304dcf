"""Windows and labels: labelled tokens hold the answer, every token is in a window, nothing is too long."""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plough.errors import UsageError
from plough.tasks.question_answering.examples import Answer, Example
from plough.tasks.question_answering.features import (
    RightPadding,
    WindowShape,
    cut_windows,
    train_dataset,
    windows_of,
)
from tests.tasks.question_answering.conftest import CHINESE, TOKENIZERS, WORDS

SHAPE = WindowShape(length=48, stride=16)
MADE = {name: make() for name, make in TOKENIZERS.items()}

english = st.lists(st.sampled_from([*WORDS, "Øresund", "1406", "3.5", "don't", "(see", "etc.)"]), min_size=1)
chinese = st.lists(st.sampled_from([*CHINESE, "，", "。", "1406", "𠀀", "（见"]), min_size=1)
mixed = st.lists(
    st.sampled_from(["👩‍🚀", "สวัสดี", "שלום", "café", "e\u0301", "\u200b", "a\u00a0b", "\t", "km²"])
)


@st.composite
def placed(draw: st.DrawFn) -> Example:
    """An example whose answer is a run of its context's pieces, short enough to be whole in a window."""
    pieces, joint = draw(
        st.one_of(
            st.tuples(english, st.just(" ")), st.tuples(chinese, st.just("")), st.tuples(mixed, st.just(" "))
        )
    )
    before = draw(st.lists(st.sampled_from(WORDS), max_size=80))
    after = draw(st.lists(st.sampled_from(WORDS), max_size=30))
    text = joint.join(pieces[: draw(st.integers(1, 3))]).strip()
    if not text:
        text = "king"
    head = " ".join(before)
    start = len(head) + 1 if head else 0
    context = (head + " " if head else "") + text + (" " + " ".join(after) if after else "")
    return Example(id="0", question="who built it?", context=context, answers=(Answer(text, start),))


def bare(text: str) -> str:
    """Without what normalizers drop: no token can bring that back at an answer's edge."""
    kept = (c for c in text if unicodedata.category(c)[0] not in "MCZ")
    return "".join(kept)


def labelled(example: Example, tokenizer: Any, shape: WindowShape) -> list[tuple[int, int, dict[str, Any]]]:
    """(start, end, columns of the window) of every window."""
    columns = cut_windows([example], tokenizer, shape)
    rows = train_dataset([example], tokenizer, shape, workers=None)
    assert rows["input_ids"][:] == columns["input_ids"]
    windows = [{name: values[i] for name, values in columns.items()} for i in range(len(rows))]
    return list(zip(rows["start_positions"][:], rows["end_positions"][:], windows, strict=True))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("pad", [False, True])
@given(example=placed())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_labelled_tokens_hold_the_answer_and_no_token_more(name: str, pad: bool, example: Example) -> None:
    tokenizer = MADE[name]
    answer = example.answers[0]
    a, b = answer.start, answer.start + len(answer.text)  # type: ignore[operator]
    held = 0
    for start, end, window in labelled(example, tokenizer, WindowShape(length=48, stride=16, pad=pad)):
        offsets, inside = window["offset_mapping"], window["in_context"]
        tokens = [
            (k, *pair) for k, pair in enumerate(offsets) if inside[k] and pair[1] > pair[0]
        ]  # fmt: skip
        touching = [k for k, first, last in tokens if first < b and last > a]
        whole = bool(touching) and tokens[0][1] <= a and b <= tokens[-1][2]
        if not whole:
            null = window["input_ids"].index(tokenizer.cls_token_id)
            assert (start, end) == (null, null)
            continue
        held += 1
        assert (start, end) == (touching[0], touching[-1])
        span = example.context[offsets[start][0] : offsets[end][1]]
        assert bare(answer.text) in bare(span)
    length = len(tokenizer(answer.text, add_special_tokens=False)["input_ids"])
    if 0 < length < SHAPE.stride // 2 and (answer.text.isascii() or set(answer.text) <= set(CHINESE)):
        assert held >= 1
        assert answer.text in span


def test_every_context_token_is_in_a_window_and_windows_overlap(tokenizer: Any) -> None:
    context = " ".join(WORDS * 9)
    columns = cut_windows([Example(id="0", question="who?", context=context)], tokenizer, SHAPE)
    alone = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    runs = [
        [tuple(pair) for pair, inner in zip(pairs, inside, strict=True) if inner]
        for pairs, inside in zip(columns["offset_mapping"], columns["in_context"], strict=True)
    ]
    assert len(runs) > 4
    assert sorted({pair for run in runs for pair in run}) == sorted(map(tuple, alone))
    for run, following in pairwise(runs):
        assert run[-SHAPE.stride :] == following[: SHAPE.stride]
    assert all(len(ids) <= SHAPE.length for ids in columns["input_ids"])


def test_questions_of_any_length_leave_room_for_the_context(tokenizer: Any) -> None:
    for question in ("who?", "  ", " ".join(WORDS * 20), CHINESE * 10):
        example = Example(
            id="0", question=question, context=" ".join([*WORDS, "xylophone"]), answers=(Answer("king", 0),)
        )
        columns = cut_windows([example], tokenizer, SHAPE)
        assert all(len(ids) <= SHAPE.length for ids in columns["input_ids"])
        assert all(any(inside) for inside in columns["in_context"])
        ends = [pair[1] for pairs in columns["offset_mapping"] for pair in pairs]
        assert max(ends) == len(example.context)


@pytest.mark.parametrize(("length", "stride"), [(16, 8), (48, 40), (24, 128)])
def test_no_room_for_a_question_is_refused_with_numbers(length: int, stride: int) -> None:
    with pytest.raises(UsageError, match=f"--max_seq_length {length} with --doc_stride {stride}") as caught:
        cut_windows(
            [Example(id="0", question="who?", context="a king")],
            MADE["wordpiece"],
            WindowShape(length=length, stride=stride),
        )
    assert "--doc_stride" in (caught.value.hint or "")


def test_first_answer_is_learned_and_impossible_ones_point_at_cls(tokenizer: Any) -> None:
    context = "the old king built seven bridges"
    several = Example(
        id="0", question="who?", context=context, answers=(Answer("king", 8), Answer("seven", 19))
    )
    impossible = Example(id="1", question="who?", context=context, impossible=True)
    unplaced = Example(id="2", question="who?", context=context, answers=(Answer("queen", None),))
    rows = train_dataset([several, impossible, unplaced], tokenizer, SHAPE, workers=None)
    columns = cut_windows([several], tokenizer, SHAPE)
    start = rows["start_positions"][0]
    assert "king" in context[columns["offset_mapping"][0][start][0] : columns["offset_mapping"][0][start][1]]
    for i in (1, 2):
        null = rows["input_ids"][i].index(tokenizer.cls_token_id)
        assert (rows["start_positions"][i], rows["end_positions"][i]) == (null, null)


def test_padding_on_either_side_moves_no_token(tokenizer: Any) -> None:
    examples = [
        Example(id=str(n), question="who?", context=" ".join(WORDS[:n]), answers=(Answer("the", 0),))
        for n in (3, 30, 11)
    ]
    rows = train_dataset(examples, tokenizer, SHAPE, workers=None)
    names = [*tokenizer.model_input_names, "start_positions", "end_positions"]
    batch = RightPadding(tokenizer, multiple_of=8)([{n: row[n] for n in names} for row in rows])
    assert batch["input_ids"].shape[1] % 8 == 0
    for i, row in enumerate(rows):
        length = len(row["input_ids"])
        assert batch["input_ids"][i, :length].tolist() == row["input_ids"]
        assert batch["attention_mask"][i].tolist() == [1] * length + [0] * (
            batch["input_ids"].shape[1] - length
        )
        assert (batch["start_positions"][i], batch["end_positions"][i]) == (
            row["start_positions"],
            row["end_positions"],
        )


def test_workers_cut_the_same_windows(tokenizer: Any) -> None:
    examples = [
        Example(
            id=str(n), question="who?", context=" ".join(WORDS * (n % 5 + 1)), answers=(Answer("the", 0),)
        )
        for n in range(20)
    ]
    alone = train_dataset(examples, tokenizer, SHAPE, workers=None)
    shared = train_dataset(examples, tokenizer, SHAPE, workers=2)
    assert alone.to_dict() == shared.to_dict()
    assert alone["length"][:] == [len(ids) for ids in alone["input_ids"]]


def test_windows_of_no_examples() -> None:
    columns = cut_windows([Example(id="0", question="who?", context="king")], MADE["wordpiece"], SHAPE)
    windows = windows_of(columns, MADE["wordpiece"])
    assert windows.offsets.shape == (1, len(columns["input_ids"][0]), 2)
    assert np.array_equal(windows.null, [0])
