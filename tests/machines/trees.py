"""The captured and the built trees by name, and how to lay one out as files."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from plough.topology import Machine
from tests.machines.build import build
from tests.machines.specs import SPECS

HERE = Path(__file__).parent
CAPTURED = tuple(sorted(path.name.removesuffix(".tree.json") for path in HERE.glob("*.tree.json")))
NAMES = tuple(sorted((*CAPTURED, *SPECS)))


def tree(name: str) -> dict[str, str]:
    """Path -> content; a path that ends in a slash is a directory."""
    if name in SPECS:
        return build(SPECS[name])
    captured: dict[str, str] = json.loads((HERE / f"{name}.tree.json").read_text())
    return captured


def write(files: Mapping[str, str], directory: Path) -> Path:
    """Lay the files out under `directory` and return it: the root to give to `probe`."""
    made = set()
    for path, content in files.items():
        parent, _, name = f"{directory}/{path.lstrip('/')}".rpartition("/")
        if parent not in made:
            os.makedirs(parent, exist_ok=True)
            made.add(parent)
        if name:
            with open(f"{parent}/{name}", "wb", buffering=0) as file:
                file.write(content.encode())
    return directory


def unpack(name: str, directory: Path) -> Path:
    """Lay the machine's tree out under `directory` and return the root to give to `probe`."""
    return write(tree(name), directory)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory that goes again; in memory where that can be had.

    On disk the 18,000 files of a 384-core machine can take ten seconds.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="plough-machine-", dir=memory) as scratch:
        yield Path(scratch)


@contextmanager
def unpacked(name: str) -> Iterator[Path]:
    """As `unpack`, into a scratch directory."""
    with scratch_directory() as scratch:
        yield unpack(name, scratch)


def expected_file(name: str) -> Path:
    """The committed `Machine.to_json()` of the machine."""
    return HERE / f"{name}.json"


@cache
def described(name: str) -> Machine:
    """The machine as its committed description has it, without laying out its tree."""
    return Machine.load(expected_file(name))
