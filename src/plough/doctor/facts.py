"""What `plough doctor versions` knows before it judges, as frozen data.

Knows neither how it was found out (`trials.py`) nor what follows from it (`versions.py`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["LEFT_OUT", "Facts", "Launcher", "Package", "Trial", "outcome"]

LEFT_OUT = "not tried"
"""What is said in place of a trial's outcome under --quick."""


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one trial ended.

    said: the line that says most: the error of one that failed, the first line of one that worked.
    found: what its program reported by name. libraries: files it reported, absolute paths.
    """

    outcome: Literal["worked", "failed", "hung"]
    said: str = ""
    seconds: float = 0.0
    found: dict[str, str] = {}
    libraries: tuple[str, ...] = ()

    @property
    def worked(self) -> bool:
        return self.outcome == "worked"


def outcome(trial: Trial | None, worked: str) -> str:
    """`worked` if it did, else what it said, or that there was no trial."""
    if trial is None:
        return LEFT_OUT
    return worked if trial.worked else trial.said


class Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An installed distribution, from its metadata. requires_python: as it was written there, or empty."""

    version: str
    requires_python: str = ""


class Launcher(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An mpirun, or an mpiexec where there is no mpirun at all. flavour: as `mpi_flavour` has it."""

    path: str
    flavour: str | None
    on_path: bool


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment on one machine.

    python: its version. headers: the folder Python.h belongs in; has_headers: whether it is there.
    packages: by distribution name, only those that are installed and of interest.
    launchers: in the order in which PATH has them; one that is not on PATH comes last.
    mpirun: the one `plough run` starts, or None.
    oneccl_file: the libccl.so.1 of the distribution oneccl-cpu, or None. other_libccl: further files of that
    name, and the bare name, which the dynamic linker is asked for.
    compiler: the command that starts it, or None. package_manager: "apt-get", "dnf", ... or None.
    preloads: entries of LD_PRELOAD.
    trials: by name; empty where quick left them out.
    """

    architecture: str
    python: str
    headers: str = ""
    has_headers: bool = True
    packages: dict[str, Package] = {}
    launchers: tuple[Launcher, ...] = ()
    mpirun: str | None = None
    oneccl_file: str | None = None
    other_libccl: tuple[str, ...] = ()
    compiler: str | None = None
    package_manager: str | None = None
    preloads: tuple[str, ...] = ()
    quick: bool = False
    trials: dict[str, Trial] = {}

    def version(self, distribution: str) -> str | None:
        package = self.packages.get(distribution)
        return None if package is None else package.version

    @property
    def torch_works(self) -> bool:
        """Unless it is missing or its trial says no."""
        trial = self.trials.get("torch")
        return "torch" in self.packages and (trial is None or trial.worked)
