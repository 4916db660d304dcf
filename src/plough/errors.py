"""Every error a user can meet, and nothing else.

    PloughError                  exit code 2, printed as `error: ...`, a blank line, `hint: ...`
    ├── UsageError               a flag, value or combination of flags that makes no sense
    ├── MachineError             the machine, or a captured machine file, cannot be read
    ├── PlanError                more was asked for than the machine has
    ├── BuildError               Plough's C++ part cannot be compiled or loaded
    ├── LaunchError              the ranks could not be started
    │   └── RankFailed           a rank ended badly; carries rank, host, code (exit code 1)
    ├── ContractError            what was planned is not what happened
    │   └── RanksAloneError      ranks that should form one job would train alone
    ├── DataError                an input file, line or item
    └── ModelError               a model folder or checkpoint

This file knows nothing of the rest of Plough, and must not.
"""

from __future__ import annotations

__all__ = [
    "BuildError",
    "ContractError",
    "DataError",
    "LaunchError",
    "MachineError",
    "ModelError",
    "PlanError",
    "PloughError",
    "RankFailed",
    "RanksAloneError",
    "UsageError",
]


class PloughError(Exception):
    """A problem the user can mend: `cause` says what is wrong, `hint` what to do about it."""

    exit_code = 2

    def __init__(self, cause: str, *, hint: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        return self.cause if self.hint is None else f"{self.cause}\n\nhint: {self.hint}"

    def render(self) -> str:
        """The whole text a terminal shows, without a trailing newline."""
        return f"error: {self}"


class UsageError(PloughError):
    """A flag, a value or a combination of flags that makes no sense."""


class MachineError(PloughError):
    """The machine, or a captured machine file, cannot be read."""


class PlanError(PloughError):
    """More was asked for than the machine has."""


class BuildError(PloughError):
    """Plough's C++ part cannot be compiled, kept or loaded here."""


class LaunchError(PloughError):
    """The ranks could not be started."""


class RankFailed(LaunchError):
    """A rank ended badly. The job's exit code is 1 unless the rank's own error says otherwise."""

    exit_code = 1


class ContractError(PloughError):
    """What was planned is not what happened."""


class RanksAloneError(ContractError):
    """Ranks that should form one job would each train alone."""


class DataError(PloughError):
    """Something in an input file; the text names file, line or item."""


class ModelError(PloughError):
    """A model folder or checkpoint that cannot be used."""
