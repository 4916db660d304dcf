"""Exact match and F1 as SQuAD's own evaluation scripts define them, v1.1 and v2.0.

Written from the published definition (Rajpurkar et al., 2016 and 2018; the scripts evaluate-v1.1.py and
evaluate-v2.0.py of the SQuAD website), because no kept library has both without a hub: transformers removed
its copy, `evaluate` fetches one, torchmetrics has v1.1 only.

Knows answers as texts and nothing else: no files, tokens or logits. Like the scripts it lower-cases, drops
the 32 ASCII punctuation marks and the English articles, and splits at whitespace. Chinese or Thai text is
therefore one token, and its F1 nearly its exact match; that is the definition, and numbers stay comparable.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from plough.tasks.question_answering.examples import Example

__all__ = ["exact_match", "f1", "gold_texts", "normalize_answer", "score_v1", "score_v2"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, then no ASCII punctuation, then no articles, then single spaces: in that order, so that
    "a-b" loses nothing but its hyphen and "the." is an article."""
    bare = text.lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, gold: str) -> float:
    """1.0 when both normalise to the same text, else 0.0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def f1(prediction: str, gold: str, *, empty_matches_empty: bool = True) -> float:
    """F1 between the bags of normalised tokens, in [0, 1].

    `empty_matches_empty` is v2.0's rule for texts without tokens: 1.0 if both are, else 0.0. v1.1 has no
    such rule and gives 0.0.
    """
    predicted, wanted = normalize_answer(prediction).split(), normalize_answer(gold).split()
    if not predicted or not wanted:
        return float(empty_matches_empty and predicted == wanted)
    shared = (Counter(predicted) & Counter(wanted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def gold_texts(examples: Iterable[Example]) -> dict[str, tuple[str, ...]]:
    """The gold texts per id of every labelled example; none for an impossible one. What scoring takes."""
    return {e.id: tuple(answer.text for answer in e.answers) for e in examples if e.labelled}


def score_v1(predictions: Mapping[str, str], golds: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """SQuAD v1.1: `exact_match` and `f1` in percent over all of `golds`, the best gold counting.

    A question without a prediction scores 0, and so does one without a gold text. Raises ValueError when
    `golds` is empty.
    """
    _refuse_empty(golds)
    exact_sum = f1_sum = 0.0
    for id_, texts in golds.items():
        prediction = predictions.get(id_)
        if prediction is not None and texts:
            exact_sum += max(exact_match(prediction, gold) for gold in texts)
            f1_sum += max(f1(prediction, gold, empty_matches_empty=False) for gold in texts)
    return {"exact_match": 100 * exact_sum / len(golds), "f1": 100 * f1_sum / len(golds)}


def score_v2(
    predictions: Mapping[str, str],
    golds: Mapping[str, Sequence[str]],
    *,
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float | None = None,
) -> dict[str, float]:
    """SQuAD v2.0, in percent, under the script's own names.

    `exact`, `f1`, `total`; the same as `HasAns_*` and `NoAns_*` where there are such questions; and with
    `null_odds` (higher means "no answer" is likelier) `best_exact`, `best_f1` and their `_thresh`: the
    scores if each prediction were replaced by "" where its odds exceed the best single threshold. For those
    to mean something, `predictions` should be the best texts before any threshold; `null_threshold` then
    applies one: a prediction whose odds exceed it counts as "".

    golds: per id; a question has an answer when it has any gold text. As in the script, golds that normalise
    to nothing are left out when scoring, and a question without a prediction is not counted. Raises
    ValueError when no gold question has a prediction.
    """
    ids = [id_ for id_ in golds if id_ in predictions]
    _refuse_empty(ids)
    answerable = {id_: bool(golds[id_]) for id_ in golds}
    raw = {
        "exact": {id_: _best(exact_match, predictions[id_], golds[id_]) for id_ in ids},
        "f1": {id_: _best(f1, predictions[id_], golds[id_]) for id_ in ids},
    }
    scores = raw
    if null_odds is not None and null_threshold is not None:
        silenced = {id_ for id_ in ids if null_odds.get(id_, 0.0) > null_threshold}
        scores = {
            name: {id_: float(not answerable[id_]) if id_ in silenced else value for id_, value in of.items()}
            for name, of in raw.items()
        }
    result: dict[str, float] = {}
    for prefix, group in (
        ("", ids),
        ("HasAns_", [id_ for id_ in ids if answerable[id_]]),
        ("NoAns_", [id_ for id_ in ids if not answerable[id_]]),
    ):
        if group:
            for name, of in scores.items():
                result[prefix + name] = 100 * sum(of[id_] for id_ in group) / len(group)
            result[prefix + "total"] = len(group)
    if null_odds is not None:
        for name, of in raw.items():
            best, threshold = _best_threshold(of, predictions, answerable, null_odds)
            result[f"best_{name}"] = best
            result[f"best_{name}_thresh"] = threshold
    return result


def _best(measure: Callable[[str, str], float], prediction: str, golds: Sequence[str]) -> float:
    """Over the golds that normalise to something; "" is the gold of a question that has none."""
    return max(measure(prediction, gold) for gold in [g for g in golds if normalize_answer(g)] or [""])


def _best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    answerable: Mapping[str, bool],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """The best score in percent and the lowest threshold that reaches it.

    Starts from answering nothing, which is right for every question without an answer, and lets the answers
    in by rising odds: each adds its score, or takes the point back that silence had earned.
    """
    current = float(sum(not has for has in answerable.values()))
    best, threshold = current, 0.0
    for id_ in sorted(null_odds, key=lambda known: null_odds[known]):
        if id_ not in scores:
            continue
        if answerable[id_]:
            current += scores[id_]
        elif predictions[id_]:
            current -= 1
        if current > best:
            best, threshold = current, null_odds[id_]
    return 100 * best / len(scores), threshold


def _refuse_empty(questions: Mapping[str, Sequence[str]] | Sequence[str]) -> None:
    if not questions:
        raise ValueError("nothing to score: no labelled question has a prediction")
