"""Watches training from the optimizer's side: no rank trains alone, no replica drifts, all steps counted.

It hooks torch's optimizers, so it works for any script, Trainer or hand-written loop. It talks to the
other ranks through the group's store and never through a collective, so it cannot hang a script whose
ranks step at different times.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
import weakref
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from plough.contract import Contract, Env
from plough.errors import ContractError
from plough.report import RankFacts
from plough.train.group import check_group, default_store
from plough.train.inforce import collect_facts

__all__ = ["Guard", "active_guard"]

GIVE_UP_AFTER = 200
"""Steps after which replicas that have not all spoken are no longer waited for."""
SAMPLE = 4096
"""Elements of each gradient that its fingerprint looks at one by one."""
TOLERANCE = 1e-3
"""How far gradients of copies may be apart, as a share of their norm; averaged ones differ by rounding."""


class Fingerprint(msgspec.Struct, frozen=True):
    """Of an optimizer's parameters before its first step.

    numel: elements. weights, gradients: their sums of squares. projection: the sampled gradient elements
    along a fixed direction, and sampled: their sum of squares. Norms alone say nothing once gradients are
    clipped: all are 1 then.
    """

    numel: int
    weights: float
    gradients: float
    projection: float
    sampled: float


class Guard:
    """One per worker. `install` starts it; `complete` adds what it saw to the rank's facts."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.steps = 0
        self.world_size = 1
        self.backend: str | None = None
        self.device = contract.device
        self.samples_per_second: float | None = None
        self.precision: str | None = None
        self.bucket_mb: float | None = None
        self._first_step: float | None = None
        self._store: Any = None
        self._pending: dict[str, int] = {}
        self._seen: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._optimizers = 0
        self._watch_replicas = os.environ.get(Env.PLOUGH_CHECK_REPLICAS) != "0"

    def install(self) -> None:
        global _active
        _active = self
        _watch_group_formation(self)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def complete(self, facts: RankFacts) -> RankFacts:
        return msgspec.structs.replace(
            facts,
            world_size=self.world_size,
            backend=self.backend,
            device=self.device,
            steps=self.steps,
            samples_per_second=self.samples_per_second,
            precision=self.precision,
            bucket_mb=self.bucket_mb,
        )

    def look_at_group(self) -> None:
        """Raises RanksAloneError or ContractError unless the group is the launched one; remembers it."""
        check_group(self.contract.identity)
        if dist.is_initialized():
            self.world_size, self.backend = dist.get_world_size(), dist.get_backend()

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._first_step is None:
            self._first_step = time.monotonic()
            self.look_at_group()
            self._check_device(optimizer)
            if self.world_size > 1:
                self._post_facts()
        if self.world_size > 1 and self._watch_replicas:
            try:
                self._compare_replicas(optimizer)
            except dist.DistError:  # a peer that is done may have taken the store with it
                self._watch_replicas = False

    def _post_facts(self) -> None:
        """Leave this rank's facts where rank 0 finds them, if no launcher of ours collects them."""
        self._store = default_store()  # outlives the script's destroy_process_group
        facts = self.complete(collect_facts(self.contract, started=time.monotonic()))
        self._store.set(_facts_key(facts.rank), msgspec.json.encode(facts).decode())

    def facts_of_others(self) -> list[RankFacts]:
        """What the other ranks posted at their first step; those that never came are missing."""
        found = []
        for rank in range(self.world_size if self._store is not None else 0):
            with contextlib.suppress(dist.DistError):
                if rank != self.contract.identity.rank and self._store.check([_facts_key(rank)]):
                    found.append(msgspec.json.decode(self._store.get(_facts_key(rank)), type=RankFacts))
        return found

    def _after_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self.steps += 1

    def _check_device(self, optimizer: Optimizer) -> None:
        found = {p.device.type for group in optimizer.param_groups for p in group["params"]}
        if found and self.contract.device not in found:
            self.device = ",".join(sorted(found))
            if self.contract.device == "cpu" and torch.accelerator.is_available():
                return  # a script's own choice of an accelerator that is there; reported, not refused
            raise ContractError(f"planned for {self.contract.device}, and the model is on {self.device}")

    def _compare_replicas(self, optimizer: Optimizer) -> None:
        if optimizer not in self._seen:
            self._seen.add(optimizer)
            self._optimizers += 1
            mine = _fingerprint(optimizer)
            if mine is not None:
                key = f"plough/replica/{self._optimizers}"
                default_store().set(
                    f"{key}/{self.contract.identity.rank}", msgspec.json.encode(mine).decode()
                )
                self._pending[key] = self.steps
        for key, since in list(self._pending.items()):
            names = [f"{key}/{rank}" for rank in range(self.world_size)]
            if default_store().check(names):
                del self._pending[key]
                _judge([msgspec.json.decode(default_store().get(n), type=Fingerprint) for n in names])
            elif self.steps - since > GIVE_UP_AFTER:
                del self._pending[key]


