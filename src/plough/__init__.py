"""Plough trains Hugging Face Transformers models on the CPUs you already have.

The names below are the public ones; everything else may move.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plough._version import __version__
from plough.errors import PloughError

if TYPE_CHECKING:
    from plough.plan import LaunchPlan, PlanRequest, make_plan
    from plough.topology import Machine, probe
    from plough.train.arguments import TrainingArguments
    from plough.train.trainer import Trainer

__all__ = [
    "LaunchPlan",
    "Machine",
    "PlanRequest",
    "PloughError",
    "Trainer",
    "TrainingArguments",
    "__version__",
    "make_plan",
    "probe",
]

# Where each name lives. Loaded at first use, so that planning does not wait for torch.
_HOMES = {
    "LaunchPlan": "plough.plan",
    "Machine": "plough.topology",
    "PlanRequest": "plough.plan",
    "Trainer": "plough.train.trainer",
    "TrainingArguments": "plough.train.arguments",
    "make_plan": "plough.plan",
    "probe": "plough.topology",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'plough' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
