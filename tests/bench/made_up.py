"""A measurement that nobody made: round numbers, every kind of row."""

from __future__ import annotations

from collections.abc import Sequence

from plough.bench.request import Request
from plough.bench.result import Measured, Result, Setup, Timing, quantiles
from plough.bench.sizes import KIB, MIB, bandwidths, points

BACKENDS = {
    "ccl": {"between": "", "hosts": "1", "inside": "buffer to buffer", "isa": "avx512"},
    "gloo": {"torch": "2.13.0"},
    "oneccl": {"release": "2021.16.2", "over": "MPI", "settings": "CCL_WORKER_OFFLOAD=0"},
}
# backend -> microseconds of a message without length, and per KiB
SPEED = {"ccl": (5.0, 0.1), "gloo": (300.0, 0.5), "oneccl": (10.0, 0.2)}


def setup(names: Sequence[str] = tuple(BACKENDS), **changes: object) -> Setup:
    values = {
        "date": "2026-01-02T03:04:05+00:00",
        "model": "Intel(R) Xeon(R) Platinum",
        "hosts": ("node0",),
        "ranks": 2,
        "cores": (24, 24),
        "launcher": "intel-mpi",
        "kernel": "6.8.0",
        "versions": {"plough": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "backends": {name: BACKENDS[name] for name in names},
    }
    return Setup(**{**values, **changes})  # type: ignore[arg-type]


def result(
    collectives: Sequence[str] = ("all_reduce", "gather", "barrier", "send_recv"),
    names: Sequence[str] = tuple(BACKENDS),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    sizes: Sequence[int] = (64, 64 * KIB, 25 * MIB),
    **changes: object,
) -> Result:
    """oneCCL has no gather; all of its times are twice those of ccl, and gloo's start at 300 us."""
    measured = []
    for point in points(collectives, dtypes, sizes, 2):
        timings = []
        for name in names:
            if name == "oneccl" and point.collective == "gather":
                continue
            start, rate = SPEED[name]
            us = quantiles([start + rate * point.bytes / KIB])
            algorithm, bus = bandwidths(point, us.median)
            sized = point.dtype is not None
            timings.append(
                Timing(
                    backend=name,
                    us=us,
                    rounds=(us,),
                    algbw=algorithm if sized else None,
                    busbw=bus if sized else None,
                    verified=True,
                )
            )
        of = {"collective": point.collective, "dtype": point.dtype}
        measured.append(Measured(**of, size=point.size, bytes=point.bytes, timings=tuple(timings)))  # type: ignore[arg-type]
    request = Request(collectives=tuple(collectives), sizes=tuple(sizes), dtypes=tuple(dtypes))
    return Result(setup=setup(names, **changes), request=request, measured=tuple(measured), seconds=12.3)
