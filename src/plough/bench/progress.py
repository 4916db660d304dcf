"""How far a measurement is, and how long it may still take: one line that redraws itself. Knows no torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["Progress", "duration"]

WIDTH = 72


class Progress:
    """Of something with a total weight, on a terminal; says nothing unless `watched`."""

    def __init__(
        self,
        total: float,
        *,
        watched: bool,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._watched = total, watched
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._started, self._done = clock(), 0.0

    def show(self, what: str) -> None:
        """What is being measured now."""
        if not self._watched:
            return
        share = self._done / self._total
        text = f"{100 * share:3.0f} %  {what}"
        if share > 0.02:
            left = (self._clock() - self._started) * (1 - share) / share
            text += f"  about {duration(left)} left"
        self._write(f"\r{text[:WIDTH]:<{WIDTH}}")

    def done(self, weight: float) -> None:
        self._done += weight

    def finish(self, what: str) -> None:
        if self._watched:
            text = f"measured {what} in {duration(self._clock() - self._started)}"
            self._write(f"\r{text:<{WIDTH}}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def duration(seconds: float) -> str:
    """75 -> "1 min 15 s"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes < 10 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
