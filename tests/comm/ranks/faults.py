"""Fault cases: what they are, how one is run, and what is wrong with what came of it. Knows no torch.

A case is a group of ranks on this machine, on one host or as if on two, and something that happens to one
of them. `Stage` keeps the process that runs them.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RANKS = Path(__file__).parent
RAISED, DID_NOT_RAISE = 17, 18
AT_ONCE_S = 1.0
"""A dead rank is noticed far sooner; this is what a busy machine may add."""
SLACK_S = 1.0
"""Beyond the timeout."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """plot: what the ranks call, one of `faulty.PLOTS`; kinds: at random of these only. signal: KILL, STOP or
    none, after `delay` seconds. store: apart, or on rank 0. differs, count: for some plots. again: whether
    the others form a new group afterwards."""

    plot: str = "at random"
    size: int = 2
    victim: int = 0
    signal: str = ""
    hosts: int = 1
    direct: bool = True
    workers: int = 1
    store: str = "apart"
    timeout: float = 2.0
    delay: float = 0.0
    seed: int = 0
    kinds: tuple[str, ...] = ()
    differs: str = ""
    count: int = 0
    again: bool = True

    def host_of(self, rank: int) -> int:
        return rank % self.hosts

    @property
    def leader_of_victim(self) -> int:
        return self.host_of(self.victim)


def random_case(seed: int) -> Case:
    """Of four, one on two hosts; half are killed, half stopped; everything else is left to the seed."""
    dice = random.Random(seed)
    hosts = 2 if seed % 4 == 3 else 1
    sent = ("KILL", "STOP")[seed // 4 % 2]
    size = dice.choice((3, 4, 4) if hosts == 2 else (2, 3, 4))
    return Case(
        size=size,
        victim=dice.randrange(size),
        signal=sent,
        hosts=hosts,
        direct=dice.random() < 0.6,
        workers=dice.choice((1, 1, 2)),
        store=dice.choice(("apart", "apart", "apart", "rank 0")),
        # A dead rank on the same host must be noticed long before the timeout.
        timeout=5.0 if sent == "KILL" and hosts == 1 else 2.0,
        delay=dice.uniform(0.0, 0.25),
        seed=seed,
    )


class Result:
    """What came of a case, as `zygote` wrote it down."""

    def __init__(self, case: Case, found: dict[str, Any], logs: dict[int, str]) -> None:
        self.case, self.found, self.logs = case, found, logs

    def event(self, rank: int, name: str) -> dict[str, Any] | None:
        return next((e for e in self.found["ranks"][rank]["events"] if e["event"] == name), None)

    def pid(self, rank: int) -> int:
        return int(self.found["ranks"][rank]["pid"])

    def code(self, rank: int) -> int:
        return int(self.found["ranks"][rank]["code"])

    @property
    def host(self) -> str:
        return str(self.found["host"])

    @property
    def others(self) -> list[int]:
        return [rank for rank in range(self.case.size) if rank != self.case.victim]

    def text(self, rank: int) -> str:
        """Of the exception, or "" without one."""
        event = self.event(rank, "raised")
        return str(event["text"]) if event else ""

    def name(self, rank: int) -> str:
        return f"rank {rank} (process {self.pid(rank)} on "

    def seconds(self, rank: int) -> float | None:
        """From the fault to the exception."""
        event = self.event(rank, "raised")
        return event["at"] - self.found["fault"] if event and "fault" in self.found else None

    def __str__(self) -> str:
        lines = [f"{self.case}"]
        for rank in range(self.case.size):
            event = self.event(rank, "raised") or {}
            after = self.seconds(rank)
            when = "" if after is None else f" after {after:.3f} s"
            lines.append(f"rank {rank} (process {self.pid(rank)}) ended with {self.code(rank)}")
            lines.append(f"    {event.get('type')}{when} in {event.get('doing')}: {event.get('text')}")
            if self.logs[rank]:
                lines.append("    it printed: " + self.logs[rank][-1500:])
        lines += [
            f"{name}: {self.found[name]}" for name in ("hung", "left", "places") if self.found.get(name)
        ]
        return "\n".join(lines)


def problems(result: Result) -> list[str]:
    """What is not as it must be after a signal."""
    case, wrong = result.case, [f"hung: {text}" for text in result.found["hung"]]
    soon = case.signal == "KILL" and case.hosts == 1
    limit = AT_ONCE_S if soon else case.timeout + SLACK_S
    for rank in result.others:
        raised, after = result.event(rank, "raised"), result.seconds(rank)
        if raised is None or after is None:
            wrong.append(f"rank {rank} did not raise")
            continue
        if raised["type"] != "DistBackendError":
            wrong.append(f"rank {rank} raised {raised['type']}")
        if after > limit:
            wrong.append(f"rank {rank} raised after {after:.3f} s, not within {limit:g} s")
        if not names_culprit(result, rank):
            wrong.append(f"rank {rank} does not name rank {case.victim}")
        wrong += wrong_afterwards(result, rank)
    if case.signal == "STOP":
        wrong += wrong_with_the_continued(result)
    elif result.code(case.victim) != -9:
        wrong.append(f"rank {case.victim} was killed and ended with {result.code(case.victim)}")
    return wrong + left_behind(result)


def names_culprit(result: Result, rank: int) -> bool:
    """Rank and process. Where a connection to another host broke, the leader of that host will do, and any
    rank of it where the culprit keeps the store: then no word crosses hosts."""
    case, text = result.case, result.text(rank)
    if result.name(case.victim) in text:
        return True
    if case.host_of(rank) == case.host_of(case.victim):
        return False
    if case.store == "rank 0" and case.victim == 0:
        here = [other for other in range(case.size) if case.host_of(other) == case.host_of(case.victim)]
        return any(result.name(other) in text for other in here)
    return "lost the connection to" in text and result.name(case.leader_of_victim) in text


def wrong_afterwards(result: Result, rank: int) -> list[str]:
    """After its exception a rank is told at each call what happened, and nobody writes into its memory."""
    wrong = []
    again = result.event(rank, "again")
    for name, said in (again["calls"] if again else {}).items():
        if said["text"] is None and not name.startswith("pending"):
            wrong.append(f"rank {rank}: {name} succeeds afterwards")
        elif said["text"] is not None and "rank " not in said["text"]:
            wrong.append(f"rank {rank}: {name} does not say why it fails afterwards: {said['text']}")
        if said["seconds"] > 0.5:
            wrong.append(f"rank {rank}: {name} takes {said['seconds']:.3f} s to fail afterwards")
    if again is None:
        wrong.append(f"rank {rank} came to no further call")
    checked = result.event(rank, "checked")
    if not checked or not checked["canary"]:
        wrong.append(f"rank {rank}: its memory was written to")
    if result.code(rank) != RAISED:
        wrong.append(f"rank {rank} ended with {result.code(rank)}")
    return wrong


def wrong_with_the_continued(result: Result) -> list[str]:
    rank, limit = result.case.victim, result.case.timeout + SLACK_S
    raised = result.event(rank, "raised")
    if raised is None:
        return [f"rank {rank} did not raise after it was continued"]
    wrong = wrong_afterwards(result, rank)
    after = raised["at"] - result.found["continued"]
    if after > limit:
        wrong.append(f"rank {rank} raised {after:.3f} s after it was continued, not within {limit:g} s")
    return wrong


def left_behind(result: Result) -> list[str]:
    return [f"left behind: {what}: {found}" for what, found in result.found["left"].items() if found]


class Stage:
    """Runs cases in a zygote; several threads may ask at once."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="plough-faults-"))
        self.process = subprocess.Popen(
            [sys.executable, str(RANKS / "zygote.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**clean_environment(), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the zygote did not start; what it said is on stderr")
        self.zygote: dict[str, Any] = json.loads(line)
        self.number = 0
        self.lock = threading.Lock()
        self.waiting: dict[str, Future[dict[str, Any]]] = {}
        self.fds: int = self.zygote["fds"]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            ended = json.loads(line)
            with self.lock:
                future = self.waiting.pop(ended["folder"])
                self.fds = ended["fds"]
            future.set_result(ended)
        with self.lock:
            for future in self.waiting.values():
                future.set_exception(RuntimeError("the zygote is gone"))

    def run(self, case: Case, **more: Any) -> Result:
        """more: facts for the ranks that are no part of the case."""
        with self.lock:
            self.number += 1
            folder = self.folder / str(self.number)
            folder.mkdir()
            future: Future[dict[str, Any]] = Future()
            self.waiting[str(folder)] = future
            assert self.process.stdin is not None
            print(
                json.dumps({**asdict(case), **more, "folder": str(folder)}),
                file=self.process.stdin,
                flush=True,
            )
        status = future.result(timeout=300)["status"]
        logs = {rank: (folder / f"rank{rank}.log").read_text(errors="replace") for rank in range(case.size)}
        report = folder / "result.json"
        if not report.exists():
            raise RuntimeError(f"whoever ran {case} ended with {status}: {logs}")
        result = Result(case, json.loads(report.read_text()), logs)
        shutil.rmtree(folder)
        return result

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PLOUGH_CCL", "CCL_"))}
