"""A measurement as a chart: latency over size, a panel for each collective. Pure."""

from __future__ import annotations

from plough.bench.plot import Axis, Chart, Panel, Series
from plough.bench.request import BACKENDS
from plough.bench.result import Result
from plough.errors import UsageError

__all__ = ["latency_chart"]


def latency_chart(result: Result) -> Chart:
    """Median latency. Lines: backends by colour, bfloat16 dashed. Raises UsageError without any sizes."""
    sized = [one for one in result.measured if one.dtype is not None]
    if not sized:
        raise UsageError("there is nothing to draw: a barrier has no size")
    dtypes = tuple(dict.fromkeys(one.dtype for one in sized))
    panels = []
    for collective in dict.fromkeys(one.collective for one in sized):
        series = []
        for backend in result.setup.backends:
            for dtype in dtypes:
                points = [
                    (float(one.size), timing.us.median / 1e6)
                    for one in sized
                    if one.collective == collective and one.dtype == dtype
                    for timing in [one.timing(backend)]
                    if timing is not None and timing.us.median > 0
                ]
                label = backend if len(dtypes) == 1 else f"{backend}, {dtype}"
                if points:
                    series.append(
                        Series(
                            label=label,
                            points=tuple(points),
                            colour=BACKENDS.index(backend),
                            dashed=dtype == "bfloat16" and len(dtypes) > 1,
                        )
                    )
        panels.append(Panel(title=collective, series=tuple(series)))
    setup = result.setup
    where = f"{setup.ranks} ranks on " + (f"{len(setup.hosts)} hosts of " if len(setup.hosts) > 1 else "")
    kind = f", {dtypes[0]}" if len(dtypes) == 1 else ""
    return Chart(
        title=f"Latency of collectives{kind}",
        subtitle=f"{where}{setup.model}; median, on the slowest rank; lower is better",
        x=Axis(label="size", log=True, unit="bytes"),
        y=Axis(label="time of a call", log=True, unit="seconds"),
        panels=tuple(panels),
    )
