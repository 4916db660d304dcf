"""A Trainer whose evaluation answers questions: logits to spans to EM and F1.

Knows how to score, not where questions come from. Works with --eval_strategy, early stopping and
load_best_model_at_end, because `evaluate` returns eval_f1 and eval_exact_match like any other metric.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from datasets import Dataset
from transformers.trainer_utils import speed_metrics

from plough.files import write_json_atomic
from plough.tasks.question_answering.examples import Example
from plough.tasks.question_answering.features import WindowShape, cut_windows, windows_of
from plough.tasks.question_answering.metrics import gold_texts, score_v1, score_v2
from plough.tasks.question_answering.spans import (
    Prediction,
    Windows,
    best_answers,
    nbest_json,
    null_odds_json,
    predictions_json,
)
from plough.train.trainer import Trainer

__all__ = ["AnswerOptions", "QuestionAnsweringTrainer", "QuestionSet", "make_question_set"]


class AnswerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How logits become an answer; see `spans.best_answers`."""

    n_best_size: int = 20
    max_answer_length: int = 30
    allow_no_answer: bool = False
    null_score_diff_threshold: float = 0.0


class QuestionSet(msgspec.Struct, frozen=True, kw_only=True):
    """Questions to be answered: the examples, their windows, and the windows as model inputs."""

    examples: tuple[Example, ...]
    windows: Windows
    inputs: Dataset


def make_question_set(examples: Sequence[Example], tokenizer: Any, shape: WindowShape) -> QuestionSet:
    """Windows sorted longest first, so that a batch pads little and memory peaks at once, not at the end."""
    columns = cut_windows(examples, tokenizer, shape)
    order = np.argsort([-len(ids) for ids in columns["input_ids"]], kind="stable")
    columns = {name: [values[i] for i in order] for name, values in columns.items()}
    inputs = {name: columns[name] for name in tokenizer.model_input_names if name in columns}
    return QuestionSet(
        examples=tuple(examples), windows=windows_of(columns, tokenizer), inputs=Dataset.from_dict(inputs)
    )


class QuestionAnsweringTrainer(Trainer):
    """eval_dataset is a QuestionSet, not a Dataset: scoring needs the texts."""

    def __init__(
        self, *args: Any, questions: QuestionSet | None, options: AnswerOptions, **kwargs: Any
    ) -> None:
        super().__init__(*args, eval_dataset=questions.inputs if questions else None, **kwargs)
        self.questions = questions
        self.options = options

    def evaluate(  # type: ignore[no-untyped-def]
        self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """EM and F1 (percent) on the question set, logged, saved and returned under `metric_key_prefix`."""
        questions = eval_dataset or self.questions
        assert questions is not None, "evaluate needs a question set"
        started = time.time()
        predictions = self.answer(questions, metric_key_prefix)
        golds = gold_texts(questions.examples)
        metrics: dict[str, float] = {}
        if golds:
            metrics = score(predictions, golds, self.options)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        metrics.update(speed_metrics(metric_key_prefix, started, num_samples=len(questions.examples)))
        self.log(metrics)
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def answer(self, questions: QuestionSet, prefix: str) -> list[Prediction]:
        """Collective: a prediction per question, the same in every rank; rank 0 leaves them in files."""
        output = self.evaluation_loop(
            self.get_test_dataloader(questions.inputs), description="answering", prediction_loss_only=False
        )
        start_logits, end_logits = output.predictions
        predictions = best_answers(
            questions.examples,
            questions.windows,
            start_logits,
            end_logits,
            **msgspec.structs.asdict(self.options),
        )
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            write_predictions(folder, predictions, prefix, null_odds=self.options.allow_no_answer)
        return predictions


def score(
    predictions: Sequence[Prediction], golds: dict[str, tuple[str, ...]], options: AnswerOptions
) -> dict[str, float]:
    """`exact_match` and `f1` in percent; for v2.0 also the script's HasAns_, NoAns_ and best_ figures."""
    if not options.allow_no_answer:
        return score_v1(predictions_json(predictions), golds)
    found = score_v2(
        {p.id: p.best.text for p in predictions},
        golds,
        null_odds=null_odds_json(predictions),
        null_threshold=options.null_score_diff_threshold,
    )
    return {"exact_match": found.pop("exact"), **found}


def write_predictions(
    folder: Path, predictions: Sequence[Prediction], prefix: str, *, null_odds: bool
) -> None:
    """`{prefix}_predictions.json`, `..._nbest_predictions.json`, and for v2.0 `..._null_odds.json`."""
    contents: dict[str, Any] = {
        "predictions": predictions_json(predictions),
        "nbest_predictions": nbest_json(predictions),
    }
    if null_odds:
        contents["null_odds"] = null_odds_json(predictions)
    for name, content in contents.items():
        write_json_atomic(folder / f"{prefix}_{name}.json", content)
