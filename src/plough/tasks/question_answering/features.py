"""From questions to windows of tokens: what the model sees, and where each token stands in its context.

Knows tokenizers and numpy, not models or training. A context longer than a window is cut into several
that overlap by `stride` tokens, so that an answer near an edge is whole in at least one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from datasets import Dataset
from datasets.utils import logging as datasets_logging

from plough.errors import UsageError
from plough.tasks.question_answering.examples import Example
from plough.tasks.question_answering.spans import Windows

__all__ = ["RightPadding", "WindowShape", "cut_windows", "train_dataset", "windows_of"]

LEAST_QUESTION = 8
"""A window must have room for a question of at least so many tokens."""
CHUNK = 100
"""Examples tokenized at once: what a tokenizer returns takes many kilobytes per window."""


class WindowShape(msgspec.Struct, frozen=True, kw_only=True):
    """length: tokens in a window. stride: tokens two windows share. pad: to full length, else not at all."""

    length: int
    stride: int
    pad: bool = False


class RightPadding:
    """Collates windows into a batch padded on the right, whichever side the tokenizer pads.

    Positions and offsets count from a window's first token: padding on the left would move every token.
    """

    def __init__(self, tokenizer: Any, *, multiple_of: int | None = None) -> None:
        self.tokenizer, self.multiple_of = tokenizer, multiple_of

    def __call__(self, windows: list[dict[str, Any]]) -> Any:
        return self.tokenizer.pad(
            windows, pad_to_multiple_of=self.multiple_of, padding_side="right", return_tensors="pt"
        )


def cut_windows(examples: Sequence[Example], tokenizer: Any, shape: WindowShape) -> dict[str, list[Any]]:
    """Columns of one row per window: the model's inputs, `example`, `offset_mapping` and `in_context`.

    example: index into `examples`. offset_mapping: [L, 2] characters of the context. in_context: [L].
    The context is the tokenizer's second segment, or its first where it pads on the left.
    Raises UsageError when the window has no room for a question.
    """
    columns: dict[str, list[Any]] = {}
    for first in range(0, len(examples), CHUNK):
        part = _cut_chunk(examples[first : first + CHUNK], tokenizer, shape)
        part["example"] = [first + index for index in part["example"]]
        for name, values in part.items():
            columns.setdefault(name, []).extend(values)
    return columns


def _cut_chunk(examples: Sequence[Example], tokenizer: Any, shape: WindowShape) -> dict[str, list[Any]]:
    questions = _short_enough([e.question.strip() for e in examples], tokenizer, shape)
    contexts = [e.context for e in examples]
    right = tokenizer.padding_side == "right"
    encoded = tokenizer(
        questions if right else contexts,
        contexts if right else questions,
        truncation="only_second" if right else "only_first",
        max_length=shape.length,
        stride=shape.stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        padding="max_length" if shape.pad else False,
    )
    segment = 1 if right else 0
    columns = {name: list(values) for name, values in encoded.items()}
    columns["example"] = columns.pop("overflow_to_sample_mapping")
    columns["in_context"] = [
        np.array([s == segment for s in encoded.sequence_ids(i)]) for i in range(len(columns["example"]))
    ]
    columns["offset_mapping"] = [np.array(pairs, dtype=np.int32) for pairs in columns["offset_mapping"]]
    return columns


def windows_of(columns: dict[str, list[Any]], tokenizer: Any) -> Windows:
    """The windows as `spans.best_answers` takes them: padded on the right to the longest."""
    rows, length = len(columns["example"]), max(map(len, columns["input_ids"]), default=0)
    offsets = np.zeros((rows, length, 2), dtype=np.int64)
    in_context = np.zeros((rows, length), dtype=bool)
    for i, (pairs, inside) in enumerate(zip(columns["offset_mapping"], columns["in_context"], strict=True)):
        offsets[i, : len(pairs)] = pairs
        in_context[i, : len(inside)] = inside
    return Windows(
        example=np.asarray(columns["example"], dtype=np.int64),
        offsets=offsets,
        in_context=in_context,
        null=np.asarray([_null(ids, tokenizer) for ids in columns["input_ids"]], dtype=np.int64),
    )


def train_dataset(
    examples: Sequence[Example], tokenizer: Any, shape: WindowShape, *, workers: int | None
) -> Dataset:
    """Windows with `start_positions` and `end_positions`, and `length` for batching by length.

    A window that does not hold the whole answer points at the null token.
    workers: processes; None for this one, whose tokenizer uses every core of the rank.
    """
    source = Dataset.from_dict({"index": list(range(len(examples)))})

    def cut(batch: dict[str, list[int]]) -> dict[str, list[Any]]:
        chosen = [examples[i] for i in batch["index"]]
        columns = cut_windows(chosen, tokenizer, shape)
        starts, ends = _positions(columns, chosen, tokenizer)
        del columns["offset_mapping"], columns["in_context"], columns["example"]
        lengths = [len(ids) for ids in columns["input_ids"]]
        return {**columns, "start_positions": starts, "end_positions": ends, "length": lengths}

    # Its bars are of no interest beside the training bar, and each rank would draw one.
    datasets_logging.disable_progress_bar()
    return source.map(
        cut,
        batched=True,
        batch_size=CHUNK,
        remove_columns=["index"],
        num_proc=workers if workers and workers > 1 else None,
        # Made anew each time: naming the cache would mean hashing every context.
        new_fingerprint=f"plough-{np.random.SeedSequence().entropy:x}"[:64],
        keep_in_memory=not (workers and workers > 1),
    )


def _positions(
    columns: dict[str, list[Any]], examples: Sequence[Example], tokenizer: Any
) -> tuple[list[int], list[int]]:
    """First and last token of the first gold answer in each window; the null token where it is not whole."""
    starts, ends = [], []
    rows = zip(
        columns["example"],
        columns["offset_mapping"],
        columns["in_context"],
        columns["input_ids"],
        strict=True,
    )
    for index, offset_mapping, in_context, input_ids in rows:
        start = end = _null(input_ids, tokenizer)
        answers = [a for a in examples[index].answers if a.start is not None]
        inside = np.flatnonzero(in_context)
        if answers and len(inside):
            offsets = offset_mapping[inside]
            a = answers[0].start
            b = a + len(answers[0].text)
            if offsets[0, 0] <= a and offsets[-1, 1] >= b:
                # The tokens that share a character with the answer. A byte-level tokenizer may spell one
                # character with several tokens, all with that character's offsets.
                touching = inside[(offsets[:, 1] > a) & (offsets[:, 0] < b) & (offsets[:, 1] > offsets[:, 0])]
                if len(touching):  # else an answer that no token stands for
                    start, end = int(touching[0]), int(touching[-1])
        starts.append(start)
        ends.append(end)
    return starts, ends


def _null(input_ids: Sequence[int], tokenizer: Any) -> int:
    cls = tokenizer.cls_token_id
    if cls is not None and cls in input_ids:
        return input_ids.index(cls)
    bos = tokenizer.bos_token_id
    return input_ids.index(bos) if bos is not None and bos in input_ids else 0


def _short_enough(questions: list[str], tokenizer: Any, shape: WindowShape) -> list[str]:
    """Cut questions that leave a window no room to move on through the context."""
    special = tokenizer.num_special_tokens_to_add(pair=True)
    room = shape.length - special - shape.stride - 1
    if room < LEAST_QUESTION:
        raise UsageError(
            f"--max_seq_length {shape.length} with --doc_stride {shape.stride} leaves {max(room, 0)} tokens "
            "for the question",
            hint=f"use --doc_stride {max(0, shape.length // 3)} or less, or a longer --max_seq_length",
        )
    offsets = _offsets(tokenizer, questions)
    return [
        question if len(pairs) <= room else _cut(question, pairs, tokenizer, room)
        for question, pairs in zip(questions, offsets, strict=True)
    ]


def _cut(question: str, pairs: list[tuple[int, int]], tokenizer: Any, room: int) -> str:
    """Its beginning, of at most `room` tokens. A shorter text may be spelt with more tokens: look again."""
    while len(pairs) > room:
        question = question[: min(pairs[room][0], len(question) - 1)].rstrip()
        pairs = _offsets(tokenizer, [question])[0]
    return question


def _offsets(tokenizer: Any, texts: list[str]) -> list[list[tuple[int, int]]]:
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    found: list[list[tuple[int, int]]] = encoded["offset_mapping"]
    return found
