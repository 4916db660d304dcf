"""Timings and records of no machine at all."""

from __future__ import annotations

from typing import Any

from plough.report import ONE_BUCKET
from plough.topology.machine import Machine
from plough.tune.candidates import Setting, Verdict
from plough.tune.measure import Timing
from plough.tune.store import Measured, Record, machine_key
from plough.tune.workload import Workload

DEFAULT = Setting(threads=23, workers=1)
BEST = Setting(threads=22, workers=2, reserve_cores=2, bucket_mb=ONE_BUCKET)


def timing(ms: float, **changes: Any) -> Timing:
    values: dict[str, Any] = {
        "ms": ms,
        "p10": ms,
        "p90": ms,
        "steps": 20,
        "parameters": 22_713_986,
        "gradient_mb": 86.6,
        "backend": "ccl",
        "versions": {"plough": "0", "torch": "2", "transformers": "5", "python": "3"},
    }
    return Timing(**{**values, **changes})


def record(machine: Machine, **changes: Any) -> Record:
    """Of two ranks: 22 threads, 2 workers and one bucket are best."""
    values: dict[str, Any] = {
        "plough": "0",
        "date": "2026-12-01T10:00:00+00:00",
        "host": machine.hostname,
        "machine": machine_key(machine),
        "model_name": machine.model_name,
        "ranks": 2,
        "launcher": "local",
        "workload": Workload(model="google-bert/bert-large-uncased"),
        "title": "google-bert/bert-large-uncased",
        "parameters": 334_000_000,
        "backend": "ccl",
        "versions": {"torch": "2"},
        "default": DEFAULT,
        "best": BEST,
        "verdict": Verdict(gain=0.1, noise=0.02, default_ms=100.0, best_ms=90.0, rounds=5),
        "chosen": BEST,
        "measured": (
            Measured(setting=DEFAULT, ms=100.0, p10=99.0, p90=101.0, steps=20),
            Measured(setting=BEST, ms=90.0, p10=89.0, p90=91.0, steps=20),
        ),
    }
    return Record(**{**values, **changes})
