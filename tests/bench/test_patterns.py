"""That right results pass and every kind of wrong one is seen: ranks are played by one process."""

from __future__ import annotations

import pytest
import torch

from plough.bench.patterns import PERIODS_AT_ONCE, Buffers, fill, period, wrong
from plough.bench.sizes import COLLECTIVES, Point, points

SIZED = [name for name in COLLECTIVES if name != "barrier"]


def point_of(collective: str, dtype: str, ranks: int, size: int = 6000) -> Point:
    (point,) = points([collective], [dtype], [size], ranks)
    return point


def filled(point: Point) -> list[Buffers]:
    found = []
    for rank in range(point.ranks):
        memory = torch.empty(point.bytes, dtype=torch.uint8), torch.empty(point.bytes, dtype=torch.uint8)
        found.append(Buffers.views(memory, point))
        fill(point, found[-1], rank)
    return found


def carry_out(point: Point, ranks: list[Buffers]) -> None:
    """What the collective does, by its definition; float32 sums, rounded once."""
    sources = [one.source.clone() for one in ranks]
    total = torch.stack([source.float() for source in sources]).sum(0)
    count = point.count
    for rank, mine in enumerate(ranks):
        piece = slice(rank * count, (rank + 1) * count)
        match point.collective:
            case "all_reduce":
                mine.source.copy_(total)
            case "reduce":
                mine.source.copy_(total) if rank == 0 else None
            case "broadcast":
                mine.source.copy_(sources[0])
            case "all_gather":
                mine.target.copy_(torch.cat(sources))
            case "gather":
                mine.target.copy_(torch.cat(sources)) if rank == 0 else None
            case "reduce_scatter":
                mine.target.copy_(total[piece])
            case "scatter":
                mine.target.copy_(sources[0][piece])
            case "all_to_all":
                mine.target.copy_(torch.cat([source[piece] for source in sources]))
            case "send_recv":
                mine.target.copy_(sources[0]) if rank in (0, point.ranks - 1) else None


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("collective", SIZED)
def test_right_results_pass(collective: str, dtype: str, ranks: int) -> None:
    point = point_of(collective, dtype, ranks)
    buffers = filled(point)
    carry_out(point, buffers)
    assert [wrong(point, mine, rank) for rank, mine in enumerate(buffers)] == [None] * ranks


@pytest.mark.parametrize("collective", SIZED)
def test_doing_nothing_is_seen(collective: str) -> None:
    point = point_of(collective, "float32", 3)
    buffers = filled(point)
    assert any(wrong(point, mine, rank) for rank, mine in enumerate(buffers))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("collective", SIZED)
def test_one_wrong_element_is_seen(collective: str, dtype: str) -> None:
    point = point_of(collective, dtype, 2)
    buffers = filled(point)
    carry_out(point, buffers)
    in_place = collective in ("all_reduce", "reduce", "broadcast")
    result = buffers[0].source if in_place else buffers[0].target
    right = float(result[-2])
    result[-2] += 1
    assert wrong(point, buffers[0], 0) == (
        f"element {len(result) - 2} is {right + 1:g}, and {right:g} is right"
    )


def test_pieces_of_two_ranks_exchanged_are_seen() -> None:
    point = point_of("all_gather", "float32", 2)
    buffers = filled(point)
    carry_out(point, buffers)
    halves = buffers[1].target.clone().split(point.count)
    buffers[1].target.copy_(torch.cat(halves[::-1]))
    assert wrong(point, buffers[1], 1) is not None


@pytest.mark.parametrize("shift", [1, 64, 4096])
def test_a_shift_is_seen(shift: int) -> None:
    point = point_of("broadcast", "float32", 2, 40_000)
    buffers = filled(point)
    carry_out(point, buffers)
    buffers[1].source.copy_(buffers[1].source.roll(shift))
    assert wrong(point, buffers[1], 1) is not None


def test_large_buffers_are_looked_at_to_their_end() -> None:
    length = period("broadcast", 2) * PERIODS_AT_ONCE + 7
    point = point_of("broadcast", "bfloat16", 2, 2 * length)
    buffers = filled(point)
    carry_out(point, buffers)
    assert wrong(point, buffers[1], 1) is None
    buffers[1].source[-1] += 1
    assert str(wrong(point, buffers[1], 1)).startswith(f"element {length - 1} is ")


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 128, 256])
def test_sums_stay_exact_in_bfloat16(ranks: int) -> None:
    largest = (period("all_reduce", ranks) - 1) * ranks
    assert largest <= 256
    assert float(torch.tensor(largest, dtype=torch.bfloat16)) == largest


def test_more_ranks_than_bfloat16_can_count() -> None:
    point = point_of("all_reduce", "bfloat16", 600, 64)
    buffers = filled(point)
    carry_out(point, buffers)
    assert wrong(point, buffers[0], 0) is None


def test_a_barrier_has_no_values() -> None:
    (point,) = points(["barrier"], ["float32"], [64], 2)
    buffers = Buffers.views((torch.empty(8, dtype=torch.uint8), torch.empty(8, dtype=torch.uint8)), point)
    fill(point, buffers, 0)
    assert wrong(point, buffers, 0) is None
