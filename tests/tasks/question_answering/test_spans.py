"""Answers from logits, against a search that tries every span."""

from __future__ import annotations

import itertools
import json
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plough.errors import ModelError
from plough.tasks.question_answering import spans
from plough.tasks.question_answering.examples import Example
from plough.tasks.question_answering.spans import (
    Prediction,
    Windows,
    best_answers,
    nbest_json,
    null_odds_json,
    predictions_json,
)

NO = (-1, -1)  # a token that is not of the context


def windows(*rows: tuple[int, list[tuple[int, int]]], null: int = 0) -> Windows:
    """Windows from (example, offsets) rows, NO where a token is not of the context; padded on the right."""
    length = max(len(offsets) for _, offsets in rows)
    padded = np.array([offsets + [NO] * (length - len(offsets)) for _, offsets in rows])
    return Windows(
        example=np.array([example for example, _ in rows]),
        offsets=np.maximum(padded, 0),
        in_context=padded[..., 0] >= 0,
        null=np.full(len(rows), null),
    )


def example(context: str, id_: str = "1") -> Example:
    return Example(id=id_, question="?", context=context)


def logits(length: int, **peaks: float) -> np.ndarray:
    """[1, length] of zeros with peaks: `logits(5, t2=3.0)`."""
    row = np.zeros((1, length), np.float32)
    for name, value in peaks.items():
        row[0, int(name[1:])] = value
    return row


WORDS = [NO, NO, NO, (0, 6), (7, 10), (11, 13), (14, 25), (25, 26), NO]
BERLIN = example("Berlin has 10 inhabitants.")


def ask(start: np.ndarray, end: np.ndarray, **options: object) -> Prediction:
    return best_answers([BERLIN], windows((0, WORDS)), start, end, **options)[0]  # type: ignore[arg-type]


def test_text_is_cut_from_the_context() -> None:
    answer = ask(logits(9, t5=5.0), logits(9, t6=5.0))
    assert answer.text == "10 inhabitants"
    assert (answer.best.start, answer.best.end) == (11, 25)
    assert (answer.best.start_logit, answer.best.end_logit) == (5.0, 5.0)
    assert answer.null_odds is None
    assert math.isclose(sum(candidate.probability for candidate in answer.nbest), 1)


def test_no_span_leaves_the_context_or_runs_backwards_or_too_long() -> None:
    answer = ask(logits(9, t1=9.0, t4=0.5, t5=5.0), logits(9, t8=9.0, t4=6.0, t7=5.0), max_answer_length=2)
    assert answer.best.text == "has"
    assert answer.best.start_logit + answer.best.end_logit == 6.5
    assert len(answer.nbest) == 5 + 4
    assert all(c.start < c.end <= 26 for c in answer.nbest)


def test_no_answer() -> None:
    start, end = logits(9, t0=3.0, t5=2.0), logits(9, t0=3.0, t5=2.0)
    answer = ask(start, end, allow_no_answer=True)
    assert (answer.text, answer.null_odds) == ("", 2.0)
    assert answer.nbest[0].text == ""
    assert answer.best.text == "10"
    assert ask(start, end, allow_no_answer=True, null_score_diff_threshold=2.0).text == "10"
    assert ask(start, end).text == "10"


def test_no_answer_is_always_among_the_candidates() -> None:
    start, end = logits(9, t0=-5.0), logits(9, t0=-5.0)
    answer = ask(start, end, allow_no_answer=True, n_best_size=3)
    assert [candidate.text == "" for candidate in answer.nbest] == [False, False, False, True]
    best = ask(-start, -end, allow_no_answer=True, n_best_size=3)
    assert [candidate.text == "" for candidate in best.nbest] == [True, False, False]


def test_one_candidate_still_leaves_a_threshold_its_choice() -> None:
    start = logits(9, t0=5.0, t5=4.0)
    answer = ask(start, start, allow_no_answer=True, n_best_size=1, null_score_diff_threshold=2.0)
    assert (answer.text, answer.best.text, answer.null_odds) == ("10", "10", 2.0)


