"""`plough doctor`: questions about the system, one subcommand each. The answers are `plough.doctor`'s."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable

import msgspec

from plough._version import __version__
from plough.cli.output import PIPE_WIDTH, emit, note, painted
from plough.doctor import Facts, Finding, exit_code, gather, judge, render
from plough.doctor.finding import Severity

__all__ = ["Report", "add_arguments", "run"]

VERSIONS = """\
Looks at PyTorch, transformers, accelerate, datasets, MPI, oneCCL, the C++ compiler, and the old bindings
where they are still there; then tries them, each in a process of its own: imports, loads, sums across two
processes, compiles. Says what is wrong and which command mends it. Nothing is installed or changed.
"""
EPILOG = "Exit codes: 0 nothing wrong, 1 warnings, 2 errors.\n"
LEFT_OUT = "--quick: nothing was tried; `plough doctor versions` tries everything"

COLOURS: dict[Severity, str] = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What --json writes."""

    plough: str
    exit_code: int
    findings: tuple[Finding, ...]
    facts: Facts


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EPILOG
    checks = parser.add_subparsers(dest="check", metavar="CHECK", required=True)
    versions = checks.add_parser(
        "versions",
        help="what is installed, and whether it works together",
        description=VERSIONS,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    versions.add_argument("--json", action="store_true", help="findings and facts as JSON")
    versions.add_argument("--quick", action="store_true", help="judge by version numbers alone, try nothing")


def run(options: argparse.Namespace) -> int:
    return CHECKS[options.check](options)


def _versions(options: argparse.Namespace) -> int:
    facts = gather(quick=options.quick, progress=note if sys.stderr.isatty() else lambda text: None)
    findings = judge(facts)
    code = exit_code(findings)
    if options.json:
        report = Report(plough=__version__, exit_code=code, findings=findings, facts=facts)
        emit(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
        emit(render(findings, width=width, paint=_paint))
    if options.quick:
        note(LEFT_OUT)
    return code


def _paint(text: str, severity: Severity) -> str:
    return painted(text, COLOURS[severity], sys.stdout)


CHECKS: dict[str, Callable[[argparse.Namespace], int]] = {"versions": _versions}
