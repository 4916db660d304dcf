"""Which versions go together: tables, and the arithmetic to look things up in them. Facts only, no words.

Where a table came from is said beside it. What the project itself needs (REQUIRED) repeats pyproject.toml,
and a test compares the two.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = [
    "BINDINGS",
    "BROKEN_ONECCL",
    "IPEX_PYTHON",
    "LAST_OLD_RELEASE",
    "MPI_LIBRARIES",
    "ONECCL_MPI",
    "OPENMP_KINDS",
    "PYTHON",
    "REQUIRED",
    "WHOLE_ONECCL",
    "Range",
    "bindings_for",
    "bindings_python",
    "gcc_needed",
    "major_minor",
    "release",
]

Release = tuple[int, ...]


class Range(NamedTuple):
    """Releases from `low` on and below `high`; None is no bound."""

    low: str
    high: str | None = None

    def __contains__(self, version: object) -> bool:
        found = release(str(version))
        return found >= release(self.low) and (self.high is None or found < release(self.high))

    def specifier(self) -> str:
        """As pip takes it, e.g. `>=5.20,<6`."""
        return f">={self.low}" + (f",<{self.high}" if self.high else "")


def release(version: str) -> Release:
    """The numbers of a version without trailing zeros: "2.13.0+cpu" -> (2, 13), "5.20.0rc1" -> (5, 20)."""
    found = re.match(r"\d+(?:\.\d+)*", version.strip())
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def major_minor(version: str) -> str:
    """ "1.12.100" -> "1.12"; "2" -> "2.0"."""
    major, minor, *_ = (*release(version), 0, 0)
    return f"{major}.{minor}"


REQUIRED = {
    "torch": Range("2.11"),
    "transformers": Range("5.20", "6"),
    "accelerate": Range("1.15"),
    "datasets": Range("4"),
}
PYTHON = Range("3.10")

LAST_FOR_PYTHON = {"3.10": ("transformers", "5.20.2")}
"""Python -> (distribution, its last release there): later ones need a newer Python, and pip says nothing."""

# oneCCL -----------------------------------------------------------------------------------------------------
# From the wheels: those before 2021.17 carry all of libccl.so.1; from then on it is a shim over a libccl.so.2
# that is in no wheel. 2022.2.0 is the last release known to be so; of later ones the trial tells.
BROKEN_ONECCL = Range("2021.17", "2022.2.1")
WHOLE_ONECCL = "2021.16.2"
ONECCL_MPI = {
    "2021.14": Range("2021.14", "2021.15"),
    "2021.15": Range("2021.15", "2021.16"),
    "2021.16": Range("2021.16"),
    "2021.17": Range("2021.17"),
}
"""oneccl-cpu -> the impi-rt it declares a need of."""

# The old bindings and IPEX ----------------------------------------------------------------------------------
# From the READMEs and tags of torch-ccl (deprecated November 2025), the CPU guides of transformers, and IPEX
# (archived March 2026): one release per release of torch. 1.12.1 is the one patch release of torch that had
# bindings of its own.
BINDINGS = {
    "1.10": "1.10.0",
    "1.11": "1.11.0",
    "1.12": "1.12.0",
    "1.12.1": "1.12.100",
    "1.13": "1.13.0",
    "2.0": "2.0.0",
    "2.1": "2.1.0",
    "2.2": "2.2.0",
    "2.3": "2.3.0",
    "2.4": "2.4.0",
    "2.5": "2.5.1",
    "2.6": "2.6.0",
    "2.7": "2.7.0",
    "2.8": "2.8.0",
}
"""torch -> oneccl_bind_pt (torch_ccl before 1.12)."""

LAST_OLD_RELEASE = "2.8"

_BINDINGS_PYTHON = (
    (Range("1.10", "1.11"), Range("3.6", "3.10")),
    (Range("1.11", "2"), Range("3.7", "3.11")),
    (Range("2", "2.4"), Range("3.8", "3.12")),  # of 2.4's no table is left
    (Range("2.5", "2.6"), Range("3.9", "3.13")),
    (Range("2.6", "2.9"), Range("3.9", "3.14")),
)
IPEX_PYTHON = Range("3.9", "3.14")
"""Of the releases of IPEX that are still to be had, 2.6 to 2.8."""


def bindings_for(torch: str) -> str | None:
    """The release of oneccl_bind_pt that a torch needs; None where there is none."""
    exact = ".".join(map(str, release(torch)))
    return BINDINGS.get(exact) or BINDINGS.get(major_minor(torch))


def bindings_fit(bindings: str, torch: str) -> bool:
    """Whether the bindings were built for this torch. Patch numbers matter for 1.12 alone."""
    if major_minor(bindings) != major_minor(torch):
        return False
    return major_minor(torch) != "1.12" or release(bindings) == release(bindings_for(torch) or "")


def bindings_python(bindings: str) -> Range | None:
    """The Pythons there were wheels for."""
    return next((pythons for versions, pythons in _BINDINGS_PYTHON if bindings in versions), None)


# MPI, compilers, OpenMP -------------------------------------------------------------------------------------
MPI_LIBRARIES = {
    "intel": ("libmpi.so.12",),
    "mpich": ("libmpi.so.12", "libmpich.so.12"),
    "openmpi": ("libmpi.so.40", "libmpi.so.20"),
}
"""What programs of each MPI are linked with; Debian's MPICH has a name of its own."""


def gcc_needed(torch: str | None) -> int:
    """The first GCC that takes torch's headers: C++20 by that name from torch 2.13 on, C++17 before."""
    return 10 if torch is None or torch in Range("2.13") else 9


OPENMP_KINDS = {"libgomp": "GNU", "libiomp5": "Intel", "libomp": "LLVM"}