def test_no_answer_takes_the_lowest_window_and_windows_may_be_shuffled() -> None:
    other = example("xy", "2")
    layout = windows((1, [NO, (0, 1), (1, 2)]), (0, WORDS), (1, [NO, (1, 2)]))
    start = np.zeros((3, 12), np.float32)  # wider than the windows, as padded batches are
    start[:, 0] = [4, 0, 1]
    start[2, 1] = 2
    first, second = best_answers([BERLIN, other], layout, start, start, allow_no_answer=True)
    assert (first.id, second.id) == ("1", "2")
    assert (second.text, second.null_odds, second.best.start) == ("y", -2.0, 1)


def test_spaces_in_offsets_and_tokens_without_characters() -> None:
    # Byte-level tokens begin with their space; a lone space mark has one or no character.
    context = "is  Zürich\u3000big"
    layout = windows((0, [NO, (0, 2), (2, 3), (3, 10), (10, 10), (10, 14), NO]))
    start, end = logits(7, t3=5.0, t4=9.0, t2=4.0), logits(7, t3=5.0, t2=1.0)
    answer = best_answers([example(context)], layout, start, end)[0]
    assert (answer.text, answer.best.start, answer.best.end) == ("Zürich", 4, 10)
    texts = [candidate.text for candidate in answer.nbest]
    assert len(texts) == len(set(texts)), "' Zürich' and 'Zürich' are one answer"
    assert "" not in texts


def test_characters_of_several_tokens_and_overlapping_windows_are_one_candidate() -> None:
    context = "中𠮷国"
    tokens = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
    layout = windows((0, [NO, *tokens]), (0, [NO, *tokens[2:]]))
    start = np.zeros((2, 6), np.float32)
    start[0, 2], start[1, 1] = 3, 7
    answer = best_answers([example(context)], layout, start, start)[0]
    assert answer.text == "𠮷"
    assert answer.best.start_logit == 7
    assert sorted(c.text for c in answer.nbest) == sorted(["中", "𠮷", "国", "中𠮷", "𠮷国", "中𠮷国"])


@pytest.mark.parametrize("allow", [False, True])
def test_nothing_to_answer_with(allow: bool) -> None:
    no_windows = example("x", "2")
    blank = [NO, (0, 0), NO]
    first, second = best_answers(
        [example("x"), no_windows], windows((0, blank)), logits(3), logits(3), allow_no_answer=allow
    )
    assert (first.text, second.text, first.best.text) == ("", "", "")
    assert json.loads(json.dumps(nbest_json([first, second]), allow_nan=False))
    empty = Windows(
        example=np.zeros(0, int), offsets=np.zeros((0, 0, 2)), in_context=np.zeros((0, 0), bool),
        null=np.zeros(0, int),
    )  # fmt: skip
    none = np.zeros((0, 0), np.float32)
    assert best_answers([], empty, none, none, allow_no_answer=allow) == []
    assert best_answers([no_windows], empty, none, none, allow_no_answer=allow)[0].text == ""


def test_masked_logits_are_no_candidates_and_files_stay_json() -> None:
    low = -np.inf
    start = logits(9, t0=low, t3=low, t4=low, t6=low, t7=low)
    answer = ask(start, start, allow_no_answer=True)
    assert [candidate.text for candidate in answer.nbest] == ["10", ""]
    json.dumps([nbest_json([answer]), null_odds_json([answer])], allow_nan=False)


def test_broken_logits_and_shapes() -> None:
    for value in (np.nan, np.inf):
        with pytest.raises(ModelError, match="1 of 9 end logits are not finite"):
            ask(logits(9), logits(9, t4=value))
    with pytest.raises(ValueError, match="for 1 windows of 9 tokens"):
        ask(logits(8), logits(9))
    with pytest.raises(ValueError, match="at least 1"):
        ask(logits(9), logits(9), n_best_size=0)


