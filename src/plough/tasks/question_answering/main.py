"""`plough train qa`, inside each rank: read, train, evaluate, predict, save.

The order of the whole task is in `main`; each step is a module or a short function beside it.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from transformers import default_data_collator, set_seed
from transformers.utils import logging as transformers_logging

from plough.contract import Contract
from plough.errors import DataError, PloughError
from plough.files import write_json_atomic
from plough.tasks.question_answering.arguments import DataArguments, ModelArguments, parse
from plough.tasks.question_answering.card import write_card
from plough.tasks.question_answering.data import read_split
from plough.tasks.question_answering.features import RightPadding, WindowShape, train_dataset
from plough.tasks.question_answering.model import has_idle_parameters, load_model, load_tokenizer
from plough.tasks.question_answering.resume import clear_earlier_run, make_writable, starting_point
from plough.tasks.question_answering.trainer import (
    AnswerOptions,
    QuestionAnsweringTrainer,
    make_question_set,
)

__all__ = ["entry", "main"]

PAD_TO = 8
"""Kernels like widths that are multiples of this; a batch wastes at most seven tokens a row on it."""


def main(argv: list[str]) -> int:
    """Run the task with these flags in this rank. Raises PloughError for anything the user can mend."""
    model_args, data_args, training = parse(argv)
    data_args.check(training)
    lead = training.process_index == 0
    _quiet(lead)
    folder = Path(training.output_dir)
    make_writable(folder)
    checkpoint, said = (
        starting_point(
            folder, resume=training.resume_from_checkpoint, overwrite=training.overwrite_output_dir
        )
        if training.do_train
        else (None, [])
    )
    _say(lead, *said)
    set_seed(training.seed)

    hub = {
        "cache_dir": model_args.cache_dir,
        "revision": model_args.model_revision,
        "token": model_args.token,
        "trust_remote_code": model_args.trust_remote_code,
    }
    tokenizer = load_tokenizer(model_args.tokenizer_name or model_args.model_name_or_path, **hub)
    shape = WindowShape(
        length=_window_length(data_args, tokenizer, lead),
        stride=data_args.doc_stride,
        pad=data_args.pad_to_max_length,
    )
    read = _Reader(data_args, model_args, lead)
    train = read("train") if training.do_train else None
    questions = read("validation") if training.do_eval else None
    tests = read("test") if training.do_predict else None
    features = train_dataset(
        train, tokenizer, shape, workers=data_args.preprocessing_num_workers
    ) if train else None  # fmt: skip
    model = load_model(
        model_args.model_name_or_path,
        config=model_args.config_name,
        dropout=model_args.dropout,
        attention=model_args.attn_implementation,
        **hub,
    )
    if training.ddp_find_unused_parameters is None and features is not None:
        training.ddp_find_unused_parameters = has_idle_parameters(model, features, tokenizer)

    trainer = QuestionAnsweringTrainer(
        model=model,
        args=training,
        train_dataset=features,
        questions=make_question_set(questions, tokenizer, shape) if questions else None,
        options=AnswerOptions(
            n_best_size=data_args.n_best_size,
            max_answer_length=data_args.max_answer_length,
            allow_no_answer=data_args.version_2_with_negative,
            null_score_diff_threshold=data_args.null_score_diff_threshold,
        ),
        processing_class=tokenizer,
        data_collator=default_data_collator
        if data_args.pad_to_max_length
        else RightPadding(tokenizer, multiple_of=PAD_TO),
    )
    if features is not None:
        if lead and checkpoint is None and training.overwrite_output_dir:
            _say(lead, *clear_earlier_run(folder))
        metrics = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None).metrics
        trainer.save_model()
        _finish(
            trainer, "train", metrics | {"train_samples": len(features), "train_questions": len(train or ())}
        )
        trainer.save_state()
    if questions:
        _finish(trainer, "eval", trainer.evaluate() | {"eval_samples": len(questions)})
    if tests:
        test_set = make_question_set(tests, tokenizer, shape)
        _finish(
            trainer,
            "predict",
            trainer.evaluate(test_set, metric_key_prefix="predict") | {"predict_samples": len(tests)},
        )
    if lead:
        read.save(folder)
        if training.do_train:
            write_card(folder, model_args=model_args, data_args=data_args, training=training)
    return 0


class _Reader:
    """Reads splits and keeps their accounts; the lead rank says them."""

    def __init__(self, data_args: DataArguments, model_args: ModelArguments, lead: bool) -> None:
        self.data_args, self.model_args, self.lead = data_args, model_args, lead
        self.reports: dict[str, Any] = {}

    def __call__(self, split: str) -> list[Any]:
        examples, report = read_split(
            split, self.data_args, cache_dir=self.model_args.cache_dir, token=self.model_args.token
        )
        _say(self.lead, report.render())
        if not examples:
            raise DataError(
                f"{', '.join(report.paths)}: no usable question is left", hint="the account above says why"
            )
        self.reports[split] = report.to_builtins()
        return examples

    def save(self, folder: Path) -> None:
        write_json_atomic(folder / "data_report.json", self.reports)


def _window_length(data_args: DataArguments, tokenizer: Any, lead: bool) -> int:
    """max_seq_length, or the model's own limit where that is less."""
    limit = tokenizer.model_max_length
    if data_args.max_seq_length > limit:
        _say(lead, f"--max_seq_length {data_args.max_seq_length} is more than the model takes; using {limit}")
    return min(data_args.max_seq_length, int(limit))


def _finish(trainer: QuestionAnsweringTrainer, split: str, metrics: dict[str, Any]) -> None:
    """Say the split's metrics and leave them in {split}_results.json and all_results.json."""
    metrics["world_size"] = trainer.args.world_size
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)


def _quiet(lead: bool) -> None:
    """One rank speaks, and not of files and weights: a new answer head is what fine-tuning is for."""
    logging.getLogger().setLevel(logging.WARNING if lead else logging.ERROR)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _say(lead: bool, *texts: str) -> None:
    for text in texts if lead else ():
        print(text, file=sys.stderr, flush=True)


def entry(argv: list[str] | None = None) -> int:
    """`main` for a script's last line: under Plough's worker errors go to it, else to the terminal."""
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except PloughError as error:
        if Contract.from_env(os.environ) is not None:
            raise
        print(error.render(), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(entry())
