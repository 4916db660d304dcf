"""What is measured: collectives, sizes, how often, and what bandwidth means. Pure; knows no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from plough.errors import UsageError

__all__ = [
    "COLLECTIVES",
    "DTYPES",
    "ITEM_BYTES",
    "SIZES",
    "Point",
    "bandwidths",
    "bus_factor",
    "memory_needed",
    "parse_size",
    "points",
    "repetitions",
    "size_name",
    "weight",
]

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
)
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
DTYPES = tuple(ITEM_BYTES)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Powers of 4 from 64 B to 256 MiB, and DDP's usual bucket.
SIZES = tuple(sorted([*(4**power for power in range(3, 15)), 25 * MIB]))
LARGEST = 16 * GIB
UNITS = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB}

LEAST, MOST = 2, 200
"""Repetitions of a backend in a round, whatever the time."""

# collective -> whether what each rank gives, and what it gets, is one piece (1), a piece per rank (n) or
# nothing in a buffer of its own (0)
_BUFFERS = {
    "all_reduce": ("1", "0"),
    "reduce": ("1", "0"),
    "broadcast": ("1", "0"),
    "all_gather": ("1", "n"),
    "reduce_scatter": ("n", "1"),
    "all_to_all": ("n", "n"),
    "gather": ("1", "n"),
    "scatter": ("n", "1"),
    "barrier": ("0", "0"),
    "send_recv": ("1", "1"),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One thing to measure. size: bytes, as asked for. count: elements of a piece. dtype: None for a barrier.

    The size of a collective is, as in nccl-tests, that of the longer of a rank's two buffers: all_gather's
    output, reduce_scatter's input, both of all_to_all. It is rounded down to whole elements for each rank.
    """

    collective: str
    dtype: str | None
    size: int
    count: int
    ranks: int

    @property
    def source(self) -> int:
        """Elements a rank gives (in place: and gets)."""
        return self._elements(0)

    @property
    def target(self) -> int:
        """Elements a rank gets in a buffer of its own; a gather's are used on the root only."""
        return self._elements(1)

    @property
    def bytes(self) -> int:
        """What the bandwidth is of."""
        return 0 if self.dtype is None else max(self.source, self.target) * ITEM_BYTES[self.dtype]

    def _elements(self, which: int) -> int:
        return {"0": 0, "1": self.count, "n": self.count * self.ranks}[_BUFFERS[self.collective][which]]

    def __str__(self) -> str:
        if self.dtype is None:
            return self.collective
        return f"{self.collective} {self.dtype} {size_name(self.size)}"


def points(
    collectives: Sequence[str], dtypes: Sequence[str], sizes: Sequence[int], ranks: int
) -> list[Point]:
    """Everything to be measured, in the order of the arguments."""
    found = []
    for collective in collectives:
        if collective == "barrier":
            found.append(Point(collective=collective, dtype=None, size=0, count=0, ranks=ranks))
            continue
        pieces = ranks if "n" in _BUFFERS[collective] else 1
        for dtype in dtypes:
            for size in sizes:
                count = max(1, size // ITEM_BYTES[dtype] // pieces)
                found.append(Point(collective=collective, dtype=dtype, size=size, count=count, ranks=ranks))
    return found


def bus_factor(collective: str, ranks: int) -> float:
    """What nccl-tests multiply the algorithm bandwidth by to get the bus bandwidth.

    https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, and for gather, scatter and
    send/recv the programs themselves (gather.cu, scatter.cu, sendrecv.cu). The bus bandwidth of a perfect
    algorithm does not depend on the number of ranks: it is what each rank's way to the others carries.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0


def bandwidths(point: Point, microseconds: float) -> tuple[float, float]:
    """(algorithm, bus) bandwidth in GB/s, 10^9 bytes: size over time, and that times `bus_factor`."""
    algorithm = point.bytes / microseconds / 1000 if microseconds > 0 else 0.0
    return algorithm, algorithm * bus_factor(point.collective, point.ranks)


def repetitions(seconds_each: float, *, budget: float, rounds: int) -> int:
    """How often a backend is timed in each of the rounds, so that all its rounds take `budget` seconds."""
    wanted = budget / max(seconds_each, 1e-9) / rounds
    return max(LEAST, min(MOST, math.ceil(wanted)))


def weight(point: Point) -> float:
    """How long a point takes compared with others, roughly: for a forecast. Large ones outlast any budget."""
    return 1 + point.bytes / (16 * MIB)


def memory_needed(wanted: Sequence[Point], local_ranks: int) -> int:
    """Bytes the buffers of a host's ranks take, ours and one more that a backend may keep to itself."""
    return 3 * local_ranks * max((point.bytes for point in wanted), default=0)


def parse_size(text: str) -> int:
    """ "64", "4KiB", "25MiB" -> bytes. Raises UsageError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    unit = UNITS.get(found[2]) if found else None
    if found is None or unit is None:
        raise UsageError(f"{text!r} is not a size", hint="such as 64, 4KiB, 25MiB or 1GiB")
    size = int(float(found[1]) * unit)
    if not 1 <= size <= LARGEST:
        raise UsageError(f"{text!r}: sizes are from 1 B to {size_name(LARGEST)}")
    return size


def size_name(size: int) -> str:
    """65536 -> "64 KiB"; what is no whole number of a unit is given in the next smaller one."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
