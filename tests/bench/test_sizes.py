"""Sizes, element counts, bandwidth and how often: tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.bench.sizes import (
    COLLECTIVES,
    GIB,
    KIB,
    LEAST,
    MIB,
    MOST,
    SIZES,
    Point,
    bandwidths,
    bus_factor,
    memory_needed,
    parse_size,
    points,
    repetitions,
    size_name,
    weight,
)
from plough.errors import UsageError


def test_what_is_measured_by_default() -> None:
    assert ", ".join(map(size_name, SIZES)) == (
        "64 B, 256 B, 1 KiB, 4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB, 25 MiB, 64 MiB, 256 MiB"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64", 64),
        ("64B", 64),
        ("4KiB", 4 * KIB),
        ("4 kib", 4 * KIB),
        ("25MiB", 25 * MIB),
        ("1.5MiB", 3 * 512 * KIB),
        ("1GiB", GIB),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "4KB", "4K", "-1", "0", "0.2", "17GiB", "1e3", "4 KiB MiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@given(st.integers(1, 16 * GIB))
def test_a_name_reads_back(size: int) -> None:
    assert parse_size(size_name(size)) == size


# (collective, what a rank gives, what it gets, in elements of 4 bytes), for 64 bytes and 4 ranks
ELEMENTS = [
    ("all_reduce", 16, 0),
    ("reduce", 16, 0),
    ("broadcast", 16, 0),
    ("all_gather", 4, 16),
    ("reduce_scatter", 16, 4),
    ("all_to_all", 16, 16),
    ("gather", 4, 16),
    ("scatter", 16, 4),
    ("barrier", 0, 0),
    ("send_recv", 16, 16),
]


@pytest.mark.parametrize(("collective", "source", "target"), ELEMENTS)
def test_a_point(collective: str, source: int, target: int) -> None:
    (point,) = points([collective], ["float32"], [64], 4)
    assert (point.source, point.target) == (source, target)
    assert point.bytes == (0 if collective == "barrier" else 64)


def test_every_collective_is_in_the_table() -> None:
    assert tuple(name for name, _, _ in ELEMENTS) == COLLECTIVES


def test_sizes_are_rounded_down_to_whole_elements_for_each_rank() -> None:
    by_name = {point.collective: point for point in points(COLLECTIVES, ["float32"], [64], 3)}
    assert by_name["all_gather"].bytes == 60
    assert by_name["all_reduce"].bytes == 64
    (tiny,) = points(["all_to_all"], ["bfloat16"], [1], 8)
    assert tiny.bytes == 16


def test_order_and_number_of_points() -> None:
    found = points(["all_reduce", "barrier"], ["float32", "bfloat16"], [64, 128], 2)
    assert [str(point) for point in found] == [
        "all_reduce float32 64 B",
        "all_reduce float32 128 B",
        "all_reduce bfloat16 64 B",
        "all_reduce bfloat16 128 B",
        "barrier",
    ]


# nccl-tests' PERFORMANCE.md; for 4 ranks
@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("reduce_scatter", 0.75),
        ("all_gather", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bus_factor(collective: str, factor: float) -> None:
    assert bus_factor(collective, 4) == factor


def test_bandwidths() -> None:
    point = Point(collective="all_reduce", dtype="float32", size=MIB, count=250_000, ranks=4)
    assert bandwidths(point, 1000.0) == (1.0, 1.5)  # 1 MB in 1 ms is 1 GB/s
    assert bandwidths(point, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("each", "number"), [(0.001, 100), (0.0011, 91), (0.01, 10), (1.0, LEAST), (1e-6, MOST), (0.0, MOST)]
)
def test_repetitions(each: float, number: int) -> None:
    assert repetitions(each, budget=0.5, rounds=5) == number


def test_memory_and_weight_follow_the_largest() -> None:
    wanted = points(["all_reduce", "barrier"], ["float32"], [64, 256 * MIB], 2)
    assert memory_needed(wanted, 2) == 6 * 256 * MIB
    assert memory_needed([], 2) == 0
    assert [round(weight(point)) for point in wanted] == [1, 17, 1]
