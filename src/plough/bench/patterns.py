"""What is put into the buffers of a collective, and whether what came out is right. Knows torch, no group.

The values are small whole numbers that repeat with a prime period, different for each rank: a sum of them
is exact in bfloat16, and a piece in the wrong place, or of the wrong rank, is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from plough.bench.sizes import Point

__all__ = ["Buffers", "fill", "period", "wrong"]

EXACT = 256
"""Whole numbers up to here are exact in bfloat16."""
PRIMES = (251, 127, 83, 61, 31, 13, 7, 5, 3, 2)
STEP = 7
"""How far apart the ranks' patterns are."""
POISON = -1
PERIODS_AT_ONCE = 4096

_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


@dataclass(frozen=True)
class Buffers:
    """A rank's two buffers at one point."""

    source: torch.Tensor
    target: torch.Tensor

    @classmethod
    def views(cls, memory: tuple[torch.Tensor, torch.Tensor], point: Point) -> Buffers:
        """The first bytes of two uint8 tensors, as what the point needs."""
        if point.dtype is None:
            return cls(memory[0][:0], memory[1][:0])
        dtype = getattr(torch, point.dtype)
        source, target = (
            whole[: elements * dtype.itemsize].view(dtype)
            for whole, elements in zip(memory, (point.source, point.target), strict=True)
        )
        return cls(source, target)


def period(collective: str, ranks: int) -> int:
    """The largest known prime for which sums over the ranks stay exact in bfloat16."""
    addends = ranks if collective in _REDUCING else 1
    return next((prime for prime in PRIMES if (prime - 1) * addends <= EXACT), PRIMES[-1])


def fill(point: Point, buffers: Buffers, rank: int) -> None:
    """What a rank gives; and into what it gets, something that is never right."""
    if point.dtype is not None:
        for view, start in _chunks(buffers.source, period(point.collective, point.ranks)):
            view.copy_(_values(point, rank, start, len(view)))
        buffers.target.fill_(POISON)


def wrong(point: Point, buffers: Buffers, rank: int) -> str | None:
    """What is wrong in a rank's buffers after the collective, None if nothing is."""
    count = point.count
    exact = (period(point.collective, point.ranks) - 1) * point.ranks <= EXACT
    tolerance = 0.0 if exact or point.collective not in _REDUCING else 2.0**-6
    for where, found, giver, offset in _expected(point, buffers, rank):
        for view, start in _chunks(found, period(point.collective, point.ranks)):
            wanted = _values(point, giver, offset + start, len(view))
            if torch.allclose(view.float(), wanted, rtol=tolerance, atol=0.0):
                continue
            at = int(((view.float() - wanted).abs() > tolerance * wanted.abs()).nonzero()[0])
            return (
                f"element {where * count + start + at} is {float(view[at]):g}, "
                f"and {float(wanted[at]):g} is right"
            )
    return None


def _expected(
    point: Point, buffers: Buffers, rank: int
) -> Iterator[tuple[int, torch.Tensor, int | None, int]]:
    """(number, piece, the rank whose pattern it must hold or None for the sum, where in that it starts)."""
    count, pieces = point.count, range(point.ranks)
    match point.collective:
        case "all_reduce":
            yield 0, buffers.source, None, 0
        case "reduce":
            if rank == 0:
                yield 0, buffers.source, None, 0
        case "broadcast":
            yield 0, buffers.source, 0, 0
        case "reduce_scatter":
            yield 0, buffers.target, None, rank * count
        case "scatter":
            yield 0, buffers.target, 0, rank * count
        case "send_recv":
            if rank in (0, point.ranks - 1):
                yield 0, buffers.target, 0, 0
        case "all_gather" | "gather":
            for giver in pieces if point.collective == "all_gather" or rank == 0 else ():
                yield giver, buffers.target[giver * count : (giver + 1) * count], giver, 0
        case "all_to_all":
            for giver in pieces:
                yield giver, buffers.target[giver * count : (giver + 1) * count], giver, rank * count


def _values(point: Point, giver: int | None, start: int, length: int) -> torch.Tensor:
    """The pattern of a rank, or of the sum over all, from element `start` on, as float32."""
    length_of_period = period(point.collective, point.ranks)
    index = torch.arange(length_of_period)
    givers = range(point.ranks) if giver is None else (giver,)
    table = torch.stack([(index + STEP * one) % length_of_period for one in givers]).sum(0).float()
    rolled = torch.roll(table, -(start % length_of_period))
    return rolled.repeat(-(-length // length_of_period))[:length]


def _chunks(tensor: torch.Tensor, length_of_period: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Views of a piece at a time: a pattern of a large buffer needs no memory of its size."""
    step = length_of_period * PERIODS_AT_ONCE
    for start in range(0, len(tensor), step):
        yield tensor[start : start + step], start
