"""What the user wants measured, and its flags: the same for `plough bench` and for its ranks. Pure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from plough.bench.sizes import COLLECTIVES, DTYPES, SIZES, parse_size, size_name
from plough.errors import UsageError

__all__ = ["BACKENDS", "Request", "add_request_arguments", "request_of"]

BACKENDS = ("ccl", "gloo", "oneccl")
SECONDS, ROUNDS = 0.5, 5

T = TypeVar("T", int, str)


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """backends: None for all that can be had here. seconds: of timing for each point and backend, about.

    rounds: how often the backends take turns at a point.
    """

    collectives: tuple[str, ...] = COLLECTIVES
    sizes: tuple[int, ...] = SIZES
    dtypes: tuple[str, ...] = DTYPES
    backends: tuple[str, ...] | None = None
    seconds: float = SECONDS
    rounds: int = ROUNDS

    def arguments(self) -> list[str]:
        """The flags that `request_of` reads back to this; what is as by default is left out."""
        words = []
        default = Request()
        if self.collectives != default.collectives:
            words += ["--collectives", ",".join(self.collectives)]
        if self.sizes != default.sizes:
            words += ["--sizes", ",".join(size_name(size).replace(" ", "") for size in self.sizes)]
        if self.dtypes != default.dtypes:
            words += ["--dtypes", ",".join(self.dtypes)]
        if self.backends is not None:
            words += ["--backends", ",".join(self.backends)]
        if self.seconds != default.seconds:
            words += ["--seconds-per-point", repr(self.seconds)]
        if self.rounds != default.rounds:
            words += ["--rounds", str(self.rounds)]
        return words


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to measure")
    group.add_argument("--collectives", metavar="A,B", help=f"of {', '.join(COLLECTIVES)} (default: all)")
    group.add_argument(
        "--sizes",
        metavar="A,B",
        help="such as 64,4KiB,25MiB (default: powers of 4 from 64 B to 256 MiB, and 25 MiB)",
    )
    group.add_argument("--dtypes", metavar="A,B", help=f"of {', '.join(DTYPES)} (default: both)")
    group.add_argument(
        "--backends",
        metavar="A,B",
        help=f"of {', '.join(BACKENDS)} (default: all that are there)",
    )
    group.add_argument(
        "--seconds-per-point",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"time for each size and backend, about (default: {SECONDS:g})",
    )
    group.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help=f"how often the backends take turns at each size (default: {ROUNDS})",
    )


def request_of(options: argparse.Namespace) -> Request:
    """Raises UsageError for what cannot be measured."""
    seconds, rounds = options.seconds_per_point, options.rounds
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"--seconds-per-point {seconds:g}: must be more than 0")
    if rounds < 1:
        raise UsageError(f"--rounds {rounds}: must be at least 1")
    backends = options.backends
    return Request(
        collectives=_listed("--collectives", options.collectives, COLLECTIVES, COLLECTIVES),
        sizes=SIZES if options.sizes is None else _each("--sizes", options.sizes, parse_size),
        dtypes=_listed("--dtypes", options.dtypes, DTYPES, DTYPES),
        backends=None if backends is None else _listed("--backends", backends, BACKENDS, BACKENDS),
        seconds=seconds,
        rounds=rounds,
    )


def _listed(flag: str, text: str | None, known: Sequence[str], default: tuple[str, ...]) -> tuple[str, ...]:
    def one(name: str) -> str:
        if name not in known:
            raise UsageError(f"{name!r} is unknown", hint=f"one of {', '.join(known)}")
        return name

    return default if text is None else _each(flag, text, one)


def _each(flag: str, text: str, read: Callable[[str], T]) -> tuple[T, ...]:
    """The values of a comma-separated list, each once, in the order given."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{flag} {text!r}: nothing is listed")
    try:
        return tuple(dict.fromkeys(read(word) for word in words))
    except UsageError as error:
        raise UsageError(f"{flag}: {error.cause}", hint=error.hint) from None
