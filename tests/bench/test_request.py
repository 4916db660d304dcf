"""The flags of a measurement: what they mean, that they read back, and what is refused."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.bench.request import BACKENDS, Request, add_request_arguments, request_of
from plough.bench.sizes import COLLECTIVES, DTYPES
from plough.errors import UsageError


def read(*words: str) -> Request:
    parser = argparse.ArgumentParser()
    add_request_arguments(parser)
    return request_of(parser.parse_args(words))


def test_by_default() -> None:
    assert read() == Request()
    assert Request().arguments() == []


def test_everything() -> None:
    request = read(
        *("--collectives", "broadcast, all_reduce,broadcast", "--sizes", "64,4KiB,25MiB"),
        *("--dtypes", "bfloat16", "--backends", "gloo", "--seconds-per-point", "0.25", "--rounds", "3"),
    )
    assert request == Request(
        collectives=("broadcast", "all_reduce"),
        sizes=(64, 4096, 25 << 20),
        dtypes=("bfloat16",),
        backends=("gloo",),
        seconds=0.25,
        rounds=3,
    )


def some(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), min_size=1, unique=True).map(tuple)


@given(
    st.builds(
        Request,
        collectives=some(COLLECTIVES),
        sizes=st.lists(st.integers(1, 1 << 34), min_size=1, unique=True).map(tuple),
        dtypes=some(DTYPES),
        backends=st.none() | some(BACKENDS),
        seconds=st.floats(1e-9, 1e9),
        rounds=st.integers(1, 99),
    )
)
def test_arguments_read_back(request: Request) -> None:
    assert read(*request.arguments()) == request


@pytest.mark.parametrize(
    "line",
    [
        "--collectives all-reduce",
        "--collectives ,",
        "--sizes 64,4KB",
        "--dtypes float16",
        "--backends mpi",
        "--seconds-per-point 0",
        "--seconds-per-point nan",
        "--rounds 0",
    ],
)
def test_refused(line: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(*line.split())
    assert str(raised.value).startswith(line.split()[0])
