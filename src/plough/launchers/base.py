"""What every launcher has in common: a command in, the exact thing that will be started out.

`render` is pure and `submit.py` starts nothing but what was rendered, so that `--dry-run` shows the truth.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from plough.contract import Env
from plough.plan import LaunchPlan
from plough.topology.machine import Machine

__all__ = ["Command", "Launcher", "Rendered", "job_environment"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants run in each rank: a script or (module=True) a module, and its arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    compat: bool = True

    def exec_argv(self) -> list[str]:
        """The `plough exec` command line that runs this in one rank."""
        flags = [] if self.compat else ["--no-compat"]
        target = ["-m", self.target] if self.module else [self.target]
        return [sys.executable, "-m", "plough", "exec", *flags, *target, *self.arguments]


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly what will be started: `argv` with `environment` added to the caller's."""

    launcher: str
    argv: tuple[str, ...]
    environment: dict[str, str]

    def shell(self) -> str:
        """The same as a line for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*(["env", *variables] if variables else []), shlex.join(self.argv)])


class Launcher(Protocol):
    """One way of starting ranks. Raises LaunchError when the machine lacks what it needs."""

    def __call__(
        self, plan: LaunchPlan, command: Command, *, machine: Machine, job_dir: Path
    ) -> Rendered: ...


def job_environment(job_dir: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What each rank must inherit to find its job."""
    return {Env.PLOUGH_JOB_DIR: str(job_dir), **(extra or {})}
