"""In each rank: measure collectives, the backends in turns, and let rank 0 write what came out.

`plough bench collectives` starts it. Under your own launcher: `mpirun -n N plough exec -m plough.bench.ranks
--output FILE`, and then `plough bench collectives --show FILE`.

A repetition is what OSU's micro-benchmarks do: all ranks meet in a barrier, then each times its own call;
its time is that of the slowest rank. The barrier is the same for all backends, the quickest there is.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from plough._version import __version__
from plough.bench.backends import Backend, OneCclBackend, Operation, open_oneccl, open_torch
from plough.bench.patterns import Buffers, fill, wrong
from plough.bench.progress import Progress
from plough.bench.request import BACKENDS, Request, add_request_arguments, request_of
from plough.bench.result import Measured, Result, Setup, Timing, quantiles
from plough.bench.sizes import Point, bandwidths, memory_needed, points, repetitions, weight
from plough.contract import Contract, Env, WorkerIdentity
from plough.errors import PloughError, UsageError
from plough.files import write_text_atomic
from plough.topology import probe
from plough.train.group import default_store, ensure_group
from plough.train.inforce import identity_of_this_process

__all__ = ["main"]

TIMEOUT = timedelta(minutes=30)
"""For ranks to come: the first may have to compile."""
PILOTS = 3
WARM_UPS = 2
GATES = ("ccl", "oneccl", "gloo")
"""Whose barrier starts a repetition, the first that is there."""
LATE_S = 0.02
"""How much later than the others a rank comes to the barrier that is verified."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="plough.bench.ranks", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--output", required=True, metavar="FILE", help="where rank 0 writes the result, as JSON"
    )
    add_request_arguments(parser)
    options = parser.parse_args(argv)
    # Ranks have no data for stdout, but oneCCL writes its remarks there; its errors come on stderr.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    request, identity = request_of(options), identity_of_this_process()
    if identity.world_size < 2:
        raise UsageError("one rank has nobody to talk to", hint="start at least two: --ranks 2")
    ensure_group(identity, "gloo", TIMEOUT)  # to agree on things; what is measured has groups of its own
    result = measure(request, identity)
    if identity.rank == 0:
        write_text_atomic(options.output, result.to_json() + "\n")
        if Env.PLOUGH_JOB_DIR not in os.environ:
            print(f"plough: written to {Path(options.output).resolve()}", file=sys.stderr, flush=True)
    return 0


def measure(request: Request, identity: WorkerIdentity) -> Result:
    """Everything that was asked for. Collective; the result is whole on every rank."""
    started = time.monotonic()
    wanted = points(request.collectives, request.dtypes, request.sizes, identity.world_size)
    setup_of = _Setup(identity)
    setup_of.check_memory(wanted)
    backends, notes = _open(request, identity)
    most = max(point.bytes for point in wanted)
    memory = torch.empty(most, dtype=torch.uint8), torch.empty(most, dtype=torch.uint8)
    bench = _Bench(request, identity.rank, backends)
    progress = Progress(sum(map(weight, wanted)), watched=identity.rank == 0 and _watched())
    measured = []
    for point in wanted:
        progress.show(str(point))
        measured.append(bench.measure(point, Buffers.views(memory, point)))
        progress.done(weight(point))
    progress.finish(f"{len(wanted)} points")
    for backend in backends:
        if isinstance(backend, OneCclBackend):
            backend.close()
    return Result(
        setup=setup_of.whole(backends, notes),
        request=request,
        measured=tuple(measured),
        seconds=round(time.monotonic() - started, 1),
    )


def _open(request: Request, identity: WorkerIdentity) -> tuple[list[Backend], list[str]]:
    """What was asked for, or else all that can be had, and why something cannot."""
    notes: list[str] = []
    backends: list[Backend] = []
    for name in request.backends or BACKENDS:
        if name != "oneccl":
            backends.append(open_torch(name))
            continue
        try:
            backends.append(open_oneccl(identity))
        except PloughError as error:
            if request.backends is not None:
                raise
            hint = f" ({error.hint})" if error.hint else ""
            notes.append(f"oneCCL is left out: {error.cause}{hint}")
    return backends, notes


