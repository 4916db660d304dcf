"""The tables, and looking things up in them."""

from __future__ import annotations

import importlib.metadata
import re

import pytest

from plough.doctor.rules import (
    BINDINGS,
    BROKEN_ONECCL,
    PYTHON,
    REQUIRED,
    WHOLE_ONECCL,
    Range,
    bindings_fit,
    bindings_for,
    bindings_python,
    gcc_needed,
    major_minor,
    release,
)


def test_what_is_required_is_what_the_project_declares() -> None:
    declared = {}
    for line in importlib.metadata.requires("plough") or []:
        name, specifier = re.match(r"([\w-]+)([^;]*)", line).groups()  # type: ignore[union-attr]
        declared[name] = sorted(specifier.split(","))
    assert {name: declared[name] for name in REQUIRED} == {
        name: sorted(wanted.specifier().split(",")) for name, wanted in REQUIRED.items()
    }
    assert importlib.metadata.metadata("plough")["Requires-Python"] == PYTHON.specifier()


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2021.16.2", (2021, 16, 2)),
        ("5.20.0rc1", (5, 20)),
        ("2.14.0a0+gitcf30153", (2, 14)),
        ("10.0.0", (10,)),
        ("", ()),
        ("unknown", ()),
    ],
)
def test_release(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


@pytest.mark.parametrize(("version", "short"), [("1.12.100", "1.12"), ("2", "2.0"), ("2.0.1+cpu", "2.0")])
def test_major_minor(version: str, short: str) -> None:
    assert major_minor(version) == short


def test_range() -> None:
    wanted = Range("5.20", "6")
    assert [v for v in ("5.3.0", "5.20.0", "5.24.1", "6.0.0", "10.0") if v in wanted] == ["5.20.0", "5.24.1"]
    assert wanted.specifier() == ">=5.20,<6"
    assert "99" in Range("2.11")
    assert Range("2.11").specifier() == ">=2.11"


# Seen by loading libccl.so.1 from the wheels of the first, a middle and the last release of each row.
@pytest.mark.parametrize(
    ("version", "broken"),
    [
        ("2021.14.1", False),
        ("2021.15.2", False),
        ("2021.16.1", False),
        (WHOLE_ONECCL, False),
        ("2021.17.2", True),
        ("2022.0.0", True),
        ("2022.1.2", True),
        ("2022.2.0", True),
        ("2022.3.0", False),
    ],
)
def test_broken_releases_of_oneccl(version: str, broken: bool) -> None:
    assert (version in BROKEN_ONECCL) == broken


@pytest.mark.parametrize(
    ("torch", "bindings", "fits"),
    [
        ("1.12.1", "1.12.100", True),
        ("1.12.1+cpu", "1.12.0", False),
        ("1.12.0", "1.12.0", True),
        ("1.12.0", "1.12.100", False),
        ("1.13.1", "1.13.0", True),
        ("1.13.0", "1.13", True),
        ("2.0.1", "2.0.0+cpu", True),
        ("2.1.0", "2.1.400+xpu", True),
        ("2.8.0", "2.8.0+cpu", True),
        ("2.8.0", "2.7.0", False),
        ("2.13.0+cpu", "2.8.0", False),
        ("", "2.8.0", False),
    ],
)
def test_bindings(torch: str, bindings: str, fits: bool) -> None:
    assert bindings_fit(bindings, torch) == fits


def test_every_binding_fits_its_torch_and_had_wheels() -> None:
    for torch, bindings in BINDINGS.items():
        assert bindings_for(torch) == bindings
        assert bindings_fit(bindings, torch)
        assert (bindings_python(bindings) is None) == (torch == "2.4")
    assert bindings_for("2.9.0") is None


@pytest.mark.parametrize(
    ("bindings", "first", "last", "too_new"),
    [
        ("1.10.0", "3.6", "3.9", "3.10"),
        ("1.12.100", "3.7", "3.10", "3.11"),
        ("2.0.0", "3.8", "3.11", "3.12"),
        ("2.5.1", "3.9", "3.12", "3.13"),
        ("2.8.0", "3.9", "3.13", "3.14"),
    ],
)
def test_pythons_of_the_bindings(bindings: str, first: str, last: str, too_new: str) -> None:
    pythons = bindings_python(bindings)
    assert pythons is not None
    assert (first in pythons, f"{last}.9" in pythons, too_new in pythons) == (True, True, False)


@pytest.mark.parametrize(("torch", "gcc"), [("2.11.0", 9), ("2.12.1", 9), ("2.13.0+cpu", 10), (None, 10)])
def test_gcc(torch: str | None, gcc: int) -> None:
    assert gcc_needed(torch) == gcc
