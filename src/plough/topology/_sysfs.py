"""Reading small kernel files under a root, where anything may be missing, unreadable or garbled.

A file that cannot be made sense of reads as None: what that means is for the caller to say.
Knows nothing of CPUs or cgroups, only of files, numbers and lists of ids.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Tree", "format_list", "parse_list", "to_int", "to_kilobytes"]

# The kernel's own ceilings are 8192 CPUs and 1024 nodes; past this a list is nonsense, not a big machine.
MAX_ID = 65535

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?")
_KILOBYTES = re.compile(r"([0-9]{1,16})\s*kB")


def parse_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format, "0-3,8,10-11", into ascending ids without repeats.

    Empty or blank text is the empty list. Raises ValueError for anything else that is not a list.
    """
    ids: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is neither an id nor a range in the list {text.strip()!r}")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if not first <= last <= MAX_ID:
            raise ValueError(f"the range {part!r} in the list {text.strip()!r} makes no sense")
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def format_list(ids: Iterable[int]) -> str:
    """Write ids as the kernel does: "0-3,8,10-11". `parse_list` reads it back."""
    runs: list[list[int]] = []
    for number in sorted(set(ids)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def to_int(text: str | None) -> int | None:
    """The number a kernel file holds; None when it holds something else or more than 63 bits."""
    if text is None or _NUMBER.fullmatch(text.strip()) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


def to_kilobytes(text: str | None) -> int | None:
    """Bytes in a "24731708 kB" of meminfo; None when it is not one, or beyond any machine (2^60)."""
    match = None if text is None else _KILOBYTES.fullmatch(text.strip())
    size = None if match is None else int(match[1]) * 1024
    return size if size is not None and size < 2**60 else None


class Tree:
    """A file system seen from `root`: paths are absolute inside it, as "/proc/meminfo".

    `live` is true for the running machine, where a system call may know better than a file.
    """

    def __init__(self, root: str | Path = "/") -> None:
        self.root = os.path.abspath(root)
        self.live = self.root == "/"

    def _inside(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def text(self, path: str) -> str | None:
        """The file's text without surrounding white space and NULs."""
        try:
            # A garbled path (a NUL in mountinfo) is a ValueError, anything else an OSError.
            return Path(self._inside(path)).read_text(encoding="utf-8", errors="replace").strip("\0 \t\r\n")
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        return to_int(self.text(path))

    def ids(self, path: str) -> tuple[int, ...] | None:
        """A list file such as `online` or `cpulist`; an empty list is (), not None."""
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse_list(text)
        except ValueError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a directory, sorted; () when there is no such directory."""
        try:
            return tuple(sorted(os.listdir(self._inside(path))))
        except (OSError, ValueError):
            return ()

    def numbered(self, path: str, prefix: str) -> tuple[int, ...]:
        """The N of every `prefix`N in a directory, ascending: (0, 1) for node0 and node1."""
        found = (
            to_int(name[len(prefix) :])
            for name in self.names(path)
            if name.startswith(prefix) and name[len(prefix) :].isdecimal()
        )
        return tuple(sorted(number for number in found if number is not None and number <= MAX_ID))

    def exists(self, path: str) -> bool:
        try:
            return os.path.exists(self._inside(path))
        except ValueError:
            return False

    def is_dir(self, path: str) -> bool:
        try:
            return os.path.isdir(self._inside(path))
        except ValueError:
            return False
