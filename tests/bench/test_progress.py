"""What a terminal is shown."""

from __future__ import annotations

import io
import itertools

import pytest

from plough.bench.progress import Progress, duration


def test_a_line_that_redraws_itself() -> None:
    stream = io.StringIO()
    clock = itertools.count(0.0, 30.0)
    progress = Progress(4, watched=True, stream=stream, clock=lambda: next(clock))
    progress.show("all_reduce float32 64 B")
    progress.done(1)
    progress.show("all_reduce float32 25 MiB")
    progress.done(3)
    progress.finish("2 points")
    states = [state.rstrip() for state in stream.getvalue().split("\r")]
    assert states == [
        "",
        "  0 %  all_reduce float32 64 B",
        " 25 %  all_reduce float32 25 MiB  about 1 min 30 s left",
        "measured 2 points in 1 min 0 s",
    ]


def test_nobody_watches() -> None:
    stream = io.StringIO()
    progress = Progress(1, watched=False, stream=stream)
    progress.show("x")
    progress.done(1)
    progress.finish("x")
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59.4, "59 s"), (75, "1 min 15 s"), (660, "11 min"), (3660, "1 h 1 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
