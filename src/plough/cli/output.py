"""How the command line writes: data on stdout, everything else on stderr, colour only where wanted."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from plough.contract import Env
from plough.errors import PloughError

__all__ = ["PIPE_WIDTH", "emit", "note", "painted", "table", "warn"]

PIPE_WIDTH = 160
"""Columns where there is no terminal: enough for every row of `plough plan` on one line."""

COLOURS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36}


def emit(text: str) -> None:
    """Data, as it is, to stdout. Raises PloughError when it cannot be written (a full disk)."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python tries once more at exit
        raise PloughError(f"standard output cannot be written: {error.strerror}") from error


def note(text: str) -> None:
    print(f"plough: {text}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    print(f"plough: {painted('warning:', 'yellow', sys.stderr)} {text}", file=sys.stderr, flush=True)


def painted(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour of COLOURS where `stream` is a terminal and NO_COLOR is not set, else as it is."""
    if stream.isatty() and Env.NO_COLOR not in os.environ:
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"
    return text


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 0) -> str:
    """A plain table as text: columns two spaces apart, long cells wrapped at the terminal's width."""
    drawn = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for header in headers:
        drawn.add_column(header, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
    # Into a text of its own: a console without a file writes to stdout even while it is captured.
    console = Console(file=io.StringIO(), width=width - indent, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(drawn)
    lines = (" " * indent + line.rstrip() for line in capture.get().splitlines())
    return "\n".join(lines) + "\n"
