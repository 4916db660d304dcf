"""From start and end logits to answers: the best spans of each question over all its windows.

Numpy only. Knows examples and character offsets; knows nothing of tokenizers, token types, torch or files.
Texts are cut from the context by offset, never put together from tokens. The rules are those of the BERT
paper's SQuAD procedure (Devlin et al., 2019, section 4.2 and 4.3) as Transformers' run_qa.py carries them
out, with three differences that only ever remove bad candidates: tokens outside the context never take a
place among the n best, the n best of a window are found exactly rather than among its n best starts and ends,
and one character span is one candidate however many windows or tokens spell it. A preference for the window
with most context around a token is left out, as it is in run_qa.py: the overlap's better score wins.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from plough.errors import ModelError
from plough.tasks.question_answering.examples import Example

__all__ = [
    "Candidate",
    "Prediction",
    "Windows",
    "best_answers",
    "nbest_json",
    "null_odds_json",
    "predictions_json",
]

Floats: TypeAlias = npt.NDArray[np.floating]
Ints: TypeAlias = npt.NDArray[np.integer]

# Elements of the widest temporary array: about 32 MB of float64, whatever the number of windows.
_CHUNK_ELEMENTS = 4_000_000
_LEAST = -1e30  # for a masked null logit: a score that JSON can write


@dataclass(frozen=True, eq=False, kw_only=True)
class Windows:
    """How W windows of L tokens lie on the examples' contexts. Shorter windows are padded, on either side.

    example: [W] index of the example a window is of; windows of one example need not be neighbours.
    offsets: [W, L, 2] start and end of each token in its context's characters; ignored outside the context.
    in_context: [W, L] which tokens are of the context (one run per window), so not question, special, pad.
    null: [W] the token that stands for "no answer": CLS, wherever the tokenizer puts it.
    """

    example: Ints
    offsets: Ints
    in_context: npt.NDArray[np.bool_]
    null: Ints


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A possible answer: `context[start:end] == text`; "" with start and end 0 stands for "no answer".

    probability: softmax of start_logit + end_logit over the candidates listed together.
    """

    text: str
    start: int
    end: int
    probability: float
    start_logit: float
    end_logit: float


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says to a question.

    id: the example's.
    text: the answer; "" for "no answer".
    nbest: at least one candidate, best first, "no answer" among them when it is allowed.
    null_odds: score of "no answer" less the score of the best span; None when "no answer" is not allowed.
    """

    id: str
    text: str
    nbest: tuple[Candidate, ...]
    null_odds: float | None = None

    @property
    def best(self) -> Candidate:
        """The best candidate with a text, whatever the threshold; "no answer" if no span was possible."""
        return next((candidate for candidate in self.nbest if candidate.text), self.nbest[0])


def best_answers(
    examples: Sequence[Example],
    windows: Windows,
    start_logits: Floats,
    end_logits: Floats,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    allow_no_answer: bool = False,
    null_score_diff_threshold: float = 0.0,
) -> list[Prediction]:
    """One prediction per example, in the examples' order.

    start_logits, end_logits: [W, L]; columns beyond the windows' L are ignored.
    n_best_size: candidates kept per example, at most; one more where "no answer" or a span would be missing.
    max_answer_length: in tokens, start and end included.
    allow_no_answer: SQuAD v2.0. The score of "no answer" is the lowest, over an example's windows, of the
        null token's start logit + end logit: the context as a whole has no answer only if no part has.
    null_score_diff_threshold: "no answer" is given when `null_odds` exceeds it.

    An example without windows, or without any span, gets "". Raises ModelError when a logit is not a number
    or +infinity (-infinity masks a token), ValueError when shapes disagree or a size is below 1.
    """
    start_logits, end_logits = _checked(windows, start_logits, end_logits, n_best_size, max_answer_length)
    spans = _Spans(windows, start_logits, end_logits, n_best_size, max_answer_length)
    nulls: list[tuple[float, float] | None] = [None] * len(examples)
    if allow_no_answer:
        nulls = _null_logits(windows, start_logits, end_logits, len(examples))
    groups = _windows_by_example(windows.example, len(examples))
    return [
        _predict(example, spans.of(group), null, n_best_size, allow_no_answer, null_score_diff_threshold)
        for example, group, null in zip(examples, groups, nulls, strict=True)
    ]


def predictions_json(predictions: Sequence[Prediction]) -> dict[str, str]:
    """id -> text, the content of predictions.json."""
    return {prediction.id: prediction.text for prediction in predictions}


def nbest_json(predictions: Sequence[Prediction]) -> dict[str, list[dict[str, str | float]]]:
    """id -> candidates, best first, the content of nbest_predictions.json."""
    return {
        prediction.id: [
            {
                "text": candidate.text,
                "probability": candidate.probability,
                "start_logit": candidate.start_logit,
                "end_logit": candidate.end_logit,
            }
            for candidate in prediction.nbest
        ]
        for prediction in predictions
    }


def null_odds_json(predictions: Sequence[Prediction]) -> dict[str, float]:
    """id -> null odds, the content of null_odds.json; empty when "no answer" was not allowed."""
    return {p.id: p.null_odds for p in predictions if p.null_odds is not None}


@dataclass(frozen=True, eq=False)
class _Found:
    """Candidate spans, any order: character start and end, start and end logit, each [N]."""

    starts: Ints
    ends: Ints
    start_logits: Floats
    end_logits: Floats


class _Spans:
    """The n best token spans of every window, as character spans."""

    def __init__(
        self, windows: Windows, start_logits: Floats, end_logits: Floats, n_best: int, longest: int
    ) -> None:
        count, length = windows.in_context.shape
        self._n = min(n_best, length * min(longest, length))
        self._starts = np.zeros((count, self._n), np.int64)
        self._ends = np.zeros((count, self._n), np.int64)
        self._start_logits = np.full((count, self._n), -np.inf)
        self._end_logits = np.full((count, self._n), -np.inf)
        longest = min(longest, length)
        rows = max(1, _CHUNK_ELEMENTS // (max(length, min(n_best, length) * longest) + 1))
        for first in range(0, count, rows):
            chunk = slice(first, first + rows)
            self._fill(chunk, windows, start_logits[chunk], end_logits[chunk], n_best, longest)

    def of(self, group: Ints) -> _Found:
        """The candidates of some windows together."""
        possible = np.isfinite(self._start_logits[group] + self._end_logits[group])
        return _Found(
            self._starts[group][possible],
            self._ends[group][possible],
            self._start_logits[group][possible],
            self._end_logits[group][possible],
        )

    def _fill(
        self, chunk: slice, windows: Windows, starts: Floats, ends: Floats, n_best: int, longest: int
    ) -> None:
        offsets = windows.offsets[chunk]
        # A token without characters (a lone space mark) can neither begin nor end an answer.
        usable = windows.in_context[chunk] & (offsets[..., 1] > offsets[..., 0])
        start_scores = np.where(usable, starts, -np.inf).astype(np.float64)
        end_scores = np.where(usable, ends, -np.inf).astype(np.float64)
        # Every one of the n best spans begins at one of the n tokens whose own best span scores highest, so
        # only those starts are crossed with all their ends: exact, and L / n times less work.
        ahead = _maximum_ahead(end_scores, longest)
        begin = _top(start_scores + ahead, n_best)
        rows = np.arange(len(begin))[:, None]
        length = start_scores.shape[1]
        end = begin[:, :, None] + np.arange(longest)
        inside = end < length
        end = np.minimum(end, length - 1)
        scores = start_scores[rows, begin][:, :, None] + end_scores[rows[:, :, None], end]
        scores = np.where(inside, scores, -np.inf).reshape(len(begin), -1)
        chosen = _top(scores, self._n)
        chosen_begin = begin[rows, chosen // longest]
        chosen_end = end.reshape(len(begin), -1)[rows, chosen]
        possible = np.isfinite(scores[rows, chosen])
        width = chosen.shape[1]
        self._starts[chunk, :width] = offsets[rows, chosen_begin, 0]
        self._ends[chunk, :width] = offsets[rows, chosen_end, 1]
        self._start_logits[chunk, :width] = np.where(possible, start_scores[rows, chosen_begin], -np.inf)
        self._end_logits[chunk, :width] = np.where(possible, end_scores[rows, chosen_end], -np.inf)


def _maximum_ahead(values: Floats, width: int) -> Floats:
    """[W, L]: the highest of `values[:, i : i + width]` for every i, by doubling: log2(width) passes."""
    best, covered = values, 1
    while covered < width:
        step = min(covered, width - covered)
        shifted = np.full_like(best, -np.inf)
        shifted[:, :-step] = best[:, step:]
        best = np.maximum(best, shifted)
        covered += step
    return best


def _top(scores: Floats, count: int) -> npt.NDArray[np.int64]:
    """[W, min(count, L)]: columns of each row's highest scores, in no order."""
    if count >= scores.shape[1]:
        return np.broadcast_to(np.arange(scores.shape[1]), scores.shape).astype(np.int64)
    return np.argpartition(scores, -count, axis=1)[:, -count:].astype(np.int64)


