"""Watches one rank for `plough run`: prefixes its lines, remembers the last ones, records how it ended.

The relay is the parent of the rank's Python. It knows nothing of plans or training; it never imports
torch, so a rank that is killed or runs out of memory still leaves a record.

A progress bar redraws its line with carriage returns. On a terminal the first rank's bar is passed on;
elsewhere (a log file, a pipe) its newest state becomes an ordinary line now and then.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import os
import re
import selectors
import signal
import socket
import time
from pathlib import Path

from plough.contract import Env
from plough.errors import PloughError
from plough.launchers.placement import die_with_parent
from plough.launchers.records import RankRecord, write_record
from plough.launchers.stdio import receive

__all__ = ["LineSplitter", "Screen", "watch_in_parent"]

KEEP_LINES = 20
BAR_EVERY = 10.0
GRACE = 10.0
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ENDING = re.compile(r"\r\n|\n|\r")


class LineSplitter:
    """Bytes in, (text, is_bar) pieces out: lines ended by a newline, bar states by a carriage return."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes, *, final: bool = False) -> list[tuple[str, bool]]:
        self._rest += self._decoder.decode(data, final)
        pieces: list[tuple[str, bool]] = []
        done = 0
        for found in _ENDING.finditer(self._rest):
            if found[0] == "\r" and found.end() == len(self._rest) and not final:
                break  # a \n may follow
            text, bar = self._rest[done : found.start()], found[0] == "\r"
            done = found.end()
            if text or not bar:
                pieces.append((text, bar))
        self._rest = self._rest[done:]
        # A bar draws "\rstate" and says nothing after it: what is left may be its newest state.
        if final and self._rest:
            pieces.append((self._rest, False))
            self._rest = ""
        return pieces

    @property
    def pending(self) -> str:
        """What has come since the last ending: a bar's newest state, or half a line."""
        return self._rest.strip("\r")


class Screen:
    """Writes one stream of a rank to where the user sees it."""

    def __init__(self, fd: int, *, prefix: str, live: bool, bars: bool) -> None:
        self.fd, self.prefix, self.live, self.bars = fd, prefix, live, bars
        self.splitter = LineSplitter()
        self.shown = ""
        self.shown_at = time.monotonic()
        self.last_bar = ""

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """Show what came; returns the complete lines."""
        lines = []
        for text, bar in self.splitter.feed(data, final=final):
            if bar:
                self.last_bar = text
            else:
                lines.append(text)
                self._write(f"{self.prefix}{text}\n")
                self.last_bar = ""
        pending = self.splitter.pending
        state = pending if pending and "\n" not in pending else self.last_bar
        if state and self.bars:
            self._bar(state)
        return lines

    def _bar(self, state: str) -> None:
        if self.live:
            self._write(f"{self.prefix}{state}")
        elif state != self.shown and time.monotonic() - self.shown_at >= BAR_EVERY and "%|" in state:
            self.shown, self.shown_at = state, time.monotonic()
            self._write(f"{self.prefix}{state.strip()}\n")

    def _write(self, text: str) -> None:
        # Erase the bar that another process may have left on this line of the terminal.
        data = f"\r\x1b[K{text}".encode() if self.live else text.encode()
        try:
            while data:
                data = data[os.write(self.fd, data) :]
        except OSError:
            pass  # nobody reads any more; the rank's record still gets written


def watch_in_parent(job_dir: Path, rank: int, world_size: int) -> None:
    """Fork: returns in the child, which goes on to become the rank; the parent watches and exits."""
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    parent = os.getpid()
    # Until the relay has its handlers, a signal to stop would end it without a record.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            os._exit(1)
        os.dup2(out_write, 1)
        os.dup2(err_write, 2)
        for fd in (out_read, out_write, err_read, err_write):
            os.close(fd)
        return
    os.close(out_write)
    os.close(err_write)
    os._exit(_watch(pid, (out_read, err_read), job_dir, rank, world_size, unblocked))


def _watch(
    pid: int,
    fds: tuple[int, int],
    job_dir: Path,
    rank: int,
    world_size: int,
    unblocked: set[int | signal.Signals],
) -> int:
    record = RankRecord(rank=rank, host=socket.gethostname(), pid=pid, relay_pid=os.getpid())
    _record(job_dir, record)
    asked: list[float] = []

    def stop(number: int, _frame: object) -> None:
        asked.append(time.monotonic())
        _kill(pid, signal.SIGKILL if len(asked) > 2 else signal.SIGTERM)

    for number in _STOPPING:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    live = os.environ.get(Env.PLOUGH_LIVE) == "1"
    prefix = f"[{rank}] " if world_size > 1 else ""
    screens = {
        fd: Screen(target, prefix=prefix, live=live, bars=rank == 0)
        for fd, target in zip(fds, receive(job_dir), strict=True)
    }
    tail: collections.deque[str] = collections.deque(maxlen=KEEP_LINES)
    status = None
    with selectors.DefaultSelector() as selector:
        for fd in fds:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(timeout=0.2):
                data = os.read(key.fd, 65536)
                lines = screens[key.fd].feed(data, final=not data)
                if key.fd == fds[1]:
                    tail.extend(lines)
                if not data:
                    selector.unregister(key.fd)
            if asked and time.monotonic() - asked[0] > GRACE:
                _kill(pid, signal.SIGKILL)
            if status is None:
                status = _reap(pid)
            elif not selector.select(timeout=0.2):
                break  # ended, and only a grandchild still holds its pipes
    if status is None:
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    error_file = job_dir / f"error-{rank}.txt"
    _record(
        job_dir,
        RankRecord(
            rank=rank,
            host=record.host,
            pid=pid,
            relay_pid=record.relay_pid,
            returncode=code,
            ended=time.time(),
            asked=bool(asked),
            stderr=tuple(tail),
            error=error_file.read_text() if error_file.exists() else None,
        ),
    )
    return code if code >= 0 else 128 - code


def _record(job_dir: Path, record: RankRecord) -> None:
    try:
        write_record(job_dir, record)
    except PloughError as error:
        # The launcher may be gone, and its folder with it, or the disk full: the exit code still has to
        # say what happened to the rank.
        if job_dir.is_dir():
            os.write(2, f"plough: rank {record.rank} leaves no record: {error.cause}\n".encode())


def _reap(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return status if done else None


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
