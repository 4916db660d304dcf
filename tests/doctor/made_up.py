"""Facts of environments nobody has: a whole one, and how to spoil it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from plough.doctor import Facts
from plough.doctor.facts import Launcher, Package, Trial

INTEL = Launcher(path="/venv/bin/mpirun", flavour="intel", on_path=True)
MPICH = Launcher(path="/opt/mpich/bin/mpirun", flavour="mpich", on_path=True)
OPENMPI = Launcher(path="/usr/bin/mpirun", flavour="openmpi", on_path=True)
LIBCCL = "/venv/lib/libccl.so.1"
GOMP = "/venv/lib/python3.12/site-packages/torch/lib/libgomp.so.1"
IOMP = "/venv/lib/libiomp5.so"
OMP = "/usr/lib/llvm/lib/libomp.so.5"

VERSIONS = {
    "torch": "2.13.0+cpu",
    "numpy": "2.4.6",
    "transformers": "5.24.0",
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "oneccl-cpu": "2021.16.2",
    "impi-rt": "2021.18.1",
}

WORKED = Trial(outcome="worked", seconds=1.0)
TRIALS = {
    "mpirun /venv/bin/mpirun": Trial(
        outcome="worked", said="Intel(R) MPI Library for Linux* OS, Version 2021.18.1 Build 20260626"
    ),
    "libmpi /venv/bin/mpirun": Trial(outcome="worked", libraries=("/venv/lib/libmpi.so.12",)),
    f"libccl {LIBCCL}": Trial(outcome="worked", libraries=(LIBCCL,)),
    "libccl libccl.so.1": Trial(outcome="worked", found={"absent": "yes"}),
    "compiler": Trial(outcome="worked", said="g++ (Debian 12.2.0-14+deb12u1) 12.2.0"),
    "torch": Trial(
        outcome="worked",
        found={"version": "2.13.0+cpu", "cuda": "", "gpu": "no", "numpy": ""},
        libraries=(GOMP,),
    ),
    "gloo": WORKED,
    "ccl": WORKED,
    "transformers": Trial(outcome="worked", libraries=(GOMP,)),
    "accelerate": WORKED,
    "datasets": WORKED,
}

WHOLE = Facts(
    architecture="x86_64",
    python="3.12.8",
    headers="/usr/include/python3.12",
    packages={name: Package(version=version) for name, version in VERSIONS.items()},
    launchers=(INTEL,),
    mpirun=INTEL.path,
    oneccl_file=LIBCCL,
    other_libccl=("libccl.so.1",),
    compiler="/usr/bin/g++",
    package_manager="apt-get",
    trials=TRIALS,
)


def failed(said: str, **found: str) -> Trial:
    return Trial(outcome="failed", said=said, found=found)


def spoilt(
    versions: dict[str, str | None] | None = None,
    trials: dict[str, Trial | None] | None = None,
    **changes: Any,
) -> Facts:
    """WHOLE with other versions and trials; None takes one away."""
    packages: dict[str, str | None] = {**VERSIONS, **(versions or {})}
    made: dict[str, Trial | None] = {**TRIALS, **(trials or {})}
    return replace(
        WHOLE,
        packages={name: Package(version=version) for name, version in packages.items() if version},
        trials={name: trial for name, trial in made.items() if trial},
        **changes,
    )


def untried(facts: Facts) -> Facts:
    return replace(facts, trials={}, quick=True)
