"""Charts as text: whole files, and what holds for every axis."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from plough.bench.plot import MOST_TICKS, Axis, Chart, Panel, Series, Unit, domain, tick_text, ticks, to_svg

BYTES = Axis(label="size", log=True, unit="bytes")
SECONDS = Axis(label="time", log=True, unit="seconds")
PLAIN = Axis(label="samples/s")

CHARTS = {
    "two panels, logarithmic": Chart(
        title='Latency <of> "collectives" & more',
        subtitle="2 ranks",
        x=BYTES,
        y=SECONDS,
        panels=(
            Panel(
                title="all_reduce",
                series=(
                    Series(label="ccl", points=((64, 5e-6), (1 << 20, 2e-4)), colour=0),
                    Series(label="gloo", points=((64, 3e-4), (1 << 20, 3e-3)), colour=1, dashed=True),
                ),
            ),
            Panel(title="one point", series=(Series(label="ccl", points=((4096, 1e-5),)),)),
        ),
    ),
    "linear": Chart(
        title="Throughput",
        x=Axis(label="ranks"),
        y=PLAIN,
        panels=(Panel(title="", series=(Series(label="train", points=((1, 10.0), (2, 19.0), (4, 35.0))),)),),
    ),
}


@pytest.mark.parametrize("name", sorted(CHARTS))
def test_whole_files(name: str, snapshot: SnapshotAssertion) -> None:
    text = to_svg(CHARTS[name])
    assert text == snapshot
    assert text == to_svg(CHARTS[name])


@pytest.mark.parametrize("name", sorted(CHARTS))
def test_everything_is_inside_the_page(name: str) -> None:
    root = ElementTree.fromstring(to_svg(CHARTS[name]))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for element in root.iter():
        for key, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(element.attrib.get(key, 0)) <= most


def test_a_legend_that_needs_two_lines() -> None:
    series = tuple(
        Series(label=f"a backend with a long name, {i}", points=((1.0, 1.0),), colour=i) for i in range(5)
    )
    chart = Chart(title="t", x=PLAIN, y=PLAIN, panels=(Panel(title="p", series=series),))
    root = ElementTree.fromstring(to_svg(chart))
    labels = [e for e in root.iter() if (e.text or "").startswith("a backend")]
    assert len(labels) == 5
    assert len({e.attrib["y"] for e in labels}) > 1


def test_no_points() -> None:
    with pytest.raises(ValueError, match="points"):
        to_svg(Chart(title="", x=PLAIN, y=PLAIN, panels=(Panel(title="", series=()),)))


def test_nothing_at_or_below_zero_on_a_logarithmic_axis() -> None:
    with pytest.raises(ValueError, match="0 has no place"):
        domain([0.0, 1.0], SECONDS)


@pytest.mark.parametrize(
    ("values", "axis", "expected"),
    [
        ([64, 1 << 28], BYTES, (64, 1 << 28)),
        ([100, 1000], BYTES, (64, 1024)),
        ([64], BYTES, (64, 128)),
        ([5e-6, 2e-3], SECONDS, (1e-6, 1e-2)),
        ([1e-3], SECONDS, (1e-3, 1e-2)),
        ([3, 95], PLAIN, (0, 100)),
        ([-3, 7], PLAIN, (-4, 8)),
        ([0.0], PLAIN, (0, 1e-30)),
    ],
)
def test_domain(values: list[float], axis: Axis, expected: tuple[float, float]) -> None:
    assert domain(values, axis) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high", "axis", "texts"),
    [
        (64, 1 << 28, BYTES, "64 B|1 KiB|16 KiB|256 KiB|4 MiB|64 MiB"),
        (64, 1 << 20, BYTES, "64 B|512 B|4 KiB|32 KiB|256 KiB"),
        (1e-6, 1.0, SECONDS, "1 µs|100 µs|10 ms|1 s"),
        (1e-6, 1e-2, SECONDS, "1 µs|10 µs|100 µs|1 ms|10 ms"),
        (0, 100, PLAIN, "0|20|40|60|80|100"),
        (0, 5000, PLAIN, "0|1,000|2,000|3,000|4,000|5,000"),
    ],
)
def test_ticks(low: float, high: float, axis: Axis, texts: str) -> None:
    assert [tick_text(value, axis.unit) for value in ticks(low, high, axis)] == texts.split("|")


@given(
    st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=9),
    st.booleans(),
    st.sampled_from(["number", "bytes", "seconds"]),
)
def test_every_axis_holds_its_values_and_few_ticks(values: list[float], log: bool, unit: Unit) -> None:
    axis = Axis(label="", log=log, unit=unit)
    low, high = domain(values, axis)
    assert low <= min(values) * (1 + 1e-6)
    assert high >= max(values) * (1 - 1e-6)
    places = ticks(low, high, axis)
    assert 1 <= len(places) <= MOST_TICKS + 1
    assert all(low * (1 - 1e-6) <= place <= high * (1 + 1e-6) for place in places)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1e-9, "seconds", "1 ns"),
        (1.5e-3, "seconds", "1.5 ms"),
        (60.0, "seconds", "60 s"),
        (0.25, "number", "0.25"),
        (1e9, "number", "1e+09"),
        (1536.0, "bytes", "1536 B"),
    ],
)
def test_tick_text(value: float, unit: Unit, text: str) -> None:
    assert tick_text(value, unit) == text
