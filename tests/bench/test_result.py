"""Quantiles, and that a result reads back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.bench.result import load_result, quantiles
from plough.errors import UsageError
from tests.bench.made_up import result


def test_quantiles() -> None:
    found = quantiles([float(number) for number in range(100, -1, -1)])
    assert (found.repetitions, found.min, found.max) == (101, 0, 100)
    assert (found.p10, found.median, found.p90, found.p99) == (10, 50, 90, 99)


def test_quantiles_lie_between_two() -> None:
    found = quantiles([1.0, 2.0])
    assert (found.p10, found.median, found.p90) == (1.1, 1.5, 1.9)


@given(st.lists(st.floats(0, 1e9), min_size=1))
def test_quantiles_are_in_order(times: list[float]) -> None:
    found = quantiles(times)
    values = [found.min, found.p10, found.median, found.p90, found.p99, found.max]
    assert values == sorted(values)
    assert found.min == round(min(times), 3)
    assert found.max == round(max(times), 3)


def test_a_result_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(result().to_json())
    assert load_result(path) == result()


@pytest.mark.parametrize("text", ["", "{}", '{"setup": 1}', "\udcff"])
def test_no_result(text: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=r"result\.json is not a measurement"):
        load_result(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_result(tmp_path / "none.json")
