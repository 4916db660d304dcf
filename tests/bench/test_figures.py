"""Which lines a measurement becomes."""

from __future__ import annotations

import pytest

from plough.bench.figures import latency_chart
from plough.bench.plot import to_svg
from plough.errors import UsageError
from tests.bench.made_up import result


def test_a_panel_for_each_collective_that_has_sizes() -> None:
    chart = latency_chart(result())
    assert [panel.title for panel in chart.panels] == ["all_reduce", "gather", "send_recv"]
    assert [one.label for one in chart.panels[0].series] == [
        f"{name}, {dtype}" for name in ("ccl", "gloo", "oneccl") for dtype in ("float32", "bfloat16")
    ]
    assert [one.dashed for one in chart.panels[0].series] == [False, True] * 3
    assert {one.label for one in chart.panels[1].series} == {
        "ccl, float32", "ccl, bfloat16", "gloo, float32", "gloo, bfloat16"
    }  # fmt: skip
    assert chart.panels[0].series[0].points[0] == pytest.approx((64, 5.006e-6))
    assert to_svg(chart).count('class="name"') == 3


def test_one_dtype_is_said_once_and_not_dashed() -> None:
    chart = latency_chart(result(dtypes=("bfloat16",), hosts=("a", "b")))
    assert chart.title == "Latency of collectives, bfloat16"
    assert chart.subtitle.startswith("2 ranks on 2 hosts of Intel")
    assert {one.label for one in chart.panels[0].series} == {"ccl", "gloo", "oneccl"}
    assert not any(one.dashed for panel in chart.panels for one in panel.series)


def test_a_backend_keeps_its_colour() -> None:
    whole, part = latency_chart(result()), latency_chart(result(names=("oneccl",)))
    assert part.panels[0].series[0].colour == whole.panels[0].series[-1].colour == 2


def test_barriers_alone_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        latency_chart(result(collectives=("barrier",)))
