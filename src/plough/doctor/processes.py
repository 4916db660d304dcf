"""Running trials: each in processes of its own, several at a time, none for longer than it was given.

Knows nothing of what is tried. One thread, so that an interrupted doctor leaves nothing running.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from plough.doctor.facts import Trial
from plough.doctor.programs import MARK
from plough.errors import PloughError

__all__ = ["Attempt", "run_attempts"]

POLL_S = 0.02
GRACE_S = 5.0
"""How long the others of an attempt may go on once one of its commands has failed."""
TERM_S = 1.0
REPORT_EVERY_S = 10.0
TAIL_BYTES = 1 << 16
LONGEST_SAID = 400

Progress = Callable[[str], None]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One trial to be made: commands that run side by side and must all succeed.

    environment: added to the caller's. reports: a command that reports nothing has failed.
    telling: a pattern; the first line of output that has it is what a trial that worked said.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    timeout_s: float
    environment: dict[str, str] = {}
    reports: bool = True
    telling: str = r"\S"


def run_attempts(
    attempts: Sequence[Attempt],
    environment: Mapping[str, str],
    *,
    at_once: int,
    progress: Progress = lambda text: None,
) -> dict[str, Trial]:
    """Make them all, in their order, and say how each ended. Each has an empty folder to run in.

    progress: told what is being tried, and now and then what still is. Raises PloughError where there is no
    folder for temporary files.
    """
    waiting, running, ended = list(attempts), list[_Running](), dict[str, Trial]()
    told = time.monotonic()
    if waiting:
        progress(f"trying {', '.join(dict.fromkeys(attempt.name.split(' ')[0] for attempt in waiting))}")
    try:
        with tempfile.TemporaryDirectory(prefix="plough-doctor-", ignore_cleanup_errors=True) as folder:
            try:
                while waiting or running:
                    while waiting and len(running) < at_once:
                        own = Path(folder, str(len(waiting)))
                        own.mkdir()
                        running.append(_Running(waiting.pop(0), environment, own))
                    for one in list(running):
                        if (trial := one.poll()) is not None:
                            running.remove(one)
                            ended[one.attempt.name] = trial
                    if time.monotonic() - told > REPORT_EVERY_S:
                        told = time.monotonic()
                        progress(f"still trying {', '.join(one.attempt.name for one in running)}")
                    time.sleep(POLL_S)
            finally:
                for one in running:
                    one.kill()
    except OSError as error:
        raise PloughError(
            f"there is nowhere to run trials: {error}",
            hint="make room in the temporary folder, or set TMPDIR to another; `--quick` needs none",
        ) from error
    return {attempt.name: ended[attempt.name] for attempt in attempts}


class _Running:
    """An attempt under way."""

    def __init__(self, attempt: Attempt, environment: Mapping[str, str], folder: Path) -> None:
        self.attempt, self.folder = attempt, folder
        self.started = time.monotonic()
        self.deadline = self.started + attempt.timeout_s
        self.processes: list[subprocess.Popen[bytes]] = []
        self.refused = ""
        for index, command in enumerate(attempt.commands):
            try:
                with self._file(index, "out").open("wb") as out, self._file(index, "err").open("wb") as err:
                    process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        cwd=folder,
                        env={**environment, **attempt.environment},
                        start_new_session=True,
                    )
            except OSError as error:
                self.refused = f"{command[0]}: {error.strerror or error}"
                break
            self.processes.append(process)

    def poll(self) -> Trial | None:
        """How it ended, or None while it goes on."""
        codes = [process.poll() for process in self.processes]
        failed = any(codes) or bool(self.refused)
        if failed:
            self.deadline = min(self.deadline, time.monotonic() + GRACE_S)
        late = time.monotonic() > self.deadline
        if None in codes and not late and not self.refused:
            return None
        self.kill()
        if failed:
            return self._failed(codes)
        if late and None in codes:
            said = self._last_words(codes.index(None))
            return self._trial("hung", f"no end after {self.attempt.timeout_s:g} s{': ' * bool(said)}{said}")
        reports = [self._report(index) for index in range(len(codes))]
        if self.attempt.reports and None in reports:
            return self._trial("failed", self._last_words(reports.index(None)) or "it ended without a word")
        return self._trial("worked", self._first_words(0), reports[0])

    def kill(self) -> None:
        """End what still runs, children included."""
        for process in self.processes:
            if process.poll() is None:
                _signal(process, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(TERM_S)
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)
                process.wait()

    def _failed(self, codes: Sequence[int | None]) -> Trial:
        if self.refused:
            return self._trial("failed", self.refused)
        index = next(index for index, code in enumerate(codes) if code)
        code, said = codes[index] or 0, self._last_words(index)
        if code < 0:
            said = f"ended by {_signal_name(-code)}{': ' * bool(said)}{said}"
        return self._trial("failed", said or f"exit code {code}, without a word", self._report(index))

    def _trial(self, outcome: str, said: str, report: dict[str, Any] | None = None) -> Trial:
        seconds = round(time.monotonic() - self.started, 2)
        value = {"outcome": outcome, "said": said, "seconds": seconds, **(report or {})}
        return msgspec.convert(value, Trial)

    def _report(self, index: int) -> dict[str, Any] | None:
        lines = [line for line in self._lines(index, "out") if line.startswith(MARK)]
        try:
            value: dict[str, Any] | None = msgspec.json.decode(lines[-1][len(MARK) :]) if lines else None
        except msgspec.DecodeError:
            return None
        return value

    def _first_words(self, index: int) -> str:
        lines = self._lines(index, "out") or self._lines(index, "err")
        lines = [line for line in lines if not line.startswith(MARK)] or [""]
        return next((line for line in lines if re.search(self.attempt.telling, line)), lines[0])[
            :LONGEST_SAID
        ]

    def _last_words(self, index: int) -> str:
        """The last line that names an exception, else the last of stderr, else the last of stdout."""
        err = self._lines(index, "err")
        out = [line for line in self._lines(index, "out") if not line.startswith(MARK)]
        named = [line for line in err if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt)\b", line)]
        return (named or err or out or [""])[-1][:LONGEST_SAID]

    def _lines(self, index: int, which: str) -> list[str]:
        with self._file(index, which).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def _file(self, index: int, which: str) -> Path:
        return self.folder / f".{which}-{index}"


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