def _null_logits(
    windows: Windows, start_logits: Floats, end_logits: Floats, examples: int
) -> list[tuple[float, float] | None]:
    """Per example, start and end logit of the null token in the window where their sum is lowest."""
    rows = np.arange(len(windows.null))
    starts = np.maximum(start_logits[rows, windows.null].astype(np.float64), _LEAST)
    ends = np.maximum(end_logits[rows, windows.null].astype(np.float64), _LEAST)
    order = np.argsort(-(starts + ends), kind="stable")
    lowest: list[tuple[float, float] | None] = [None] * examples
    for row in order.tolist():  # the lowest comes last, and stays
        lowest[int(windows.example[row])] = (float(starts[row]), float(ends[row]))
    return lowest


def _windows_by_example(example: Ints, examples: int) -> Iterator[Ints]:
    order = np.argsort(example, kind="stable")
    bounds = np.searchsorted(example[order], np.arange(examples + 1))
    for first, last in pairwise(bounds.tolist()):
        yield order[first:last]


def _predict(
    example: Example,
    found: _Found,
    null: tuple[float, float] | None,
    n_best: int,
    allow_no_answer: bool,
    threshold: float,
) -> Prediction:
    listed = _distinct(example.context, found, n_best)
    null_odds = None
    if allow_no_answer:
        null_start, null_end = null or (0.0, 0.0)
        best_span = sum(listed[0][3:]) if listed else 0.0
        null_odds = null_start + null_end - best_span
        listed.append(("", 0, 0, null_start, null_end))
        listed.sort(key=lambda item: -(item[3] + item[4]))
        # Both kinds stay listed, whatever n_best: a threshold may prefer either.
        if len(listed) > n_best > 1 and listed[-1][0]:
            listed.pop()
    if not listed:
        listed = [("", 0, 0, 0.0, 0.0)]
    scores = np.array([start + end for *_, start, end in listed])
    weights = np.exp(scores - scores.max())
    nbest = tuple(
        Candidate(text=text, start=start, end=end, probability=float(p), start_logit=first, end_logit=last)
        for (text, start, end, first, last), p in zip(listed, weights / weights.sum(), strict=True)
    )
    best = next((candidate.text for candidate in nbest if candidate.text), "")
    silent = null_odds is not None and null_odds > threshold
    return Prediction(id=example.id, text="" if silent else best, nbest=nbest, null_odds=null_odds)


