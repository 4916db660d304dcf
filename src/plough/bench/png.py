"""The charts of `plot.py` as PNG, where matplotlib is installed; it is imported when asked to draw."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from plough.bench.plot import COLOURS, Chart, domain, tick_text, ticks
from plough.errors import UsageError

__all__ = ["require_matplotlib", "write_png"]

MARKERS = "os^Dv"


def require_matplotlib() -> None:
    """Raises UsageError, with what to install."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(
            "PNG is drawn by matplotlib, which is not installed",
            hint="pip install 'plough[plot]', or give a name that ends in .svg, which needs nothing",
        )


def write_png(chart: Chart, path: str | Path) -> None:
    """For a white page. Raises UsageError without matplotlib, or where it cannot be written."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(chart.columns, len(chart.panels))
    rows = -(-len(chart.panels) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * rows + 0.9), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"{chart.title}\n{chart.subtitle}".strip(), fontsize=11)
    every = [point for panel in chart.panels for one in panel.series for point in one.points]
    spans = domain([x for x, _ in every], chart.x), domain([y for _, y in every], chart.y)
    labels = {}
    for number, panel in enumerate(chart.panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(panel.title, fontsize=9, loc="left")
        for one in reversed(panel.series):
            (line,) = axes.plot(
                *zip(*sorted(one.points), strict=True),
                color=COLOURS[one.colour % len(COLOURS)][0],
                linestyle="--" if one.dashed else "-",
                marker=MARKERS[one.colour % len(MARKERS)],
                markersize=4,
                markerfacecolor="white" if one.dashed else None,
            )
            labels[one.label] = line
        for side, axis, span in (("x", chart.x, spans[0]), ("y", chart.y, spans[1])):
            getattr(axes, f"set_{side}scale")("log" if axis.log else "linear")
            getattr(axes, f"set_{side}lim")(span)
            places = ticks(*span, axis)
            texts = [tick_text(value, axis.unit) for value in places]
            getattr(axes, f"set_{side}ticks")(places, texts, fontsize=7)
            getattr(axes, f"set_{side}label")(axis.label, fontsize=8)
        axes.minorticks_off()
        axes.grid(color="#e4e8ec")
    names = list(labels)[::-1]  # drawn last to first, so that the first is on top
    figure.legend([labels[name] for name in names], names, loc="outside lower center", ncols=6, fontsize=8)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
