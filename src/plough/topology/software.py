"""Shared libraries worth preloading and the MPI launcher, found without importing or, mostly, starting them.

Knows nothing of whether a plan will use them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from plough.topology.machine import Software

__all__ = ["find_software", "mpi_flavour"]

TCMALLOC = ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")  # the first without the profiler
JEMALLOC = ("libjemalloc.so.2",)
INTEL_OPENMP = ("libiomp5.so",)
ONEAPI = (
    "/opt/intel/oneapi/compiler/latest/lib",
    "/opt/intel/oneapi/compiler/latest/linux/compiler/lib/intel64_lin",
)
VERSION_TIMEOUT_S = 5.0


def find_software(
    root: str | Path = "/",
    *,
    environ: Mapping[str, str] | None = None,
    prefix: str | Path = sys.prefix,
    executable: str | Path = sys.executable,
    system: str | Path = "/",
) -> Software:
    """What is installed where this process runs: first in its own environment, then in the system's.

    root: other than "/" it is a captured tree, which tells nothing of this environment: all None.
    system: where the system's library directories are looked for; tests move it.
    """
    if os.path.abspath(root) != "/":
        return Software()
    environ = os.environ if environ is None else environ
    own = [Path(prefix) / "lib"]
    if conda := environ.get("CONDA_PREFIX"):
        own.insert(0, Path(conda) / "lib")
    libraries = [*own, *_system_directories(Path(system))]
    oneapi = [Path(system) / path.lstrip("/") for path in ONEAPI]
    mpirun = _find_mpirun(environ, Path(prefix), Path(executable))
    return Software(
        tcmalloc=_find_library(TCMALLOC, libraries),
        jemalloc=_find_library(JEMALLOC, libraries),
        intel_openmp=_find_library(INTEL_OPENMP, [*own, *oneapi]),
        mpirun=None if mpirun is None else str(mpirun),
        mpi_flavour=None if mpirun is None else mpi_flavour(mpirun),
    )


def _system_directories(system: Path) -> Iterable[Path]:
    multiarch = f"{os.uname().machine}-linux-gnu"
    places = (
        f"usr/lib/{multiarch}",
        f"lib/{multiarch}",
        "usr/lib64",
        "lib64",
        "usr/local/lib",
        "usr/local/lib64",
    )
    return [system / place for place in (*places, "usr/lib")]


def _find_library(names: Iterable[str], directories: Iterable[Path]) -> str | None:
    directories = list(directories)
    found = (where / name for name in names for where in directories if _is_library(where / name))
    path = next(found, None)
    return None if path is None else os.path.abspath(path)


def _is_library(path: Path) -> bool:
    """A 64-bit ELF file: an rpm system's /usr/lib holds 32-bit ones, which ld.so refuses to preload."""
    try:
        with path.open("rb") as file:
            return file.read(5) == b"\x7fELF\x02"
    except OSError:
        return False


def _find_mpirun(environ: Mapping[str, str], prefix: Path, executable: Path) -> Path | None:
    # An environment's own mpirun (impi-rt from PyPI puts Intel MPI's there) wins, activated or not. Beside a
    # system's python it has no such claim: there PATH, which a cluster's `module load` sets, decides.
    if (prefix / "pyvenv.cfg").exists() or (prefix / "conda-meta").is_dir():
        beside = executable.parent / "mpirun"
        if os.access(beside, os.X_OK) and beside.is_file():
            return beside.absolute()
    found = shutil.which("mpirun", path=environ.get("PATH", os.defpath))
    return None if found is None else Path(found).absolute()


def mpi_flavour(mpirun: Path) -> str | None:
    """ "intel", "mpich" or "openmpi", from the files around it if they tell, else by asking it."""
    real = mpirun.resolve()  # Debian: mpirun -> /etc/alternatives/mpirun -> mpirun.openmpi
    for ending, flavour in ((".openmpi", "openmpi"), (".mpich", "mpich"), ("orterun", "openmpi")):
        if real.name.endswith(ending):
            return flavour
    here = {name for where in {mpirun.parent, real.parent} for name in _names(where)}
    if {"mpiexec.hydra", "impi_info"} <= here:
        return "intel"
    # Only if a single one lives here: in /usr/bin both may.
    markers = {"ompi_info": "openmpi", "mpichversion": "mpich"}
    flavours = {flavour for marker, flavour in markers.items() if marker in here}
    return flavours.pop() if len(flavours) == 1 else _asked_flavour(mpirun)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _asked_flavour(mpirun: Path) -> str | None:
    try:
        answer = subprocess.run(
            [str(mpirun), "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            text=True,
            errors="replace",
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    text = (answer.stdout + answer.stderr).lower()
    signs = (
        ("intel(r) mpi", "intel"),
        ("open mpi", "openmpi"),
        ("open-mpi", "openmpi"),
        ("openrte", "openmpi"),
        ("hydra", "mpich"),
        ("mpich", "mpich"),
    )
    return next((flavour for sign, flavour in signs if sign in text), None)
