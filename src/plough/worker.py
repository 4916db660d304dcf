"""Inside a rank: `python -m plough.worker [-m MODULE | SCRIPT] args...`, which `plough exec` becomes.

In order: check the place against the contract, hand scripts Plough's Trainer, watch the optimizers, run
the user's code, leave the facts. Started by hand under a launcher, it goes through the shim first.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import socket
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from msgspec.structs import replace

from plough.contract import Contract, Env
from plough.errors import PloughError, UsageError
from plough.files import write_text_atomic
from plough.launchers.base import Command
from plough.launchers.shim import become_rank
from plough.report import render_block, write_facts
from plough.train import compat
from plough.train.inforce import check_before_torch, check_threads, collect_facts

__all__ = ["main"]

_OUR_FILES = {__file__, runpy.__file__, "<frozen runpy>"}


def main(argv: list[str]) -> int:
    """Run the command in this rank; the exit code is for the shell."""
    started = time.monotonic()
    for stream in (sys.stdout, sys.stderr):
        # Whole lines at once, as they come: a pipe would hold them back, and unbuffered writes of several
        # ranks tear each other's lines apart.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)
    contract = None
    try:
        command = _parse(argv)
        contract = Contract.from_env(os.environ)
        if contract is None:
            become_rank(command)
            raise AssertionError("become_rank does not return")
        return _run(command, contract, started)
    except PloughError as error:
        _tell(error, contract)
        return error.exit_code


def _parse(argv: list[str]) -> Command:
    module = argv[:1] == ["-m"]
    rest = argv[1:] if module else argv
    if not rest:
        raise UsageError(
            "nothing to run", hint="python -m plough.worker SCRIPT args..., or -m MODULE args..."
        )
    target = rest[0]
    if not module and not Path(target).is_file():
        raise UsageError(
            f"{target}: no such file in {os.getcwd()}", hint="give the path of a Python script, or -m MODULE"
        )
    compat_wanted = os.environ.get(Env.PLOUGH_COMPAT) != "0"
    return Command(target=target, arguments=tuple(rest[1:]), module=module, compat=compat_wanted)


def _run(command: Command, contract: Contract, started: float) -> int:
    check_before_torch(contract)
    if contract.cpus:
        # Data loading workers are forked from a main thread that OpenMP has bound to a single core.
        os.register_at_fork(after_in_child=lambda: _rebind(contract.cpus))
    from plough.train.guard import Guard

    contract = replace(contract, problems=contract.problems + check_threads(contract))
    if command.compat:
        compat.install()
    guard = Guard(contract)
    guard.install()
    code = _run_user_code(command)
    facts = guard.complete(collect_facts(contract, started=started))
    job = os.environ.get(Env.PLOUGH_JOB_DIR)
    if job and Path(job).is_dir():
        write_facts(Path(job), facts)
    elif contract.identity.rank == 0 and guard.steps:
        print(render_block([facts, *guard.facts_of_others()]), file=sys.stderr, flush=True)
    return code


def _run_user_code(command: Command) -> int:
    """As `python SCRIPT` or `python -m MODULE` would, SystemExit included."""
    sys.argv = [command.target, *command.arguments]
    try:
        if command.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(command.target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(command.target).resolve().parent))
            runpy.run_path(command.target, run_name="__main__")
    except PloughError:
        raise
    except Exception as error:
        # From the user's first frame on: how Plough got there is of no use to them.
        traceback.print_exception(error.with_traceback(_user_part(error)))
        return 1
    except SystemExit as error:
        if error.code is None or error.code == 0:
            return 0
        if isinstance(error.code, int):
            return error.code
        print(error.code, file=sys.stderr)
        return 1
    return 0


def _user_part(error: BaseException) -> TracebackType | None:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in _OUR_FILES:
        frames = frames.tb_next
    return frames or error.__traceback__


def _rebind(cpus: tuple[int, ...]) -> None:
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus)


def _tell(error: PloughError, contract: Contract | None) -> None:
    """To the launcher if there is one, which says it once for all ranks; else to the terminal."""
    job = os.environ.get(Env.PLOUGH_JOB_DIR)
    rank = contract.identity.rank if contract is not None else 0
    if job and Path(job).is_dir():
        write_text_atomic(Path(job) / f"error-{rank}.txt", error.render())
        return
    several = contract is not None and contract.identity.world_size > 1
    where = f"rank {rank} on {socket.gethostname()}: " if several else ""
    print(f"{where}{error.render()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # A thread or a peer's socket may keep a failed rank from ending; its exit code must come out now.
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
