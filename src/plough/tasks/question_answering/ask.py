"""Answer questions about a text with a fine-tuned model: what `plough ask` prints."""

from __future__ import annotations

from typing import Any

import torch
from msgspec.structs import replace

from plough.errors import UsageError
from plough.tasks.question_answering.examples import Example
from plough.tasks.question_answering.features import RightPadding, WindowShape
from plough.tasks.question_answering.model import load_model, load_tokenizer
from plough.tasks.question_answering.spans import Prediction, best_answers
from plough.tasks.question_answering.trainer import make_question_set

__all__ = ["Reader"]

BATCH = 16
CANDIDATES = 20
"""Spans a score is a share of, however few are asked for."""


class Reader:
    """A loaded model that answers. Raises ModelError when `model` cannot be loaded."""

    def __init__(self, model: str, *, length: int = 384, stride: int = 128) -> None:
        self.tokenizer = load_tokenizer(model)
        self.model = load_model(model).eval()
        length = min(length, int(self.tokenizer.model_max_length))
        self.shape = WindowShape(length=length, stride=min(stride, length // 3))

    def ask(self, question: str, context: str, *, top: int = 1, allow_no_answer: bool = False) -> Prediction:
        """The best answers to one question: `nbest` has up to `top`, with probabilities and characters.

        Raises UsageError for an empty question or context.
        """
        for name, text in (("question", question), ("context", context)):
            if not text.strip():
                raise UsageError(f"the {name} is empty")
        example = Example(id="0", question=question, context=context)
        questions = make_question_set([example], self.tokenizer, self.shape)
        collate = RightPadding(self.tokenizer)
        rows: list[dict[str, Any]] = list(questions.inputs)
        starts: list[torch.Tensor] = []
        ends: list[torch.Tensor] = []
        width = questions.windows.offsets.shape[1]
        with torch.inference_mode():
            for at in range(0, len(rows), BATCH):
                output = self.model(**collate(rows[at : at + BATCH]))
                for logits, kept in ((output.start_logits, starts), (output.end_logits, ends)):
                    kept.append(torch.nn.functional.pad(logits.float(), (0, width - logits.shape[1])))
        found = best_answers(
            [example],
            questions.windows,
            torch.cat(starts).numpy(),
            torch.cat(ends).numpy(),
            n_best_size=max(top, CANDIDATES),
            allow_no_answer=allow_no_answer,
        )[0]
        return replace(found, nbest=found.nbest[:top])
