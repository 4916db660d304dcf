"""The worker shim, `plough exec`: become the rank the launcher meant, in the place the plan says.

The same under every launcher. It learns who it is, reads its plan (under `plough run`) or makes its own
part of one (under anyone else's mpirun, torchrun or srun), binds cores and memory, sets the variables,
and replaces itself with the worker. It never imports torch: the libraries to preload must come first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from plough.contract import Env, WorkerIdentity
from plough.errors import ContractError
from plough.launchers.base import Command
from plough.launchers.inherited import bound_by_launcher, user_environment
from plough.launchers.placement import apply_placement
from plough.launchers.records import load_plan
from plough.launchers.relay import watch_in_parent
from plough.launchers.rendezvous import agree_on_port, job_key, private_folder
from plough.plan import WATCHED, LaunchPlan, PlanRequest, make_plan
from plough.plan.domains import usable_cpus
from plough.topology import probe
from plough.topology.machine import Machine

__all__ = ["become_rank", "own_plan"]


def become_rank(command: Command) -> None:
    """Does not return: execs `python -m plough.worker` with the plan in force.

    Raises ContractError when the launcher's account of this rank does not add up, PlanError when its
    share cannot be planned, LaunchError when ranks cannot agree on a port.
    """
    identity = WorkerIdentity.from_env(os.environ)
    job = os.environ.get(Env.PLOUGH_JOB_DIR)
    parent = os.getppid()
    if job:
        watch_in_parent(Path(job), identity.rank, identity.world_size)
        plan = load_plan(Path(job))
        contract, environment = plan.contract(identity), plan.ranks[identity.rank].environment
    else:
        plan = own_plan(identity, os.environ, parent=parent)
        mine = plan.ranks[identity.local_rank]
        environment = mine.environment
        hosts = 1 if identity.local_world_size == identity.world_size else 2
        contract = mine.contract(identity, backend=plan.backend, hosts=hosts)
        for warning in plan.warnings if identity.local_rank == 0 else ():
            _say(f"warning: {warning}")
    problems = apply_placement(contract.cpus, contract.memory)
    for problem in problems:
        _say(f"warning: rank {identity.rank}: {problem}")
    environment |= _meeting_place(identity, environment, job=job, parent=parent)
    environment |= replace(contract, problems=tuple(problems)).to_env()
    environment[Env.PLOUGH_COMPAT] = "1" if command.compat else "0"
    if job:
        # A bar inside a bar moves the cursor up a line, which lines from other ranks make the wrong one.
        environment.setdefault(Env.TQDM_POSITION, "0")
    target = ["-m", command.target] if command.module else [command.target]
    argv = [sys.executable, "-m", "plough.worker", *target, *command.arguments]
    os.execve(sys.executable, argv, {**os.environ, **environment})  # noqa: S606


def own_plan(identity: WorkerIdentity, env: Mapping[str, str], *, parent: int) -> LaunchPlan:
    """This host's part of a job that somebody else's launcher started."""
    machine = probe()
    ranks = identity.local_world_size
    request = PlanRequest(
        ranks=ranks,
        user_environment=user_environment(WATCHED, env, proc=Path(f"/proc/{parent}")),
        other_hosts=0 if ranks == identity.world_size else 1,
        # More ranks than cores is the user's own mpirun line: slow and said so, but what they asked for.
        oversubscribe=True,
    )
    if ranks > 1 and bound_by_launcher(parent):
        return _keep_binding(machine, request, identity)
    return make_plan([machine], request)


def _keep_binding(machine: Machine, request: PlanRequest, identity: WorkerIdentity) -> LaunchPlan:
    """The launcher bound this rank alone: plan inside what it left, or undo a binding that is a mistake."""
    whole = replace(machine, limits=replace(machine.limits, cpus=machine.limits.cpuset))
    mine, fair = len(usable_cpus(machine)), len(usable_cpus(whole)) // identity.local_world_size
    if 2 * mine <= fair:
        # e.g. Open MPI's default of one core per rank. Nobody means to leave most of the host idle.
        _say(
            f"warning: {identity.launcher} bound rank {identity.rank} to {mine} of the {fair} cores "
            "that are its fair share; binding to its share instead"
        )
        return make_plan([whole], request)
    others = identity.local_world_size - 1
    alone = make_plan([machine], replace(request, ranks=1, other_ranks=others))
    own = alone.ranks[0]
    return LaunchPlan(
        backend=alone.backend,
        # One entry per local rank, so that the caller finds its own; all are what this rank may use.
        ranks=tuple(
            replace(own, rank=number, local_rank=number, local_world_size=others + 1)
            for number in range(others + 1)
        ),
        reasons=(*alone.reasons, f"{identity.launcher} bound each rank to cores of its own; kept"),
        warnings=alone.warnings,
    )


def _meeting_place(
    identity: WorkerIdentity, planned: Mapping[str, str], *, job: str | None, parent: int
) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, where the launcher has not set them."""
    if identity.world_size == 1 or identity.launcher == "torchrun":
        return {name: os.environ[name] for name in (Env.MASTER_ADDR, Env.MASTER_PORT) if name in os.environ}
    found = {**planned, **os.environ}
    if Env.MASTER_ADDR not in found:
        raise ContractError(
            f"rank {identity.rank} of {identity.world_size} runs on one of several hosts, "
            "and MASTER_ADDR does not say where rank 0 is",
            hint="export MASTER_ADDR=<address of the first host>; with mpirun: -genv MASTER_ADDR <address>",
        )
    if Env.MASTER_PORT in found:
        return {name: found[name] for name in (Env.MASTER_ADDR, Env.MASTER_PORT)}
    if identity.local_world_size != identity.world_size:
        return {Env.MASTER_ADDR: found[Env.MASTER_ADDR], Env.MASTER_PORT: "29500"}
    folder = Path(job) if job else private_folder()
    port = agree_on_port(identity, folder, "job" if job else job_key(parent))
    return {Env.MASTER_ADDR: found[Env.MASTER_ADDR], Env.MASTER_PORT: str(port)}


def _say(text: str) -> None:
    print(f"plough: {text}", file=sys.stderr, flush=True)
