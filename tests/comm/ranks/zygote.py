"""Runs fault cases: a process that has imported torch once and forks all others, so a case starts at once.

Run as: python zygote.py
stdin: one JSON object a case, as `faults.Case` makes it; stdout: {"folder", "status"} for each case that is
over, whose result is in its folder. Ends with stdin.

Three generations, each the parent of the next: the zygote, which has one thread and never forms a group;
one process for each case, which keeps the store, sends the signal and collects; the ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TextIO

import torch.distributed as dist
from faulty import live

from plough.comm.build import load_extension

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
FORM_S, GRACE_S = (
    60.0,
    10.0,
)  # to form a group on a busy machine; beyond the timeout before a rank counts as hung
SHM = Path("/dev/shm")

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    load_extension()
    shm_apart()

    gc.collect()
    gc.freeze()
    print(json.dumps({"pid": os.getpid(), "fds": count_fds(), "threads": len(os.listdir("/proc/self/task"))}))
    sys.stdout.flush()
    case = serve()
    if case is not None:
        Play(case).run()


def shm_apart() -> None:
    """As root: a /dev/shm of 1 MiB that nobody else uses, so that whatever is in it is ours."""
    if os.geteuid() != 0 or libc.unshare(CLONE_NEWNS) != 0:
        return
    libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    libc.mount(b"tmpfs", str(SHM).encode(), b"tmpfs", 0, b"size=1m")


def count_fds() -> int:
    return len(os.listdir("/proc/self/fd")) - 1


def die_with_parent(sent: signal.Signals) -> None:
    libc.prctl(PR_SET_PDEATHSIG, int(sent))


def serve() -> dict[str, Any] | None:
    """Forks for each case; returns it in the child, and None at the end."""
    running: dict[int, str] = {}
    unread = b""
    parent = os.getpid()
    while True:
        ready, _, _ = select.select([0], [], [], 0.02 if running else None)
        if ready:
            got = os.read(0, 1 << 16)
            if not got and not unread:
                return None
            *lines, unread = (unread + got).split(b"\n")
            for line in lines:
                case = dict(json.loads(line))
                pid = os.fork()
                if pid == 0:
                    die_with_parent(signal.SIGKILL)
                    if os.getppid() != parent:
                        os._exit(1)
                    return case
                running[pid] = case["folder"]
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended = {
                "folder": running.pop(pid),
                "status": os.waitstatus_to_exitcode(status),
                "fds": count_fds(),
            }
            print(json.dumps(ended), flush=True)


@dataclass
class Actor:
    """A rank as the one who runs its case sees it."""

    rank: int
    pid: int
    heard: TextIO
    orders: TextIO
    events: list[dict[str, Any]] = field(default_factory=list)
    code: int | None = None
    unread: bytes = b""
    open: bool = True

    def event(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["event"] == name), None)

    def tell(self, **order: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(order), file=self.orders, flush=True)


class Play:
    """One case, from the first fork to the last child."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.folder = Path(case["folder"])
        self.actors: list[Actor] = []
        self.result: dict[str, Any] = {"hung": [], "host": socket.gethostname()}

    def run(self) -> NoReturn:
        os.setsid()
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
        (self.folder / "tmp").mkdir()
        os.environ["TMPDIR"] = str(self.folder / "tmp")
        before = set(os.listdir(SHM))
        for rank in range(self.case["size"]):
            self.fork(rank)
        store = None if self.case["store"] == "rank 0" else self.keep_store()
        try:
            self.play()
            self.end()
        finally:
            if self.result["hung"]:
                self.explain_hung()
            self.bury()
            del store
            self.result["left"] = {
                "processes": self.children(),
                "files": sorted(str(path) for path in (self.folder / "tmp").rglob("*")),
                "shm": sorted(set(os.listdir(SHM)) - before),
            }
            ranks = [{"pid": a.pid, "code": a.code, "events": a.events} for a in self.actors]
            text = json.dumps({**self.result, "ranks": ranks})
            (self.folder / "result.json").write_text(text)
        os._exit(0)

    def fork(self, rank: int) -> None:
        from_rank, to_us = os.pipe()
        from_us, to_rank = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.close(from_rank)
            os.close(to_rank)
            for other in self.actors:
                other.heard.close()
                other.orders.close()
            log = os.open(self.folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            os.close(0)
            sys.exit(live(rank, self.case, os.fdopen(to_us, "w"), os.fdopen(from_us)))
        os.close(to_us)
        os.close(from_us)
        self.actors.append(Actor(rank, pid, os.fdopen(from_rank), os.fdopen(to_rank, "w")))

    def keep_store(self) -> dist.TCPStore:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for actor in self.actors:
            actor.tell(port=store.port)
        return store

    # ---- listening ----

    def listen(self, seconds: float) -> None:
        """Take in what ranks say, for so long or until one says something."""
        readable = [actor for actor in self.actors if actor.open]
        ready, _, _ = select.select([actor.heard for actor in readable], [], [], max(0.0, seconds))
        for actor in readable:
            if actor.heard not in ready:
                continue
            got = os.read(actor.heard.fileno(), 1 << 16)
            actor.open = bool(got)
            *lines, actor.unread = (actor.unread + got).split(b"\n")
            actor.events += [json.loads(line) for line in lines]

    def wait_for(self, actors: list[Actor], event: str, seconds: float, what: str) -> bool:
        """Whether all of them say so in time. Who is gone cannot be waited for."""
        limit = time.monotonic() + seconds
        while late := [actor for actor in actors if actor.open and not actor.event(event)]:
            if time.monotonic() > limit:
                self.result["hung"] += [f"rank {actor.rank}: {what}" for actor in late]
                return False
            self.listen(limit - time.monotonic())
        return True

    # ---- the play ----

    def play(self) -> None:
        case, actors = self.case, self.actors
        victim = actors[case["victim"]]
        others = [actor for actor in actors if actor is not victim]
        if case["store"] == "rank 0":
            self.wait_for(actors[:1], "store", FORM_S, "no store")
            for actor in actors[1:]:
                actor.tell(port=actors[0].events[0]["port"])
        sent = case["signal"]
        if sent:
            if not self.wait_for(actors, "ready", FORM_S, "no group"):
                return
            time.sleep(case["delay"])
            self.result["fault"] = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL if sent == "KILL" else signal.SIGSTOP)
        patience = case["timeout"] + GRACE_S if sent else FORM_S
        if not self.wait_for(others, "waits", patience, "neither raised nor succeeded"):
            return
        if sent == "STOP":
            self.result["continued"] = time.monotonic()
            os.kill(victim.pid, signal.SIGCONT)
            time.sleep(0.5)

    def end(self) -> None:
        """Let everybody look at its memory, form a new group of survivors, and go."""
        case, actors = self.case, self.actors
        if self.result["hung"]:
            return
        victim = actors[case["victim"]]
        others = [actor for actor in actors if actor is not victim]
        lost_store = case["store"] == "rank 0" and case["victim"] == 0
        again = [] if lost_store or not case["again"] else [actor.rank for actor in others]
        for actor in others:
            actor.tell(again=again)
        if again and not self.wait_for(others, "formed again", FORM_S, "no new group"):
            return
        # Who was stopped raises by itself; it may hold the store of the others.
        if not self.wait_for([victim], "waits", case["timeout"] + GRACE_S, "hangs after it was continued"):
            return
        for actor in actors:
            actor.tell()
        self.wait_for(actors, "the end", GRACE_S, "did not end")

    def explain_hung(self) -> None:
        """Where the threads of all ranks are, as far as can be told from outside."""
        places = {}
        for actor in self.actors:
            found = []
            for task in Path(f"/proc/{actor.pid}/task").glob("*"):
                with contextlib.suppress(OSError):
                    state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                    found.append(
                        f"{(task / 'comm').read_text().strip()} {state} {(task / 'wchan').read_text()}"
                    )
            places[f"rank {actor.rank}"] = found
        self.result["places"] = places

    def bury(self) -> None:
        for actor in self.actors:
            if self.result["hung"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(actor.pid, signal.SIGKILL)
            _, status = os.waitpid(actor.pid, 0)
            actor.code = os.waitstatus_to_exitcode(status)

    def children(self) -> list[int]:
        """What the ranks have left running: it is ours now."""
        found = []
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                found.append(pid)
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            found += [int(child) for child in children]
        return found


if __name__ == "__main__":
    main()
