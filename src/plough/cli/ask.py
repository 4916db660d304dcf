"""`plough ask`: put questions to a fine-tuned folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from plough.cli.output import emit
from plough.errors import DataError, UsageError

__all__ = ["add_arguments", "run"]

EPILOG = """\
examples:
  plough ask --model out --question "Who?" --context "Ada did."
  plough ask --model out --context-file text.txt --question "Who?" --question "When?" --top 3
"""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--model", required=True, metavar="DIR", help="a folder that `plough train qa` wrote")
    parser.add_argument(
        "--question", required=True, action="append", metavar="Q", help="may be given several times"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--context", metavar="TEXT", help="the text that holds the answer")
    source.add_argument("--context-file", metavar="FILE", help="the same from a UTF-8 file; - for stdin")
    parser.add_argument("--top", type=int, default=1, metavar="N", help="so many answers (default: 1)")
    parser.add_argument(
        "--no-answer",
        action="store_true",
        help="allow 'no answer', for models trained with unanswerable questions",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per question")


def run(options: argparse.Namespace) -> int:
    if options.top < 1:
        raise UsageError(f"--top {options.top}: at least 1 is needed")
    context = options.context if options.context is not None else _read(options.context_file)
    from transformers.utils import logging

    from plough.tasks.question_answering.ask import Reader

    logging.disable_progress_bar()
    reader = Reader(options.model)
    for question in options.question:
        found = reader.ask(question, context, top=options.top, allow_no_answer=options.no_answer)
        answers = found.nbest
        if options.json:
            built = {"question": question, "answers": msgspec.to_builtins(answers)}
            emit(msgspec.json.encode(built).decode())
            continue
        emit(question)
        for answer in answers:
            text = answer.text or "(no answer)"
            emit(f"  {text}  (score {answer.probability:.3f}, characters {answer.start}-{answer.end})")
    return 0


def _read(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"--context-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"--context-file {path}: not UTF-8 at byte {error.start}", hint="convert it: iconv -t UTF-8"
        ) from error
