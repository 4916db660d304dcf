"""Judging an environment: facts in, findings out. Pure; starts nothing, reads nothing.

One function per check, in the order in which they are shown. Python and its packages are judged here, what
is compiled in `native.py`, what is no longer made in `legacy.py`; which versions go together is in
`rules.py`. How the facts were found out (`trials.py`) is no matter here.
"""

from __future__ import annotations

import os.path
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial

from plough.doctor.facts import LEFT_OUT, Facts, outcome
from plough.doctor.finding import Finding
from plough.doctor.legacy import check_bindings, check_ipex
from plough.doctor.native import check_ccl, check_compiler, check_mpi, check_oneccl
from plough.doctor.rules import LAST_FOR_PYTHON, OPENMP_KINDS, PYTHON, REQUIRED, Range, major_minor

__all__ = ["CHECKS", "judge"]


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Every check's findings, in the order of CHECKS."""
    return tuple(finding for check in CHECKS for finding in check(facts))


def check_python(facts: Facts) -> Iterator[Finding]:
    say = partial(Finding, check="python")
    last = LAST_FOR_PYTHON.get(major_minor(facts.python))
    if facts.python not in PYTHON:
        yield say(
            severity="error",
            what=f"{facts.python} is too old",
            evidence=f"Plough needs Python {PYTHON.low} or later",
            consequence="neither Plough nor the transformers it needs can be installed",
        )
    elif last is not None:
        yield say(
            severity="note",
            what=f"{facts.python}: {last[0]} ends at {last[1]} for this Python",
            evidence=f"later releases of {last[0]} declare a newer Python, and pip passes over them silently",
            consequence="models and repairs of later releases need an environment with a newer Python",
        )
    else:
        yield say(severity="ok", what=facts.python)
    for name, package in sorted(facts.packages.items()):
        low = re.search(r">=\s*([\d.]+)", package.requires_python)
        if low and facts.python not in Range(low[1]):
            yield say(
                severity="warning",
                what=f"{name} {package.version} was not made for Python {facts.python}",
                evidence=f"its metadata says Requires-Python: {package.requires_python}",
                consequence="it may fail anywhere; pip would not have installed it here",
                fix=f"pip install --force-reinstall {name}",
            )


def check_torch(facts: Facts) -> Iterator[Finding]:
    yield from _required(facts, "torch", "nothing can train")
    trial = facts.trials.get("torch")
    if trial is None or not trial.worked:
        return
    if (cuda := trial.found.get("cuda")) and trial.found.get("gpu") != "yes":
        yield Finding(
            check="torch",
            severity="note",
            what=f"built for CUDA {cuda}, and there is no GPU",
            evidence="torch.version.cuda is set, torch.cuda.is_available() is false",
            consequence="it computes on CPUs all the same, and takes gigabytes of disk that PyTorch's "
            "CPU-only build does not",
        )


def check_numpy(facts: Facts) -> Iterator[Finding]:
    say = partial(Finding, check="numpy")
    version, torch, trial = facts.version("numpy"), facts.version("torch"), facts.trials.get("torch")
    problem = trial.found.get("numpy", "") if trial and trial.worked else ""
    if version is not None and not problem:
        how = "exchanges arrays with torch"
        known = trial is None or trial.worked
        yield say(severity="ok", what=f"{version}, {outcome(trial, how)}" if known else version)
        return
    old = torch is not None and torch not in Range("2.3")  # built with NumPy 1's headers
    yield say(
        severity="error",
        what="not installed" if version is None else f"{version}: torch cannot exchange arrays with it",
        evidence=problem,
        consequence="transformers and datasets need it, and tensors cannot be made from arrays",
        fix="pip install 'numpy<2'" if old else "pip install --upgrade --force-reinstall numpy",
    )


def check_transformers(facts: Facts) -> Iterator[Finding]:
    return _required(facts, "transformers", "there is no Trainer, and there are no models")


def check_accelerate(facts: Facts) -> Iterator[Finding]:
    return _required(facts, "accelerate", "Trainer does not start without it")


def check_datasets(facts: Facts) -> Iterator[Finding]:
    return _required(facts, "datasets", "the built-in tasks cannot read data")


