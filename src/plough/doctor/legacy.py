"""Judging what is no longer made: oneCCL's bindings for PyTorch, and Intel's extension. Pure.

Both were built for one release of torch each, and ended with 2.8. Nothing in today's transformers or
accelerate imports them; a script that still does is why they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from plough.doctor.facts import Facts, outcome
from plough.doctor.finding import Finding
from plough.doctor.rules import (
    IPEX_PYTHON,
    LAST_OLD_RELEASE,
    Range,
    bindings_fit,
    bindings_for,
    bindings_python,
    major_minor,
)

__all__ = ["BINDINGS_NAMES", "IPEX", "check_bindings", "check_ipex"]

BINDINGS_NAMES = ("oneccl-bind-pt", "torch-ccl")
"""The distribution, and what it was called before torch 1.12."""
IPEX = "intel-extension-for-pytorch"


def check_bindings(facts: Facts) -> Iterator[Finding]:
    name = next((name for name in BINDINGS_NAMES if name in facts.packages), None)
    if name is None:
        yield Finding(check="bindings", severity="ok", what="not installed; nothing needs them any more")
        return
    version, torch = facts.packages[name].version, facts.version("torch") or ""
    yield _old(
        facts,
        check="bindings",
        name=name.replace("-", "_"),
        version=version,
        fits=bindings_fit(version, torch),
        rule=_bindings_rule(torch),
        pythons=bindings_python(version),
        failure="a script that imports them fails",
        working="Plough's own backend is called ccl too; whichever is imported first keeps the name",
    )


def _bindings_rule(torch: str) -> str:
    if not torch:
        return "torch is not installed"
    if (needed := bindings_for(torch)) is not None:
        return f"torch {torch} goes with oneccl_bind_pt {needed}"
    return f"there are none for torch {torch}; the last were for {LAST_OLD_RELEASE}"


def check_ipex(facts: Facts) -> Iterator[Finding]:
    version, torch = facts.version(IPEX), facts.version("torch") or ""
    if version is None:
        yield Finding(check="ipex", severity="ok", what="not installed; nothing needs it any more")
        return
    yield _old(
        facts,
        check="ipex",
        name=IPEX.replace("-", "_"),
        version=version,
        fits=major_minor(version) == major_minor(torch),
        rule=f"it goes with torch {major_minor(version)} alone; torch is {torch or 'not installed'}",
        pythons=IPEX_PYTHON,
        failure="a script that imports it fails; `--use_ipex` does not need it here",
        working="`--use_ipex` does not need it here; most of what it did is in PyTorch now",
    )


def _old(
    facts: Facts,
    *,
    check: str,
    name: str,
    version: str,
    fits: bool,
    rule: str,
    pythons: Range | None,
    failure: str,
    working: str,
) -> Finding:
    say = partial(Finding, check=check, fix=f"pip uninstall {name}")
    trial = facts.trials.get(check)
    works = trial.worked if trial else fits
    if works:
        return say(
            severity="note",
            what=f"{name} {version}, {outcome(trial, 'imports')}; no longer made or needed",
            evidence="" if fits else rule,
            consequence=working,
        )
    evidence = [] if fits else [rule]
    if trial is not None:
        evidence.append(trial.said)
    if pythons is not None and facts.python not in pythons:
        evidence.append(f"there were no wheels of it for Python {major_minor(facts.python)}")
    return say(
        severity="warning",
        what=f"{name} {version} {'does not import' if fits else 'does not fit torch'}",
        evidence="; ".join(evidence),
        consequence=failure,
    )
