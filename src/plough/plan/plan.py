"""A launch plan as frozen data: which rank gets which cores, memory and variables, and why.

Knows nothing of how it is made (`binding.py`, `environment.py`) or carried out (`plough.launchers`).
"""

from __future__ import annotations

import msgspec

from plough.contract import Contract, MemoryPolicy, WorkerIdentity
from plough.errors import PlanError

__all__ = ["LaunchPlan", "PlanRequest", "RankPlan", "Setting", "Tuned"]


class Tuned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured to be best here: defaults that give way to whatever the user sets.

    None: as a plan has it by itself. reserve_cores: per socket, as in PlanRequest; it decides the threads.
    bucket_mb: MiB of gradients that are averaged together. why: measured when, and with what.
    """

    why: str
    reserve_cores: int | None = None
    ccl_worker_count: int | None = None
    bucket_mb: int | None = None


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user asked for. None means: choose.

    ranks: ranks on each host. ranks_per_socket, ranks_per_node (NUMA): the same by domain; at most one of
    the three. threads: compute threads per rank. reserve_cores: cores left to the system per socket.
    oversubscribe: allow more ranks or threads than cores (for tests of distributed code).
    allocator: "auto", "tcmalloc", "jemalloc", "glibc" (tuned), "none" (as it is).
    openmp: "auto", "intel", "gnu". memory: "bind" or "first-touch".
    user_environment: variables the user set; kept, and warned about where they hurt.
    tuned: what `plough tune` found for this machine and number of ranks.
    other_hosts, other_ranks: hosts of the job, and ranks of this host, that are planned elsewhere, each by
    itself (`plough exec`).
    """

    ranks: int | None = None
    ranks_per_socket: int | None = None
    ranks_per_node: int | None = None
    threads: int | None = None
    reserve_cores: int | None = None
    oversubscribe: bool = False
    allocator: str = "auto"
    openmp: str = "auto"
    memory: str = "bind"
    backend: str = "ccl"
    ccl_worker_count: int | None = None
    user_environment: dict[str, str] = {}
    tuned: Tuned | None = None
    other_hosts: int = 0
    other_ranks: int = 0


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment variable of one rank, and why it has this value."""

    name: str
    value: str
    why: str


class RankPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rank's place.

    sockets: ordinals among the machine's sockets, from 0, whatever the firmware calls them. nodes: NUMA
    nodes by the kernel's numbers. cpus: logical CPUs, one per core; empty when the rank is not bound on
    purpose (see the plan's reasons).
    """

    rank: int
    local_rank: int
    local_world_size: int
    host: str
    sockets: tuple[int, ...]
    nodes: tuple[int, ...]
    threads: int
    cpus: tuple[int, ...]
    memory: MemoryPolicy
    preloads: tuple[str, ...]
    settings: tuple[Setting, ...]

    @property
    def environment(self) -> dict[str, str]:
        return {setting.name: setting.value for setting in self.settings}

    def contract(self, identity: WorkerIdentity, *, backend: str, hosts: int) -> Contract:
        """What is promised to `identity`, the rank that gets this place."""
        return Contract(
            identity=identity,
            backend=backend,
            threads=self.threads,
            cpus=self.cpus,
            memory=self.memory,
            preloads=self.preloads,
            hosts=hosts,
        )


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a launcher needs to start a job.

    reasons: one sentence per choice that shaped the plan. warnings: what the user should know before the
    job runs (values of theirs that hurt, cores left idle, a fallback).
    """

    backend: str
    ranks: tuple[RankPlan, ...]
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names in rank order, each once."""
        return tuple(dict.fromkeys(rank.host for rank in self.ranks))

    def contract(self, identity: WorkerIdentity) -> Contract:
        """What is promised to the rank `identity` names. Raises PlanError if the plan has no such rank."""
        if identity.world_size != self.world_size:
            raise PlanError(
                f"the plan is for {self.world_size} ranks, the launcher started {identity.world_size}"
            )
        mine = self.ranks[identity.rank]
        return mine.contract(identity, backend=self.backend, hosts=len(self.hosts))

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str = "plan JSON") -> LaunchPlan:
        """Read what `to_json` wrote. Raises PlanError naming `source` and the item at fault."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise PlanError(f"{source} is not a launch plan: {error}") from error
