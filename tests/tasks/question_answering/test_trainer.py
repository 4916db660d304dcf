"""Evaluation end to end with a model that knows: it is right only if windows, batches and padding line up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import default_data_collator

from plough import TrainingArguments
from plough.tasks.question_answering.examples import Answer, Example
from plough.tasks.question_answering.features import RightPadding, WindowShape, train_dataset
from plough.tasks.question_answering.spans import best_answers
from plough.tasks.question_answering.trainer import (
    AnswerOptions,
    QuestionAnsweringTrainer,
    make_question_set,
)
from tests.tasks.question_answering.conftest import WORDS, wordpiece

SECRET = "salt"  # one token in every tokenizer here, with the space before it


class Oracle(torch.nn.Module):
    """Scores a token by its id: the secret's high, CLS as asked, the rest low."""

    def __init__(self, tokenizer: Any, *, null: float = -5.0) -> None:
        super().__init__()
        (self.secret,) = tokenizer(" " + SECRET, add_special_tokens=False)["input_ids"]
        self.cls, self.null = tokenizer.cls_token_id, null
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.labels: list[tuple[int, int]] = []

    def forward(  # type: ignore[no-untyped-def]
        self, input_ids, attention_mask, token_type_ids=None, start_positions=None, end_positions=None
    ):
        logits = torch.where(input_ids == self.secret, 9.0, -9.0)
        logits = torch.where(input_ids == self.cls, self.null, logits) + self.weight
        logits = logits.masked_fill(attention_mask == 0, 50.0)  # wrong to look at
        found = {"start_logits": logits, "end_logits": logits}
        if start_positions is None:
            return found
        for row, start, end in zip(input_ids, start_positions, end_positions, strict=True):
            self.labels.append((int(row[start]), int(row[end])))
        return {"loss": logits.mean() * 0 + self.weight.square().sum(), **found}


def question(number: int) -> Example:
    """The secret somewhere in a context of 10 to 400 words, which has it once."""
    others = [word for word in WORDS if word != SECRET]
    words = [others[(number * 5 + i) % len(others)] for i in range(10 + number * 23 % 390)]
    at = 1 + number * 31 % len(words)
    words.insert(at, SECRET)
    start = len(" ".join(words[:at])) + 1
    return Example(
        id=f"q{number}",
        question="where did it go?",
        context=" ".join(words),
        answers=(Answer(SECRET, start),),
    )


QUESTIONS = [question(n) for n in range(23)]


def trainer_for(tokenizer: Any, folder: Path, examples: Any = QUESTIONS, **settings: Any) -> Any:
    pad, null = settings.pop("pad", False), settings.pop("null", -5.0)
    options = settings.pop("options", AnswerOptions())
    shape = WindowShape(length=48, stride=16, pad=pad)
    arguments = {"output_dir": str(folder), "report_to": "none", "disable_tqdm": True, "learning_rate": 0.0}
    return QuestionAnsweringTrainer(
        model=Oracle(tokenizer, null=null),
        args=TrainingArguments(
            **{**arguments, "per_device_eval_batch_size": 4, "save_strategy": "no", **settings}
        ),
        train_dataset=train_dataset(examples, tokenizer, shape, workers=None),
        questions=make_question_set(examples, tokenizer, shape),
        options=options,
        processing_class=tokenizer,
        data_collator=default_data_collator if pad else RightPadding(tokenizer, multiple_of=8),
    )


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_a_model_that_knows_is_always_right(tokenizer: Any, pad: bool, grouped: bool, tmp_path: Path) -> None:
    trainer = trainer_for(tokenizer, tmp_path, pad=pad, group_by_length=grouped)
    metrics = trainer.evaluate()
    predictions = json.loads((tmp_path / "eval_predictions.json").read_text())
    assert predictions == {e.id: SECRET for e in QUESTIONS}
    assert (metrics["eval_exact_match"], metrics["eval_f1"]) == (100.0, 100.0)
    assert list(predictions) == [e.id for e in QUESTIONS]  # in the questions' order
    for prediction, example in zip(trainer.answer(trainer.questions, "eval"), QUESTIONS, strict=True):
        assert prediction.best.start == example.answers[0].start
    assert not (tmp_path / "eval_null_odds.json").exists()
    nbest = json.loads((tmp_path / "eval_nbest_predictions.json").read_text())
    assert all(1 <= len(n) <= 20 and n[0]["text"] == SECRET for n in nbest.values())


