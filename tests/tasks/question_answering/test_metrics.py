"""Exact match and F1. The literal numbers were checked against SQuAD's own scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.tasks.question_answering.examples import Answer, Example
from plough.tasks.question_answering.metrics import (
    exact_match,
    f1,
    gold_texts,
    normalize_answer,
    score_v1,
    score_v2,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat's\tpaw!", "cats paw"),
        ("a-b", "ab"),
        ("An apple, a day; the end", "apple day end"),
        ("theory of another", "theory of another"),
        ("the.", ""),
        ("«Zürich»", "«zürich»"),  # only ASCII punctuation goes
        ("北京，中国", "北京，中国"),
        ("İ", "i̇"),
        ("", ""),
    ],
)
def test_normalize(text: str, expected: str) -> None:
    assert normalize_answer(text) == expected


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1_score"),
    [
        ("the Eiffel Tower", "Eiffel tower.", 1.0, 1.0),
        ("Eiffel", "Eiffel Tower", 0.0, 2 / 3),
        ("x y y", "y y y z", 0.0, 2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4)),
        ("x", "y", 0.0, 0.0),
        ("", "", 1.0, 1.0),
        ("the", "", 1.0, 1.0),
        ("", "y", 0.0, 0.0),
    ],
)
def test_exact_match_and_f1(prediction: str, gold: str, exact: float, f1_score: float) -> None:
    assert exact_match(prediction, gold) == exact
    assert f1(prediction, gold) == pytest.approx(f1_score)


def test_v1_takes_the_best_gold_and_counts_the_unanswered() -> None:
    golds = {"1": ("Denver Broncos", "Broncos"), "2": ("10",), "3": ("x",)}
    assert score_v1({"1": "the Broncos", "2": "10 people"}, golds) == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (1 + 2 / 3) / 3),
    }
    assert score_v1({"1": "the"}, {"1": ("a",)}) == {"exact_match": 100.0, "f1": 0.0}  # v1.1's own oddity
    with pytest.raises(ValueError, match="nothing to score"):
        score_v1({}, {})


V2_GOLDS: dict[str, tuple[str, ...]] = {
    "h1": ("ten people", "10"),
    "h2": ("Paris",),
    "n1": (),
    "n2": (),
    "h3": ("the",),  # normalises to nothing
}
V2_PREDICTIONS = {"h1": "ten", "h2": "Paris", "n1": "", "n2": "London", "h3": ""}
V2_ODDS = {"h1": -2.0, "h2": 3.0, "n1": 1.0, "n2": 2.0, "h3": 0.5}


def test_v2() -> None:
    expected = {
        "exact": 60.0,
        "f1": 100 * (2 / 3 + 3) / 5,
        "total": 5,
        "HasAns_exact": 100 * 2 / 3,
        "HasAns_f1": 100 * (2 / 3 + 2) / 3,
        "HasAns_total": 3,
        "NoAns_exact": 50.0,
        "NoAns_f1": 50.0,
        "NoAns_total": 2,
    }
    assert score_v2(V2_PREDICTIONS, V2_GOLDS) == pytest.approx(expected)
    with_odds = score_v2(V2_PREDICTIONS, V2_GOLDS, null_odds=V2_ODDS)
    assert with_odds == pytest.approx(
        expected
        | {"best_exact": 60.0, "best_exact_thresh": 0.5}
        | {"best_f1": 100 * (2 / 3 + 3) / 5, "best_f1_thresh": 0.5}
    )


def test_v2_threshold_silences() -> None:
    scores = score_v2(V2_PREDICTIONS, V2_GOLDS, null_odds=V2_ODDS, null_threshold=1.5)
    # n2's wrong London becomes a right "no answer"; h2's right Paris becomes a wrong one.
    assert (scores["exact"], scores["NoAns_exact"]) == (60.0, 100.0)
    assert scores["HasAns_exact"] == pytest.approx(100 / 3)


def test_v2_without_either_kind_and_without_predictions() -> None:
    assert "NoAns_total" not in score_v2({"1": "x"}, {"1": ("x",)})
    assert "HasAns_total" not in score_v2({"1": ""}, {"1": ()})
    assert score_v2({"1": "x"}, {"1": ("x",), "2": ("y",)})["total"] == 1
    with pytest.raises(ValueError, match="nothing to score"):
        score_v2({}, {"1": ("x",)})


def test_gold_texts_leave_out_the_unlabelled() -> None:
    examples = [
        Example(id="1", question="q", context="c", answers=(Answer("c", 0), Answer("d", None))),
        Example(id="2", question="q", context="c", impossible=True),
        Example(id="3", question="q", context="c"),
    ]
    assert gold_texts(examples) == {"1": ("c", "d"), "2": ()}


WORDS = st.lists(st.sampled_from(["the", "a", "cat", "dog", "10", "猫", "-"]), max_size=6).map(" ".join)


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_no_lower_than_exact_match(left: str, right: str) -> None:
    assert f1(left, right) == pytest.approx(f1(right, left))
    assert exact_match(left, right) == exact_match(right, left)
    assert exact_match(left, right) <= f1(left, right) <= 1
    assert f1(left, left) == 1


@given(
    st.dictionaries(st.integers(0, 30).map(str), st.tuples(WORDS, st.lists(WORDS, max_size=2)), min_size=1),
    st.randoms(use_true_random=False),
)
def test_the_best_threshold_is_the_best_of_all(questions: dict[str, tuple[str, list[str]]], random) -> None:  # type: ignore[no-untyped-def]
    # The script asks whether a prediction is empty as written, the score whether it is once normalised.
    predictions = {id_: f"cat {prediction}" for id_, (prediction, _) in questions.items()}
    golds = {id_: texts for id_, (_, texts) in questions.items()}
    odds = dict(zip(questions, random.sample(range(100), len(questions)), strict=True))
    best = score_v2(predictions, golds, null_odds=odds)
    tried = [
        score_v2(predictions, golds, null_odds=odds, null_threshold=threshold)["f1"]
        for threshold in [-1, *odds.values()]
    ]
    assert best["best_f1"] == pytest.approx(max(tried))
