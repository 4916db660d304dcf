"""Line charts as SVG text: data in, text out, the same text for the same data. Pure; knows no benchmark.

Panels in a grid that share both axes, so that they can be compared at a glance. A series is known by its
colour and by the shape of its points, and by solid or dashed lines, so it need not be told by colour
alone. Drawn for white and, where the viewer asks for it (`prefers-color-scheme`), for a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from xml.sax.saxutils import escape

from plough.bench.sizes import size_name

__all__ = ["Axis", "Chart", "Panel", "Series", "domain", "tick_text", "ticks", "to_svg"]

Unit: TypeAlias = Literal["number", "bytes", "seconds"]

# Light page, dark page; told apart by people who see red and green alike, and by lightness.
COLOURS = (
    ("#0969da", "#58a6ff"),
    ("#bc4c00", "#f0883e"),
    ("#1a7f64", "#3fc9a0"),
    ("#8250df", "#bc8cff"),
    ("#6e7781", "#9aa4ae"),
)

PANEL_WIDTH, PANEL_HEIGHT = 280, 190
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 30, 46
"""Around the plotted area of a panel."""
EDGE = 16
TITLE_SIZE, TEXT_SIZE, SMALL_SIZE = 17, 12, 11
CHARACTER = 0.56
"""Width of a character as a share of the font's size, about; what hangs on it has room to spare."""
MOST_TICKS = 6


@dataclass(frozen=True, kw_only=True)
class Axis:
    """unit: how numbers on it are written."""

    label: str
    log: bool = False
    unit: Unit = "number"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line. colour: index into COLOURS, and the shape of its points; the first is drawn on top."""

    label: str
    points: tuple[tuple[float, float], ...]
    colour: int = 0
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Title and lines."""

    title: str
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """subtitle: a line of its own below the title, such as the machine."""

    title: str
    x: Axis
    y: Axis
    panels: tuple[Panel, ...]
    subtitle: str = ""
    columns: int = 3


@dataclass(frozen=True)
class _Scale:
    """From values on an axis to pixels."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value))
            if self.axis.log
            else (self.low, self.high, value)
        )
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def to_svg(chart: Chart) -> str:
    """The whole file. ValueError for a chart without points, or with one at 0 or below on a log axis."""
    every = [point for panel in chart.panels for one in panel.series for point in one.points]
    if not every:
        raise ValueError("a chart needs points")
    x_domain = domain([x for x, _ in every], chart.x)
    y_domain = domain([y for _, y in every], chart.y)
    columns = min(chart.columns, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    head = EDGE + TITLE_SIZE + (TEXT_SIZE + 8 if chart.subtitle else 0)
    legend = _legend(chart)
    cell_width, cell_height = LEFT + PANEL_WIDTH + RIGHT, TOP + PANEL_HEIGHT + BOTTOM
    words = max(TITLE_SIZE * len(chart.title), TEXT_SIZE * len(chart.subtitle)) * CHARACTER
    width = 2 * EDGE + max(columns * cell_width, math.ceil(words))
    lines = _flow(legend, width - 2 * EDGE)
    top = head + 12 + 20 * len(lines)
    height = top + rows * cell_height + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(chart.title, {chr(34): "&quot;"})}">',
        _style(),
        f'<rect class="page" width="{width}" height="{height}"/>',
        _text(EDGE, EDGE + TITLE_SIZE - 3, chart.title, "title"),
    ]
    if chart.subtitle:
        parts.append(_text(EDGE, EDGE + TITLE_SIZE + TEXT_SIZE + 5, chart.subtitle, "soft"))
    for number, line in enumerate(lines):
        for offset, one in line:
            parts += _key(EDGE + offset, head + 16 + 20 * number, one)
    for number, panel in enumerate(chart.panels):
        row, column = divmod(number, columns)
        x, y = EDGE + column * cell_width + LEFT, top + row * cell_height + TOP
        across = _Scale(chart.x, *x_domain, x, x + PANEL_WIDTH)
        up = _Scale(chart.y, *y_domain, y + PANEL_HEIGHT, y)
        parts += _panel(panel, across, up)
    return "\n".join([*parts, "</svg>"]) + "\n"


def domain(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """From where to where an axis goes. Linear ones begin at 0, logarithmic ones end on whole powers."""
    low, high = min(values), max(values)
    if not axis.log:
        step = _nice_step(max(high, 1e-30) - min(low, 0.0))
        return min(0.0, math.floor(low / step) * step), max(step, math.ceil(high / step) * step)
    if low <= 0:
        raise ValueError(f"{low:g} has no place on a logarithmic axis")
    base = 2.0 if axis.unit == "bytes" else 10.0
    first, last = math.floor(_log(low, base)), math.ceil(_log(high, base))
    return base**first, base ** max(last, first + 1)


def ticks(low: float, high: float, axis: Axis) -> list[float]:
    """Where an axis is labelled: at most `MOST_TICKS` places."""
    if not axis.log:
        step = _nice_step(high - low)
        return [low + step * number for number in range(round((high - low) / step) + 1)]
    base = 2.0 if axis.unit == "bytes" else 10.0
    first, last = math.ceil(_log(low, base)), math.floor(_log(high, base))
    step = next(s for s in (1, 2, 3, 4, 5, 6, 8, 10, 1000) if (last - first) // s < MOST_TICKS)
    return [base**power for power in range(first, last + 1, step)]


def tick_text(value: float, unit: Unit) -> str:
    """65536 bytes -> "64 KiB", 0.001 seconds -> "1 ms"."""
    if unit == "bytes":
        return size_name(round(value))
    if unit == "seconds":
        for name, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
            if value >= 0.9999 * size:
                return f"{value / size:.4g} {name}"
        return f"{value * 1e9:.4g} ns"
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.4g}"


def _log(value: float, base: float) -> float:
    return round(math.log(value, base), 9)  # so that 1000 is on its decade


def _nice_step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that a span has at most `MOST_TICKS` - 1 of them."""
    rough = span / (MOST_TICKS - 1)
    power = 10.0 ** math.floor(_log(rough, 10.0))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def _panel(panel: Panel, across: _Scale, up: _Scale) -> Iterator[str]:
    yield _text(across.start, up.end - 10, panel.title, "name")
    for value in ticks(across.low, across.high, across.axis):
        x = across(value)
        yield f'<path class="grid" d="M{x:.1f} {up.end:.1f}V{up.start:.1f}"/>'
        yield _text(x, up.start + 16, tick_text(value, across.axis.unit), "tick middle")
    for value in ticks(up.low, up.high, up.axis):
        y = up(value)
        yield f'<path class="grid" d="M{across.start:.1f} {y:.1f}H{across.end:.1f}"/>'
        yield _text(across.start - 6, y + 4, tick_text(value, up.axis.unit), "tick end")
    middle = (across.start + across.end) / 2
    yield _text(middle, up.start + 33, across.axis.label, "soft middle")
    x, y = across.start - LEFT + 10, (up.start + up.end) / 2
    yield (
        f'<text class="soft middle" transform="translate({x:.1f} {y:.1f}) rotate(-90)">'
        f"{escape(up.axis.label)}</text>"
    )
    yield f'<path class="axis" d="M{across.start:.1f} {up.end:.1f}V{up.start:.1f}H{across.end:.1f}"/>'
    for one in reversed(panel.series):
        at = [(across(x), up(y)) for x, y in sorted(one.points)]
        if len(at) > 1:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
            yield f'<path class="{_line(one)}" d="M{path}"/>'
        yield from (_mark(x, y, one) for x, y in at)