@dataclass(frozen=True)
class _Bench:
    """Measures points with the same backends."""

    request: Request
    rank: int
    backends: Sequence[Backend]

    @property
    def gate(self) -> Operation:
        """Brings all ranks to the same moment: the barrier that they leave closest together."""
        best = min(self.backends, key=lambda one: GATES.index(one.name))
        gate = best.operation(BARRIER, Buffers(torch.empty(0), torch.empty(0)))
        assert gate is not None
        return gate

    def measure(self, point: Point, buffers: Buffers) -> Measured:
        """Verify every backend, then time them in turns. Raises PloughError for a wrong result."""
        found = {backend.name: backend.operation(point, buffers) for backend in self.backends}
        operations = {name: operation for name, operation in found.items() if operation is not None}
        gate, rounds = self.gate, self.request.rounds
        for name, operation in operations.items():
            self._verify(point, buffers, name, operation, gate)
        buffers.source.zero_()  # sums of anything else would grow without end
        buffers.target.zero_()
        with _without_collection():
            each = {name: self._pilot(operation, gate) for name, operation in operations.items()}
            times: dict[str, list[list[int]]] = {name: [] for name in operations}
            for turn in range(rounds):
                # There and back, so that none always comes after the same other.
                for name in list(operations)[:: -1 if turn % 2 else 1]:
                    number = repetitions(each[name], budget=self.request.seconds, rounds=rounds)
                    timed(operations[name], gate, min(WARM_UPS, number // 2))
                    times[name].append(timed(operations[name], gate, number))
        size = {"size": point.size, "bytes": point.bytes}
        timings = tuple(_timing(point, name, times[name]) for name in operations)
        return Measured(collective=point.collective, dtype=point.dtype, **size, timings=timings)

    def _pilot(self, operation: Operation, gate: Operation) -> float:
        """Seconds a repetition takes, barrier included, on the slowest rank; the same on every rank."""
        started = time.perf_counter()
        timed(operation, gate, PILOTS)
        seconds = torch.tensor((time.perf_counter() - started) / PILOTS, dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return float(seconds)

    def _verify(
        self, point: Point, buffers: Buffers, name: str, operation: Operation, gate: Operation
    ) -> None:
        """Raises on every rank if the result is wrong on any."""
        if point.dtype is None:
            problem = _verify_barrier(name, self.rank, point.ranks, operation)
        else:
            fill(point, buffers, self.rank)
            gate()
            operation()
            problem = wrong(point, buffers, self.rank)
        told: list[str | None] = [None] * point.ranks
        dist.all_gather_object(told, problem)
        for rank, text in enumerate(told):
            if text is not None:
                raise PloughError(
                    f"{point} by {name} gives a wrong result: rank {rank}: {text}",
                    hint="nothing was timed. Please report it, with the output of `plough doctor versions`",
                )


BARRIER = Point(collective="barrier", dtype=None, size=0, count=0, ranks=0)


def timed(operation: Operation, gate: Operation, number: int) -> list[int]:
    """Nanoseconds of each of `number` calls in this rank, each after a barrier."""
    clock = time.perf_counter_ns
    times = [0] * number
    for i in range(number):
        gate()
        started = clock()
        operation()
        times[i] = clock() - started
    return times


def _timing(point: Point, name: str, times: list[list[int]]) -> Timing:
    """Of the slowest rank in each repetition; half of the way there and back for send_recv. Collective."""
    slowest = torch.tensor(times, dtype=torch.int64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    trips = 2 if point.collective == "send_recv" else 1
    rounds = [[ns / 1000 / trips for ns in turn] for turn in slowest.tolist()]
    whole = quantiles([us for turn in rounds for us in turn])
    algorithm, bus = bandwidths(point, whole.median)
    return Timing(
        backend=name,
        us=whole,
        rounds=tuple(map(quantiles, rounds)),
        algbw=None if point.dtype is None else float(f"{algorithm:.4g}"),
        busbw=None if point.dtype is None else float(f"{bus:.4g}"),
        verified=True,
    )


def _verify_barrier(name: str, rank: int, ranks: int, operation: Operation) -> str | None:
    """Whoever has left a barrier must find that all had come to it."""
    store = default_store()
    came = [f"plough/bench/barrier/{name}/{one}" for one in range(ranks)]
    if rank == ranks - 1:
        time.sleep(LATE_S)
    store.set(came[rank], "here")
    operation()
    return None if store.check(came) else "it left the barrier before all ranks had come"


class _Setup:
    """Where the ranks are and what they run."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.identity, self.machine = identity, probe()
        contract = Contract.from_env(os.environ)
        mine = {
            "host": socket.gethostname(),
            "cores": len(contract.cpus) if contract is not None else 0,
            "problems": contract.problems if contract is not None else (),
        }
        told: list[Any] = [None] * identity.world_size
        dist.all_gather_object(told, mine)
        self.ranks: list[Mapping[str, Any]] = told

    def check_memory(self, wanted: Sequence[Point]) -> None:
        """Raises UsageError before the kernel has to kill a rank."""
        needed = memory_needed(wanted, self.identity.local_world_size)
        there = self.machine.limits.memory_bytes or self.machine.memory_bytes
        if needed > 0.8 * there:
            raise UsageError(
                f"buffers of {self.identity.local_world_size} ranks would take {needed / 2**30:.1f} GiB, and "
                f"{self.machine.hostname} has {there / 2**30:.1f}",
                hint="name smaller ones with --sizes",
            )

    def whole(self, backends: Sequence[Backend], notes: Sequence[str]) -> Setup:
        problems = (
            f"rank {rank}: {problem}" for rank, one in enumerate(self.ranks) for problem in one["problems"]
        )
        launcher = self.identity.launcher
        return Setup(
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            model=self.machine.model_name,
            hosts=tuple(dict.fromkeys(one["host"] for one in self.ranks)),
            ranks=self.identity.world_size,
            cores=tuple(one["cores"] for one in self.ranks),
            launcher=launcher,
            kernel=platform.release(),
            versions={
                "plough": __version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            },
            backends={backend.name: backend.facts for backend in backends},
            notes=(*notes, *problems),
        )


@contextmanager
def _without_collection() -> Any:
    """Python's garbage collector would come in the middle of a call now and then."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _watched() -> bool:
    return os.environ.get(Env.PLOUGH_LIVE) == "1" or sys.stderr.isatty()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
