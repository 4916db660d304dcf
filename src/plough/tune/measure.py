"""Measure one setting: start its ranks exactly as `plough run` would, and read what rank 0 leaves.

Knows launchers and plans; what ranks do is `ranks.py`'s, which this file starts and never imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from plough.contract import Env
from plough.launchers import LAUNCHERS, Command, JobResult, Rendered, job_folder, submit
from plough.plan import LaunchPlan, PlanRequest, make_plan
from plough.topology.machine import Machine
from plough.tune.candidates import Setting
from plough.tune.workload import Workload

__all__ = ["Bench", "Timing"]

RANKS = "plough.tune.ranks"
TIMING = "timing.json"
DRY_RUN_FOLDER = Path("JOB_FOLDER")


class Timing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `steps` training steps after the first few, each as long as it took the slowest rank.

    gradient_mb: MiB of gradients. backend: what the ranks talked over; None for a single one.
    """

    ms: float
    p10: float
    p90: float
    steps: int
    parameters: int
    gradient_mb: float
    backend: str | None
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Everything about a measurement but the setting. default: the setting that changes nothing."""

    machine: Machine
    request: PlanRequest
    launcher: str
    workload: Workload
    default: Setting

    def plan(self, setting: Setting) -> LaunchPlan:
        tuned = setting.tuned(self.default, "to be measured")
        return make_plan([self.machine], replace(self.request, tuned=tuned))

    def rendered(self, setting: Setting, job_dir: Path = DRY_RUN_FOLDER) -> Rendered:
        arguments = ("--output", str(job_dir / TIMING), *self.workload.arguments())
        command = Command(target=RANKS, arguments=arguments, module=True, compat=False)
        rendered = LAUNCHERS[self.launcher](
            self.plan(setting), command, machine=self.machine, job_dir=job_dir
        )
        # torch's remarks about the model are the same in every start, and not about the setting.
        return replace(rendered, environment={**rendered.environment, Env.TORCH_CPP_LOG_LEVEL: "ERROR"})

    def measure(self, setting: Setting) -> tuple[JobResult, Timing | None]:
        """How the job ended, and the time if it ended well. Raises LaunchError if it cannot start."""
        with job_folder() as folder:
            result = submit(self.rendered(setting, folder), self.plan(setting), folder)
            if result.code != 0:
                return result, None
            return result, msgspec.json.decode((folder / TIMING).read_bytes(), type=Timing)