@pytest.mark.parametrize("pad", [False, True])
def test_training_batches_carry_the_labels_to_the_right_tokens(
    tokenizer: Any, pad: bool, tmp_path: Path
) -> None:
    trainer = trainer_for(tokenizer, tmp_path, pad=pad, num_train_epochs=1)
    trainer.train()
    model = trainer.model
    assert len(model.labels) == len(trainer.train_dataset)
    right = (model.secret, model.secret)
    assert set(model.labels) == {right, (model.cls, model.cls)}
    assert model.labels.count(right) >= len(QUESTIONS)


def test_windows_come_longest_first(tokenizer: Any, tmp_path: Path) -> None:
    questions = trainer_for(tokenizer, tmp_path).questions
    lengths = [len(ids) for ids in questions.inputs["input_ids"]]
    assert lengths == sorted(lengths, reverse=True)
    assert len(lengths) == len(questions.windows.example) > len(QUESTIONS)
    for i in range(len(lengths)):
        example = QUESTIONS[questions.windows.example[i]]
        run = questions.windows.offsets[i][questions.windows.in_context[i]]
        text = example.context[run[0][0] : run[-1][1]]
        shown = tokenizer.decode(questions.inputs["input_ids"][i])
        assert "".join(text.split()) in "".join(shown.replace(" ##", "").split())


def test_no_answer_is_weighed_against_the_best_span(tokenizer: Any, tmp_path: Path) -> None:
    impossible = Example(id="none", question="where did it go?", context="old king bridges", impossible=True)
    examples = [*QUESTIONS[:3], impossible]
    found = {}
    for threshold in (-40.0, 0.0, 40.0):
        folder = tmp_path / str(threshold)
        options = AnswerOptions(allow_no_answer=True, null_score_diff_threshold=threshold)
        metrics = trainer_for(tokenizer, folder, examples, options=options).evaluate()
        predictions = json.loads((folder / "eval_predictions.json").read_text())
        odds = json.loads((folder / "eval_null_odds.json").read_text())
        found[threshold] = sorted(name for name, text in predictions.items() if not text)
        # The lowest null score is that of any window: -5 + -5; the best span's 18, or -18 without the secret.
        assert odds == {"q0": -28.0, "q1": -28.0, "q2": -28.0, "none": 8.0}
        assert metrics["eval_best_f1"] == 100.0
        assert metrics["eval_best_f1_thresh"] == -28.0
        assert (metrics["eval_HasAns_total"], metrics["eval_NoAns_total"]) == (3, 1)
        assert metrics["eval_exact_match"] == {-40.0: 25.0, 0.0: 100.0, 40.0: 75.0}[threshold]
    assert found == {-40.0: ["none", "q0", "q1", "q2"], 0.0: ["none"], 40.0: []}


def test_questions_without_labels_are_answered_and_not_scored(tokenizer: Any, tmp_path: Path) -> None:
    trainer = trainer_for(tokenizer, tmp_path)
    unlabelled = [Example(id=e.id, question=e.question, context=e.context) for e in QUESTIONS[:4]]
    questions = make_question_set(unlabelled, tokenizer, WindowShape(length=48, stride=16))
    metrics = trainer.evaluate(questions, metric_key_prefix="predict")
    assert not any("f1" in name or "exact" in name for name in metrics)
    assert metrics["predict_samples_per_second"] > 0
    assert json.loads((tmp_path / "predict_predictions.json").read_text()) == {
        f"q{n}": SECRET for n in range(4)
    }


def test_some_windows_are_one_batch_short(tmp_path: Path, tokenizer: Any) -> None:
    """A last batch of one, and a batch larger than all the windows."""
    for size in (1, 3, 1000):
        trainer = trainer_for(tokenizer, tmp_path, QUESTIONS[:5], per_device_eval_batch_size=size)
        assert trainer.evaluate()["eval_exact_match"] == 100.0


def test_an_answer_keeps_the_marks_of_its_last_letter(tmp_path: Path) -> None:
    """A tokenizer that strips accents has no token for the last vowel sign of a Thai word."""
    context, thai = "the king said สวัสดี to all", "สวัสดี"
    example = Example(id="0", question="what?", context=context, answers=(Answer(thai, context.index(thai)),))
    tokenizer = wordpiece()
    trainer = trainer_for(tokenizer, tmp_path, [example])
    window = trainer.questions.windows
    ends = window.offsets[0, :, 1].tolist()
    assert context.index(thai) + len(thai) not in ends
    logits = torch.full((1, len(ends)), -9.0)
    starts, stops = logits.clone(), logits.clone()
    starts[0, trainer.train_dataset["start_positions"][0]] = 9
    stops[0, trainer.train_dataset["end_positions"][0]] = 9
    (found,) = best_answers([example], window, starts.numpy(), stops.numpy())
    assert found.text == thai
