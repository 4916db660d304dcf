"""Watches training from the optimizer's side: no rank trains alone, no replica drifts, all steps counted.

It hooks torch's optimizers, so it works for any script, Trainer or hand-written loop. It talks to the
other ranks through the group's store and never through a collective, so it cannot hang a script whose
ranks step at different times.
"""

from __future__ import annotations

import os
import time
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

__all__ = ["Guard", "active_guard"]

GIVE_UP_AFTER = 200
"""Steps after which replicas that have not all spoken are no longer waited for."""


class Fingerprint(msgspec.Struct, frozen=True):
    """Of an optimizer's parameters before its first step: how many, and their and their gradients' norms."""

    numel: int
    weights: float
    gradients: float


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
        self._first_step: float | None = None
        self._pending: dict[str, int] = {}
        self._seen: set[int] = set()
        self._watch_replicas = os.environ.get(Env.PLOUGH_CHECK_REPLICAS) != "0"

    def install(self) -> None:
        global _active
        _active = self
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
        if self.world_size > 1 and self._watch_replicas:
            try:
                self._compare_replicas(optimizer)
            except dist.DistError:  # a peer that is done may have taken the store with it
                self._watch_replicas = False

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
        if id(optimizer) not in self._seen:
            self._seen.add(id(optimizer))
            mine = _fingerprint(optimizer)
            if mine is not None:
                key = f"plough/replica/{len(self._seen)}"
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
    with torch.no_grad():
        weights = sum(float(p.detach().double().square().sum()) for p in parameters)
        gradients = sum(float(p.grad.detach().double().square().sum()) for p in parameters)
    return Fingerprint(sum(p.numel() for p in parameters), weights, gradients)


def _judge(prints: list[Fingerprint]) -> None:
    """Equal weights with unequal gradients: copies of one model that nobody keeps together."""
    first = prints[0]
    replicas = all(p.numel == first.numel and p.weights == first.weights for p in prints)
    if not replicas:
        return
    for rank, other in enumerate(prints):
        if abs(other.gradients - first.gradients) > 1e-3 * max(first.gradients, other.gradients):
            raise ContractError(
                f"ranks 0 and {rank} hold copies of one model and step with different gradients "
                f"(norms {first.gradients**0.5:.4g} and {other.gradients**0.5:.4g}): nothing averages them, "
                "and the copies drift apart",
                hint="wrap the model in DistributedDataParallel (Trainer does on CPU with use_cpu); for "
                f"methods that differ on purpose, such as local SGD, set {Env.PLOUGH_CHECK_REPLICAS}=0",
            )


_active: Guard | None = None


def active_guard() -> Guard | None:
    """The worker's guard, for the Trainer to add what only it knows; None outside a worker."""
    return _active