def _fingerprint(optimizer: Optimizer) -> Fingerprint | None:
    """None for sharded parameters: their ranks hold different things on purpose."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    plain = all(type(p) in (torch.nn.Parameter, torch.Tensor) and not p.grad.is_sparse for p in parameters)
    if not parameters or not plain or any(hasattr(p, "_handle") for p in parameters):
        return None
    weights = gradients = projection = sampled = 0.0
    with torch.no_grad():
        direction = torch.cos(torch.arange(SAMPLE, dtype=torch.float64))
        for parameter in parameters:
            gradient = parameter.grad.detach()
            weights += float(parameter.detach().double().square().sum())
            gradients += float(gradient.double().square().sum())
            part = gradient.reshape(-1)[:SAMPLE].double().cpu()
            projection += float(part @ direction[: len(part)])
            sampled += float(part @ part)
    return Fingerprint(sum(p.numel() for p in parameters), weights, gradients, projection, sampled)


def _judge(prints: list[Fingerprint]) -> None:
    """Equal weights with unequal gradients: copies of one model that nobody keeps together."""
    first = prints[0]
    replicas = all(p.numel == first.numel and p.weights == first.weights for p in prints)
    if not replicas:
        return
    for rank, other in enumerate(prints):
        apart = _apart(first, other)
        if apart > TOLERANCE:
            raise ContractError(
                f"ranks 0 and {rank} hold copies of one model and step with different gradients "
                f"(apart by {100 * apart:.2g} % of their norm): nothing averages them, and the copies drift "
                "apart",
                hint="wrap the model in DistributedDataParallel (Trainer does on CPU with use_cpu); for "
                f"methods that differ on purpose, such as local SGD, set {Env.PLOUGH_CHECK_REPLICAS}=0",
            )


def _apart(one: Fingerprint, other: Fingerprint) -> float:
    """A lower bound of the distance between two gradients, as a share of the larger; 0 for zero gradients."""
    norms = math.sqrt(one.gradients), math.sqrt(other.gradients)
    sampled = math.sqrt(max(one.sampled, other.sampled))
    return max(
        abs(norms[0] - norms[1]) / max(*norms, 1e-30),
        abs(one.projection - other.projection) / max(sampled, 1e-30),
    )


def _facts_key(rank: int) -> str:
    return f"plough/facts/{rank}"


def _watch_group_formation(guard: Guard) -> None:
    """Check the default group the moment a script forms it, which may be long before it trains."""
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        guard.look_at_group()

    for module in (dist, torch.distributed.distributed_c10d):
        setattr(module, "init_process_group", init_process_group)  # noqa: B010  (mypy: modules are fixed)


_active: Guard | None = None


def active_guard() -> Guard | None:
    """The worker's guard, for the Trainer to add what only it knows; None outside a worker."""
    return _active