def test_the_files() -> None:
    answer = ask(logits(9, t5=1.0), logits(9, t5=1.0), allow_no_answer=True, n_best_size=1)
    assert predictions_json([answer]) == {"1": "10"}
    assert null_odds_json([answer]) == {"1": -2.0}
    first, second = nbest_json([answer])["1"]
    assert first == {
        "text": "10",
        "probability": pytest.approx(1 / (1 + math.exp(-2))),
        "start_logit": 1.0,
        "end_logit": 1.0,
    }
    assert second["text"] == ""
    assert null_odds_json([ask(logits(9), logits(9))]) == {}


def brute_force(
    context: str, layout: Windows, start: np.ndarray, end: np.ndarray, longest: int
) -> list[tuple[int, int, float]]:
    scores: dict[tuple[int, int], float] = {}
    count, length = layout.in_context.shape
    for w, i, j in itertools.product(range(count), range(length), range(length)):
        inside = all(layout.in_context[w, t] and np.diff(layout.offsets[w, t])[0] > 0 for t in (i, j))
        if inside and i <= j < i + longest:
            first, last = int(layout.offsets[w, i, 0]), int(layout.offsets[w, j, 1])
            text = context[first:last]
            span = (first + len(text) - len(text.lstrip()), last - len(text) + len(text.rstrip()))
            if text.strip():
                scores[span] = max(scores.get(span, -math.inf), float(start[w, i]) + float(end[w, j]))
    return sorted(((*span, score) for span, score in scores.items()), key=lambda s: (-s[2], s[0], s[1]))


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 4),
    length=st.integers(1, 14),
    n_best=st.integers(1, 8),
    longest=st.integers(1, 16),
    chunk=st.sampled_from([1, 50, 4_000_000]),
    tidy=st.booleans(),
)
def test_equals_trying_every_span(
    seed: int, count: int, length: int, n_best: int, longest: int, chunk: int, tidy: bool
) -> None:
    random = np.random.default_rng(seed)
    context = "".join(random.choice(list("abc中" if tidy else "ab c中"), 3 * length + 3))
    rows = []
    for _ in range(count):
        first, last = sorted(random.integers(0, length + 1, 2))
        starts = np.sort(random.choice(len(context), last - first, replace=False))
        ends = [min(int(s + (1 if tidy else random.integers(0, 4))), len(context)) for s in starts]
        inner = list(zip(starts.tolist(), ends, strict=True))
        rows.append((0, [NO] * int(first) + inner + [NO] * int(length - last)))
    layout = windows(*rows)
    start, end = random.normal(size=(2, count, length))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "_CHUNK_ELEMENTS", chunk)
        found = best_answers(
            [example(context)], layout, start, end, n_best_size=n_best, max_answer_length=longest
        )[0]
    got = [(c.start, c.end, c.start_logit + c.end_logit) for c in found.nbest if c.text]
    wanted = brute_force(context, layout, start, end, longest)
    if tidy:
        assert got == wanted[:n_best]
    else:
        # A window hands on its n best token spans; those that are blank, or one span of characters, leave
        # fewer of them. What is left is true and in order.
        known = {span[:2]: span[2] for span in wanted}
        assert all(score <= known[first, last] for first, last, score in got)
        assert got == sorted(got, key=lambda s: (-s[2], s[0], s[1]))


def test_ten_thousand_windows_take_seconds() -> None:
    count, length = 10_000, 384
    random = np.random.default_rng(0)
    offsets = np.zeros((count, length, 2), np.int32)
    offsets[..., 0] = 5 * np.arange(length)
    offsets[..., 1] = offsets[..., 0] + 4
    inside = np.zeros((count, length), bool)
    inside[:, 20:380] = True
    layout = Windows(
        example=np.arange(count), offsets=offsets, in_context=inside, null=np.zeros(count, np.int64)
    )
    examples = [example("word " * length, str(i)) for i in range(count)]
    start, end = random.normal(size=(2, count, length)).astype(np.float32)
    began = time.perf_counter()
    assert len(best_answers(examples, layout, start, end, allow_no_answer=True)) == count
    assert time.perf_counter() - began < 20  # about 1 s on an idle core
