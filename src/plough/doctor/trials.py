"""Finding out what is installed, and trying it: the part of the doctor that touches the world.

Judges nothing. What needs torch or a foreign library runs in another process, with a timeout.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from plough.contract import Env
from plough.doctor import programs
from plough.doctor.facts import Facts, Launcher, Package
from plough.doctor.legacy import BINDINGS_NAMES, IPEX
from plough.doctor.processes import Attempt, run_attempts
from plough.doctor.rules import MPI_LIBRARIES, REQUIRED
from plough.topology.software import find_software, mpi_flavour

__all__ = ["attempts_for", "gather", "look"]

PACKAGES = (*REQUIRED, "numpy", "oneccl-cpu", "impi-rt", *BINDINGS_NAMES, IPEX)
COMPILERS = ("g++", "c++", "clang++")
PACKAGE_MANAGERS = ("apt-get", "dnf", "yum", "zypper")
ONEAPI_CCL = "/opt/intel/oneapi/ccl/latest/lib/libccl.so.1"
LIBCCL = "libccl.so.1"

IMPORT_S = 180.0  # a cold cache on a network disk takes its time
ANSWER_S = 30.0
LIBRARY_S = 60.0
GROUP_S = 180.0
BUILD_S = 900.0

# Whoever runs the doctor under mpirun or torchrun must not make each trial a rank of that job.
_LAUNCHERS = (
    *(Env.RANK, Env.WORLD_SIZE, Env.LOCAL_RANK, Env.LOCAL_WORLD_SIZE, Env.MASTER_ADDR, Env.MASTER_PORT),
    *(Env.TORCHELASTIC_RUN_ID, Env.PMI_RANK, Env.PMI_SIZE, Env.MPI_LOCALRANKID, Env.MPI_LOCALNRANKS),
    *(Env.OMPI_RANK, Env.OMPI_SIZE, Env.OMPI_LOCAL_RANK, Env.OMPI_LOCAL_SIZE),
    *(Env.SLURM_PROCID, Env.SLURM_STEP_NUM_TASKS, Env.SLURM_LOCALID, Env.PLOUGH_CONTRACT),
)


def gather(
    *,
    quick: bool = False,
    environ: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Facts:
    """What is installed where this process runs, and, unless quick, how each trial of it ended."""
    environ = dict(os.environ if environ is None else environ)
    facts = look(environ, quick=quick)
    if quick:
        return facts
    plain = {name: value for name, value in environ.items() if name not in _LAUNCHERS}
    at_once = max(2, min(8, len(os.sched_getaffinity(0))))
    attempts = attempts_for(facts, plain)
    return replace(facts, trials=run_attempts(attempts, plain, at_once=at_once, progress=progress))


def look(
    environ: Mapping[str, str],
    *,
    quick: bool = False,
    prefix: str | Path = sys.prefix,
    executable: str | Path = sys.executable,
    oneapi_ccl: str = ONEAPI_CCL,
) -> Facts:
    """The facts that need no trial. Starts nothing but an mpirun whose files do not tell its flavour."""
    software = find_software(environ=environ, prefix=prefix, executable=executable)
    headers = sysconfig.get_path("include")
    launchers = tuple(_launchers(environ, software.mpirun))
    package = {name: found for name in PACKAGES if (found := _package(name)) is not None}
    own = Path(prefix, "lib", LIBCCL)
    oneccl_file = str(own) if "oneccl-cpu" in package and own.exists() else None
    others = [path for path in (str(own), oneapi_ccl) if path != oneccl_file and os.path.exists(path)]
    return Facts(
        architecture=platform.machine(),
        python=platform.python_version(),
        headers=headers,
        has_headers=os.path.exists(os.path.join(headers, "Python.h")),
        packages=package,
        launchers=launchers,
        mpirun=next((one.path for one in launchers if _same(one.path, software.mpirun)), None),
        oneccl_file=oneccl_file,
        other_libccl=(*others, LIBCCL),
        compiler=_compiler(environ, executable),
        package_manager=_package_manager(environ, prefix),
        preloads=tuple(environ.get(Env.LD_PRELOAD, "").replace(":", " ").split()),
        quick=quick,
    )


def attempts_for(facts: Facts, environ: Mapping[str, str]) -> tuple[Attempt, ...]:
    """What to try, the short ones first. Pure."""
    return (*_short(facts, environ), *_imports(facts, environ))


def _short(facts: Facts, environ: Mapping[str, str]) -> Iterator[Attempt]:
    for launcher in facts.launchers:
        where = os.path.dirname(launcher.path)
        yield Attempt(
            name=f"mpirun {launcher.path}",
            commands=((launcher.path, "--version"),),
            timeout_s=ANSWER_S,
            # As in an activated environment: Intel's mpirun looks for its parts on PATH.
            environment={Env.PATH: os.pathsep.join([where, environ.get(Env.PATH, os.defpath)])},
            reports=False,
            telling=r"\d+\.\d+",
        )
        if names := MPI_LIBRARIES.get(launcher.flavour or ""):
            candidates = [*_libmpi(launcher.path, names), *names]
            yield _python(f"libmpi {launcher.path}", programs.LIBRARY, LIBRARY_S, *candidates)
    for path in filter(None, (facts.oneccl_file, *facts.other_libccl)):
        yield _python(f"libccl {path}", programs.LIBRARY, LIBRARY_S, path)
    if facts.compiler is not None:
        yield Attempt(
            name="compiler",
            commands=((*_words(facts.compiler), "--version"),),
            timeout_s=ANSWER_S,
            environment={Env.LC_ALL: "C"},
            reports=False,
        )


def _imports(facts: Facts, environ: Mapping[str, str]) -> Iterator[Attempt]:
    if "torch" in facts.packages:
        yield _python("torch", programs.TORCH, IMPORT_S)
        rank = (sys.executable, "-W", "ignore", "-c", programs.GLOO)
        yield Attempt(
            name="gloo",
            commands=tuple((*rank, str(index), "2") for index in range(2)),
            timeout_s=GROUP_S,
            # What `plough run` gives the ranks of one host.
            environment={
                Env.GLOO_SOCKET_IFNAME: environ.get(Env.GLOO_SOCKET_IFNAME, "lo"),
                Env.OMP_NUM_THREADS: "1",
            },
        )
        yield _python("ccl", programs.CCL, BUILD_S)
    for name in ("transformers", "accelerate", "datasets"):
        if name in facts.packages:
            yield _python(name, getattr(programs, name.upper()), IMPORT_S)
    modules = {
        "oneccl-bind-pt": ("bindings", "oneccl_bindings_for_pytorch"),
        "torch-ccl": ("bindings", "torch_ccl"),
        IPEX: ("ipex", "intel_extension_for_pytorch"),
    }
    for distribution, (name, module) in modules.items():
        if distribution in facts.packages:
            yield _python(name, programs.IMPORT, IMPORT_S, "torch", module)


def _python(name: str, program: str, timeout_s: float, *arguments: str) -> Attempt:
    command = (sys.executable, "-W", "ignore", "-c", program, *arguments)
    return Attempt(name=name, commands=(command,), timeout_s=timeout_s)


def _package(name: str) -> Package | None:
    try:
        found = importlib.metadata.distribution(name)
        return Package(
            version=str(found.version or "unknown"),
            requires_python=next(iter(found.metadata.get_all("Requires-Python") or ()), ""),
        )
    except importlib.metadata.PackageNotFoundError:
        return None


def _launchers(environ: Mapping[str, str], chosen: str | None) -> Iterator[Launcher]:
    """Each file once, by the name under which PATH has it first. mpiexec counts where there is no mpirun."""
    folders = [folder for folder in environ.get(Env.PATH, os.defpath).split(os.pathsep) if folder]
    found: dict[str, str] = {}
    for name in ("mpirun", "mpiexec"):
        for path in (os.path.abspath(os.path.join(folder, name)) for folder in folders):
            if os.path.isfile(path) and os.access(path, os.X_OK):
                found.setdefault(os.path.realpath(path), path)
        if found or chosen is not None:
            break
    for path in found.values():
        yield Launcher(path=path, flavour=mpi_flavour(Path(path)), on_path=True)
    if chosen is not None and os.path.realpath(chosen) not in found:
        yield Launcher(path=chosen, flavour=mpi_flavour(Path(chosen)), on_path=False)


def _same(path: str, other: str | None) -> bool:
    return other is not None and os.path.realpath(path) == os.path.realpath(other)


def _libmpi(launcher: str, names: tuple[str, ...]) -> Iterator[str]:
    """Where an installation keeps its library, seen from its launcher: beside it, or behind a link."""
    roots = dict.fromkeys(Path(path).parent.parent for path in (launcher, os.path.realpath(launcher)))
    for root in roots:
        for folder in ("lib", "lib64", "lib/release", f"lib/{platform.machine()}-linux-gnu"):
            yield from (str(root / folder / name) for name in names if (root / folder / name).exists())


def _compiler(environ: Mapping[str, str], executable: str | Path) -> str | None:
    """The command that comm.build would use, which is not imported here: it brings torch."""
    if chosen := environ.get(Env.CXX, "").strip():
        return chosen
    places = os.pathsep.join([environ.get(Env.PATH, os.defpath), str(Path(executable).parent)])
    found = next(filter(None, (shutil.which(name, path=places) for name in COMPILERS)), None)
    return None if found is None else shlex.quote(found)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def _package_manager(environ: Mapping[str, str], prefix: str | Path) -> str | None:
    if Path(prefix, "conda-meta").is_dir():
        return "conda"
    path = environ.get(Env.PATH, os.defpath)
    return next((name for name in PACKAGE_MANAGERS if shutil.which(name, path=path)), None)
