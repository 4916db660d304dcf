"""Start exactly what was rendered, watch it, end it as one, and say how it ended.

Knows launchers only by their rendered form. The only part of the left side that starts processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from plough.contract import Env
from plough.errors import LaunchError
from plough.launchers import stdio
from plough.launchers.base import Rendered
from plough.launchers.placement import die_with_parent
from plough.launchers.records import RankRecord, first_failure, read_records, save_plan
from plough.launchers.rendezvous import private_folder
from plough.plan import LaunchPlan
from plough.report import RankFacts, read_facts

__all__ = ["JobResult", "job_folder", "submit"]

LOG = "launcher.log"
LOG_LINES = 20
POLL = 0.2
PEERS_MAY_FOLLOW = 3.0
"""Seconds after the first bad end in which other ranks may end by themselves, with their own words."""
GRACE = 12.0
"""Seconds from the polite signal to the last one; relays give their rank 10 of them."""


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended.

    code: for the shell. failure: the rank that broke it, if one did. log: the last lines mpirun or
    torchrun itself wrote, which matter only when no rank explains the end.
    """

    code: int
    failure: RankRecord | None
    log: tuple[str, ...]
    interrupted: bool
    facts: tuple[RankFacts, ...]
    seconds: float


@contextmanager
def job_folder() -> Iterator[Path]:
    """A private folder for one job, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="job-", dir=private_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def submit(rendered: Rendered, plan: LaunchPlan, job_dir: Path) -> JobResult:
    """Run the job to its end. Raises LaunchError when it could not even be started.

    The ranks live in a session of their own, so that one Ctrl-C comes here and ends them all in order.
    """
    save_plan(job_dir, plan)
    environment = {**os.environ, **rendered.environment}
    if sys.stderr.isatty():
        environment[Env.PLOUGH_LIVE] = "1"
    started = time.monotonic()
    interrupts: list[int] = []
    handlers = {
        number: signal.signal(number, lambda number, _frame: interrupts.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        with stdio.serve(job_dir), (job_dir / LOG).open("wb") as log:
            try:
                process = subprocess.Popen(
                    rendered.argv,
                    env=environment,
                    start_new_session=True,
                    # However this process ends, mpirun or torchrun is told to end its ranks.
                    preexec_fn=lambda: die_with_parent(signal.SIGTERM),
                    stdin=None if plan.world_size == 1 else subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            except OSError as error:
                raise LaunchError(f"{rendered.argv[0]} cannot be started: {error.strerror}") from error
            _wait(process, job_dir, interrupts)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    records = read_records(job_dir)
    failure = first_failure(records)
    return JobResult(
        code=_exit_code(process.returncode, failure, interrupts),
        failure=failure,
        log=tuple((job_dir / LOG).read_text(errors="replace").splitlines()[-LOG_LINES:]),
        interrupted=bool(interrupts),
        facts=tuple(read_facts(job_dir)),
        seconds=time.monotonic() - started,
    )


def _wait(process: subprocess.Popen[bytes], job_dir: Path, interrupts: list[int]) -> None:
    """Until the launcher's process has ended and no rank is left."""
    asked_at: float | None = None
    failed_at: float | None = None
    while process.poll() is None:
        now = time.monotonic()
        if failed_at is None and first_failure(read_records(job_dir)):
            failed_at = now
        # hydra waits for the others when a rank exits with an error; peers may be stuck in a collective.
        if asked_at is None and (interrupts or (failed_at and now - failed_at > PEERS_MAY_FOLLOW)):
            asked_at = now
            _signal(process, signal.SIGTERM)
        if asked_at is not None and (len(interrupts) > 1 or now - asked_at > GRACE):
            _kill_all(process, job_dir)
        time.sleep(POLL)
    _kill_all(process, job_dir)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process.pid, number)


def _kill_all(process: subprocess.Popen[bytes], job_dir: Path) -> None:
    """The launcher's process group, and each rank by its record: torchrun gives ranks their own sessions."""
    for kill, pid in [(os.killpg, process.pid), *((os.kill, p) for p in _live_pids(job_dir))]:
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _live_pids(job_dir: Path) -> list[int]:
    return [pid for r in read_records(job_dir) if r.returncode is None for pid in (r.pid, r.relay_pid)]


def _exit_code(returncode: int, failure: RankRecord | None, interrupts: list[int]) -> int:
    if interrupts:
        return 128 + interrupts[0]
    if failure is not None:
        return 2 if failure.error is not None else 1
    return 0 if returncode == 0 else 1