def _required(facts: Facts, name: str, without: str) -> Iterator[Finding]:
    """A distribution that Plough needs: installed, in range, works."""
    say = partial(Finding, check=name)
    wanted, version, trial = REQUIRED[name], facts.version(name), facts.trials.get(name)
    install = f"pip install '{name}{wanted.specifier()}'"
    if version is None:
        yield say(severity="error", what="not installed", consequence=without, fix=install)
    elif version not in wanted:
        how = "too old" if version in Range("0", wanted.low) else "newer than Plough knows"
        yield say(
            severity="error",
            what=f"{version} is {how}",
            evidence=f"Plough needs {name}{wanted.specifier()}; this one: {outcome(trial, 'imports')}",
            consequence="what Plough relies on may be missing or mean something else",
            fix=install,
        )
    elif trial is None or trial.worked:
        yield say(severity="ok", what=f"{version}, {outcome(trial, 'imports')}")
    elif name != "torch" and not facts.torch_works:
        yield say(severity="note", what=f"{version}; not to be told while torch does not import")
    else:
        yield say(
            severity="error",
            what=f"{version} does not {'answer' if trial.outcome == 'hung' else 'import'}",
            evidence=trial.said,
            consequence=without,
            fix=f"pip install --upgrade --force-reinstall '{name}{wanted.specifier()}'",
        )


def check_openmp(facts: Facts) -> Iterator[Finding]:
    """What a process that trains has loaded."""
    say = partial(Finding, check="openmp")
    trials = [facts.trials.get(name) for name in ("transformers", "torch")]
    trial = next((trial for trial in trials if trial is not None and trial.worked), None)
    if trial is None:
        if facts.quick:
            yield say(severity="note", what=LEFT_OUT)
        return
    paths = trial.libraries
    kinds = sorted({_openmp(path) for path in paths})
    preloaded = next((path for path in facts.preloads if _openmp(path)), None)
    if len(paths) < 2:
        one = f"one runtime, {kinds[0]}'s ({os.path.basename(paths[0])})" if paths else "no runtime is loaded"
        yield say(severity="ok", what=one)
    elif preloaded is not None:
        yield say(
            severity="ok", what=f"{len(paths)} runtimes are mapped; {preloaded}, preloaded, answers for all"
        )
    else:
        same = len(kinds) == 1
        first = min(paths, key=lambda path: _ANSWERS_OTHERS.index(_openmp(path)))
        yield say(
            severity="note" if same else "warning",
            what=f"{len(paths)} runtimes are loaded, {'all ' if same else ''}{' and '.join(kinds)}'s",
            evidence="; ".join(paths),
            consequence="each starts threads of its own on the same cores"
            + ("" if same else ", and some pairs end the process"),
            fix=f"export LD_PRELOAD={shlex.quote(first)}",
        )


_ANSWERS_OTHERS = ("Intel", "LLVM", "GNU", "")
"""Intel's and LLVM's runtimes have GNU's functions too, not the other way round."""


def _openmp(path: str) -> str:
    """Whose OpenMP runtime a file is; empty if it is none."""
    name = re.match(r"lib[a-z]+5?", os.path.basename(path))
    return OPENMP_KINDS.get(name[0], "") if name else ""


def check_gloo(facts: Facts) -> Iterator[Finding]:
    say, trial = partial(Finding, check="gloo"), facts.trials.get("gloo")
    if trial is None:
        if facts.quick:
            yield say(severity="note", what=LEFT_OUT)
    elif trial.worked:
        yield say(severity="ok", what="two processes formed a group and summed what they should")
    elif not facts.torch_works:
        yield say(severity="note", what="not to be told while torch does not import")
    else:
        yield say(
            severity="error",
            what="two processes on this host do not form a group",
            evidence=trial.said,
            consequence="no job of more than one rank can start",
        )


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_python,
    check_torch,
    check_numpy,
    check_transformers,
    check_accelerate,
    check_datasets,
    check_openmp,
    check_gloo,
    check_compiler,
    check_ccl,
    check_mpi,
    check_oneccl,
    check_bindings,
    check_ipex,
)
