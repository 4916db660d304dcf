"""The `plough` command: finds the verb, prints errors, returns the exit code. No verb's work is here."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import NoReturn

from plough._version import __version__
from plough.errors import PloughError, UsageError

__all__ = ["entry", "main"]

# verb -> (module with add_arguments(parser) and run(options), one line of help)
VERBS = {
    "train": ("plough.cli.run", "train a built-in task on every core of this host"),
    "run": ("plough.cli.run", "run your own training script on every core of this host"),
    "exec": ("plough.cli.exec", "become one rank, under your own mpirun, torchrun or srun"),
    "ask": ("plough.cli.ask", "ask a fine-tuned question answering model"),
    "plan": ("plough.cli.plan", "show which rank would get which cores, memory and variables, and why"),
    "probe": ("plough.cli.probe", "show what this machine is and what of it you may use"),
    "doctor": ("plough.cli.doctor", "find out whether what is installed works together"),
    "tune": ("plough.cli.tune", "measure threads, communication threads and bucket size with your model"),
    "bench": ("plough.cli.bench", "measure collectives here: ccl, gloo and oneCCL, side by side"),
    "build": ("plough.cli.build", "compile the ccl backend now, for an image or a host without a compiler"),
}

EPILOG = """\
examples:
  plough train qa --model_name_or_path DIR --train_file train.json --do_train --output_dir out
  plough run --ranks 2 train.py --learning_rate 3e-5
  mpirun -n 2 -genv OMP_NUM_THREADS=23 plough exec run_qa.py --do_train ...
  plough plan --ranks-per-socket 2

`plough VERB --help` explains a verb. Exit codes: 0 done, 1 a rank failed, 2 wrong use or bad input.
"""


class _Parser(argparse.ArgumentParser):
    """Wrong flags read like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` shows what there is")


def main(argv: list[str]) -> int:
    """Run one command line and return its exit code; PloughErrors are printed, never raised."""
    try:
        options = _parse(argv)
        code: int = importlib.import_module(VERBS[options.verb][0]).run(options)
        return code
    except PloughError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `plough plan | head`: nothing more to say
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parse(argv: list[str]) -> argparse.Namespace:
    """Imports the wanted verb's module and no other, so that `plough plan` does not wait for torch."""
    parser = _Parser(
        prog="plough",
        description="Train Hugging Face Transformers models on the CPUs you already have.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"plough {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    wanted = next((arg for arg in argv if not arg.startswith("-")), None)
    children = {}
    for name, (module, summary) in VERBS.items():
        children[name] = child = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == wanted:
            importlib.import_module(module).add_arguments(child, name)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        # By the verb's own parser, whose help is the one to look at.
        children[options.verb].error(f"{unknown[0]}: no such option or argument here")
    return options


def entry() -> None:
    sys.exit(main(sys.argv[1:]))
