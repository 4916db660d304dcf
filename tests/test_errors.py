"""The tree of errors is the one that is drawn, and each reads as error, blank line, hint."""

from __future__ import annotations

import inspect
import re

import pytest

from plough import errors
from plough.errors import PloughError


def drawn() -> dict[str, str]:
    """Class -> parent, from the drawing on top of errors.py."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in str(errors.__doc__).splitlines():
        found = re.match(r"(    [│ ├└─]*)([A-Z]\w+)  ", line)
        if found:
            depth = (len(found[1]) - 4) // 4
            path[depth:] = [found[2]]
            parents[found[2]] = path[depth - 1] if depth else "Exception"
    return parents


def test_the_drawing_is_the_code() -> None:
    classes = {
        name: value.__bases__[0].__name__
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, Exception)
    }
    assert len(classes) == 11
    assert drawn() == classes
    assert sorted(errors.__all__) == sorted(classes)


def test_render() -> None:
    assert PloughError("it broke").render() == "error: it broke"
    assert PloughError("it broke", hint="mend it").render() == "error: it broke\n\nhint: mend it"
    assert str(PloughError("it broke", hint="mend it")) == "it broke\n\nhint: mend it"


@pytest.mark.parametrize("name", errors.__all__)
def test_exit_codes(name: str) -> None:
    assert getattr(errors, name).exit_code == (1 if name == "RankFailed" else 2)