def _distinct(context: str, found: _Found, n_best: int) -> list[tuple[str, int, int, float, float]]:
    """The best `n_best` different spans: (text, start, end, start logit, end logit), best first.

    Equal scores: the earlier, then the shorter span. Byte-level tokens carry the space before a word in
    their offsets, and one character may be several tokens; so spans are trimmed before they are compared.
    """
    listed: list[tuple[str, int, int, float, float]] = []
    seen: set[tuple[int, int]] = set()
    order = np.lexsort((found.ends, found.starts, -(found.start_logits + found.end_logits)))
    for index in order.tolist():
        start, end = int(found.starts[index]), int(found.ends[index])
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        end = _with_marks(context, start + len(text.strip()))
        text = context[start:end]
        span = (start, end)
        if text and span not in seen:
            seen.add(span)
            listed.append((text, *span, float(found.start_logits[index]), float(found.end_logits[index])))
            if len(listed) == n_best:
                break
    return listed


def _with_marks(context: str, end: int) -> int:
    """`end` moved past the marks of the character before it: accents and vowel signs, which tokenizers that
    strip accents leave out of every token (the last sign of a Thai word, say)."""
    while 0 < end < len(context) and unicodedata.category(context[end]).startswith("M"):
        end += 1
    return end


def _checked(
    windows: Windows, start_logits: Floats, end_logits: Floats, n_best: int, longest: int
) -> tuple[Floats, Floats]:
    count, length = windows.in_context.shape
    if n_best < 1 or longest < 1:
        raise ValueError(f"n_best_size {n_best} and max_answer_length {longest} must be at least 1")
    for name, logits in (("start", start_logits), ("end", end_logits)):
        if logits.ndim != 2 or logits.shape[0] != count or logits.shape[1] < length:
            raise ValueError(f"{name} logits of shape {logits.shape} for {count} windows of {length} tokens")
        bad = int(np.count_nonzero(np.isnan(logits) | np.isposinf(logits)))
        if bad:
            raise ModelError(
                f"{bad:,} of {logits.size:,} {name} logits are not finite: the model has diverged",
                hint="train again with a lower learning rate, or in fp32 instead of bf16",
            )
    return start_logits[:, :length], end_logits[:, :length]
