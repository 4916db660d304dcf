"""Fixtures to lay out small trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from plough.topology._sysfs import Tree
from tests.machines.trees import write

LayOut = Callable[[Mapping[str, str]], Tree]


@pytest.fixture
def lay_out(tmp_path: Path) -> LayOut:
    """Path -> content, as files under a root of this test's own; more calls add files."""

    def lay_out(files: Mapping[str, str]) -> Tree:
        return Tree(write(files, tmp_path))

    return lay_out
