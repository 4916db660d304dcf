"""`plough exec`: the worker shim's command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from plough.errors import UsageError
from plough.launchers import Command
from plough.launchers.shim import become_rank

__all__ = ["add_arguments", "add_command", "add_command_arguments", "command_of", "run", "split_command"]

EPILOG = """\
It finds out which rank it is (mpirun, torchrun, srun, or RANK and WORLD_SIZE), binds this rank's cores and
memory, sets its threads, allocator and OpenMP runtime, and becomes the Python that runs SCRIPT. Variables
you set (OMP_NUM_THREADS and the like) are kept. Scripts that import Trainer and TrainingArguments from
transformers get Plough's.

  mpirun -n 2 -genv OMP_NUM_THREADS=23 plough exec run_qa.py --do_train ...
  torchrun --nproc-per-node 2 --no-python plough exec train.py
  srun -n 8 plough exec -m my.package.train
"""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EPILOG
    parser.usage = "plough exec [--no-compat] [-m] SCRIPT [ARG ...]"
    add_command_arguments(parser)


def add_command_arguments(parser: argparse.ArgumentParser) -> None:
    """`[--no-compat] [-m] SCRIPT [ARG ...]`, shared with `plough run`."""
    parser.add_argument(
        "--no-compat",
        dest="compat",
        action="store_false",
        help="leave transformers' own Trainer and TrainingArguments to scripts that import them",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    add_command(parser, "SCRIPT", "the Python script each rank runs, and its arguments")


def add_command(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    """A name and everything after it, untouched: the script's own flags and `--` are not ours to read."""
    parser.add_argument("command", nargs=argparse.PARSER, metavar=metavar, help=text)


def split_command(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    """The name and the arguments that `add_command` took; a `--` in front of the name is dropped."""
    words = options.command[1:] if options.command[0] == "--" else options.command
    return words[0], tuple(words[1:])


def command_of(options: argparse.Namespace) -> Command:
    """Raises UsageError for a script that is not there, before any rank starts."""
    target, arguments = split_command(options)
    if not options.module and not Path(target).is_file():
        raise UsageError(
            f"{target}: no such file", hint="give the path of a Python script, or -m and the name of a module"
        )
    return Command(target=target, arguments=arguments, module=options.module, compat=options.compat)


def run(options: argparse.Namespace) -> int:
    become_rank(command_of(options))
    raise AssertionError("become_rank does not return")
