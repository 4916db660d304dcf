"""The task's own flags, beside transformers' training arguments; and parsing that answers mistakes."""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import NoReturn

from transformers import HfArgumentParser

from plough.errors import UsageError
from plough.train.arguments import TrainingArguments

__all__ = ["DataArguments", "ModelArguments", "parse"]


@dataclass
class ModelArguments:
    """Which model to start from."""

    model_name_or_path: str = field(
        metadata={"help": "A folder with a pretrained encoder, or its name on the model hub."}
    )
    config_name: str | None = field(default=None, metadata={"help": "Configuration, if not the model's own."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Tokenizer, if not the model's own."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where models from the hub are kept."})
    model_revision: str = field(default="main", metadata={"help": "Branch, tag or commit on the hub."})
    token: str | None = field(
        default=None, metadata={"help": "Hub token; better left to HF_TOKEN or `hf auth login`."}
    )
    dropout: float | None = field(
        default=None,
        metadata={
            "help": "Dropout of all layers and of attention, 0 to 1 (default: the model's own). On CPUs "
            "drawing the masks costs more than the arithmetic; short fine-tuning does without."
        },
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "transformers' attention to use: sdpa, eager, ... (default: its own choice). On CPUs "
            "eager can be the faster one for short windows without dropout."
        },
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with the model. Only for models you trust."}
    )


@dataclass
class DataArguments:
    """Which questions to learn from and be measured on, and how to cut texts into windows."""

    dataset_name: str | None = field(
        default=None,
        metadata={"help": "A data set of the `datasets` library with SQuAD's columns, e.g. squad."},
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(
        default=None, metadata={"help": "SQuAD JSON (v1.1, v2.0), JSON lines, CSV, TSV or parquet."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "The same, to be measured on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to be predicted on."})
    strict_data: bool = field(
        default=False, metadata={"help": "Refuse files in which anything has to be repaired or dropped."}
    )
    overwrite_cache: bool = field(
        default=False, metadata={"help": "Accepted from old command lines; features are always made anew."}
    )
    preprocessing_num_workers: int | None = field(
        default=None,
        metadata={"help": "Processes that cut texts into windows (default: this one's threads)."},
    )
    max_seq_length: int = field(
        default=384, metadata={"help": "Tokens in a window: question, a part of the context, special tokens."}
    )
    doc_stride: int = field(
        default=128, metadata={"help": "Tokens by which the windows of a long context overlap."}
    )
    pad_to_max_length: bool = field(
        default=False,
        metadata={"help": "Pad every window to max_seq_length instead of to its batch's longest."},
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Read only so many questions."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Measure on only so many."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict only so many."})
    version_2_with_negative: bool = field(
        default=False, metadata={"help": "Some questions have no answer in their context (SQuAD v2.0)."}
    )
    null_score_diff_threshold: float = field(
        default=0.0,
        metadata={"help": "Say 'no answer' when its score beats the best span's by more than this."},
    )
    n_best_size: int = field(default=20, metadata={"help": "Candidates kept per question."})
    max_answer_length: int = field(default=30, metadata={"help": "Longest answer, in tokens."})

    def check(self, training: TrainingArguments) -> None:
        """Raises UsageError for combinations that cannot work, before anything is loaded."""
        for name in ("max_seq_length", "n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} {getattr(self, name)}: at least 1 is needed")
        if self.doc_stride < 0:
            raise UsageError(f"--doc_stride {self.doc_stride}: cannot be negative")
        for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name} {value}: at least 1 is needed")
        if not (training.do_train or training.do_eval or training.do_predict):
            raise UsageError("nothing to do", hint="add --do_train, --do_eval or --do_predict")
        for wanted, flag, file in (
            (training.do_train, "--do_train", "train_file"),
            (training.do_eval, "--do_eval", "validation_file"),
            (training.do_predict, "--do_predict", "test_file"),
        ):
            path = getattr(self, file)
            if wanted and path is None and self.dataset_name is None:
                raise UsageError(f"{flag} needs data", hint=f"give --{file} FILE or --dataset_name NAME")
            if path is not None and not Path(path).exists():
                raise UsageError(f"--{file} {path}: no such file", hint=f"looked in {os.getcwd()}")


def parse(argv: list[str]) -> tuple[ModelArguments, DataArguments, TrainingArguments]:
    """Flags, or one JSON file that holds them, as dataclasses.

    Raises UsageError for an unknown flag (with the nearest known one), a missing or impossible value.
    """
    parser = _Parser(
        (ModelArguments, DataArguments, TrainingArguments),
        prog="plough train qa",
        description="Fine-tune an encoder to find the answer to a question in a text.",
        allow_abbrev=False,
    )
    parser.known = [f"--{f.name}" for c in parser.dataclass_types for f in fields(c)]
    if len(argv) == 1 and argv[0].endswith(".json"):
        try:
            found = parser.parse_json_file(argv[0])
        except (OSError, AttributeError, TypeError, ValueError) as error:
            # AttributeError: not an object; TypeError: a required value is missing.
            raise UsageError(f"{argv[0]}: {error}") from error
    else:
        try:
            found = parser.parse_args_into_dataclasses(argv)
        except ValueError as error:  # transformers on values that do not go together
            raise UsageError(str(error), hint="`plough train qa --help` explains each flag") from error
    model, data, training = found
    return model, data, training


class _Parser(HfArgumentParser):  # type: ignore[misc]
    known: list[str]

    def parse_args_into_dataclasses(self, argv: list[str]) -> tuple[object, ...]:
        unknown = [a.split("=")[0] for a in argv if a.startswith("--") and not self._knows(a.split("=")[0])]
        if unknown and not {"-h", "--help"} & set(argv):
            close = difflib.get_close_matches(unknown[0], self.known, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}?" if close else "`plough train qa --help` lists all flags"
            raise UsageError(f"{unknown[0]}: no such flag", hint=hint)
        *found, stray = super().parse_args_into_dataclasses(argv, return_remaining_strings=True)
        if stray:
            raise UsageError(f"{stray[0]}: neither a flag nor the value of one", hint="flags begin with --")
        return tuple(found)

    def _knows(self, flag: str) -> bool:
        return flag in self._option_string_actions

    def error(self, message: str) -> NoReturn:
        raise UsageError(message[0].lower() + message[1:], hint=f"`{self.prog} --help` explains each flag")

    def print_help(self, file: object = None) -> None:
        """Our flags first and in full; transformers' hundred after them."""
        super().print_help(sys.stdout)