def _legend(chart: Chart) -> list[Series]:
    """Each kind of line once, in the order met."""
    found: dict[tuple[str, int, bool], Series] = {}
    for panel in chart.panels:
        for one in panel.series:
            found.setdefault((one.label, one.colour, one.dashed), one)
    return list(found.values())


def _flow(legend: Sequence[Series], width: float) -> list[list[tuple[float, Series]]]:
    """The legend in lines, each entry with its place in the line."""
    lines: list[list[tuple[float, Series]]] = [[]]
    at = 0.0
    for one in legend:
        needed = 38 + CHARACTER * TEXT_SIZE * len(one.label) + 22
        if lines[-1] and at + needed > width:
            lines.append([])
            at = 0.0
        lines[-1].append((at, one))
        at += needed
    return lines


def _key(x: float, y: float, one: Series) -> Iterator[str]:
    yield f'<path class="{_line(one)}" d="M{x:.1f} {y - 4:.1f}h30"/>'
    yield _mark(x + 15, y - 4, one)
    yield _text(x + 38, y, one.label, "text")


def _mark(x: float, y: float, one: Series) -> str:
    shape = _SHAPES[one.colour % len(_SHAPES)](x, y)
    return shape.replace(
        "/>", f' class="{"hollow" if one.dashed else "solid"} c{one.colour % len(COLOURS)}"/>'
    )


def _polygon(*corners: tuple[float, float]) -> Callable[[float, float], str]:
    def draw(x: float, y: float) -> str:
        return '<path d="M' + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners) + 'Z"/>'

    return draw


_SHAPES: tuple[Callable[[float, float], str], ...] = (
    lambda x, y: f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>',
    _polygon((-3, -3), (3, -3), (3, 3), (-3, 3)),
    _polygon((0, -4), (3.8, 2.9), (-3.8, 2.9)),
    _polygon((0, -4.2), (4.2, 0), (0, 4.2), (-4.2, 0)),
    _polygon((0, 4), (3.8, -2.9), (-3.8, -2.9)),
)


def _line(one: Series) -> str:
    return f"line c{one.colour % len(COLOURS)}{' dashed' if one.dashed else ''}"


def _text(x: float, y: float, text: str, classes: str) -> str:
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _style() -> str:
    def scheme(which: int, page: str, text: str, soft: str, grid: str) -> list[str]:
        return [
            f".page{{fill:{page}}}",
            f"text{{fill:{text}}}.soft,.tick{{fill:{soft}}}",
            f".grid{{stroke:{grid}}}.axis{{stroke:{soft}}}",
            # A rim in the page's colour keeps points apart where lines meet; those of dashed ones are hollow.
            f".solid{{stroke:{page}}}.hollow{{fill:{page}}}",
            *(
                f".line.c{i},.hollow.c{i}{{stroke:{pair[which]}}}.solid.c{i}{{fill:{pair[which]}}}"
                for i, pair in enumerate(COLOURS)
            ),
        ]

    return "\n".join(
        [
            "<style>",
            "text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif;"
            f"font-size:{TEXT_SIZE}px}}",
            f".title{{font-size:{TITLE_SIZE}px;font-weight:600}}.name{{font-weight:600}}"
            f".tick{{font-size:{SMALL_SIZE}px}}",
            ".middle{text-anchor:middle}.end{text-anchor:end}",
            ".grid,.axis,.line{fill:none}.grid,.axis{stroke-width:1}",
            ".line{stroke-width:2;stroke-linejoin:round}.line.dashed{stroke-dasharray:5 4}",
            ".solid{stroke-width:1}.hollow{stroke-width:1.5}",
            *scheme(0, "#ffffff", "#1f2328", "#57606a", "#e4e8ec"),
            "@media (prefers-color-scheme:dark){",
            *scheme(1, "#0d1117", "#e6edf3", "#9aa4ae", "#262c34"),
            "}",
            "</style>",
        ]
    )
