"""What torch's tests would do on GPUs, on the CPU: most of them are about DistributedDataParallel, not GPUs.

For a rank that runs such a test; it undoes nothing. A test that needs more than its tensors on "a GPU", e.g.
streams, still fails, and is listed in excluded.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


def pretend(ranks: int) -> TorchFunctionMode:
    """To be entered: tensors that are made on, or moved to, a GPU stay on the CPU."""
    torch.cuda.device_count = lambda: ranks
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.device = nullcontext  # type: ignore[assignment,misc]
    dist.new_group = _without_nccl(dist.new_group)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign,assignment]
    nn.Module.cuda = lambda module, *_, **__: module  # type: ignore[method-assign,assignment]
    nn.Module.to = _without_gpu(nn.Module.to)  # type: ignore[method-assign]
    DistributedDataParallel.__init__ = _without_devices(DistributedDataParallel.__init__)  # type: ignore[method-assign]
    return _OnTheCpu()


class _OnTheCpu(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        arguments = dict(kwargs or {})
        if "device" in arguments:
            arguments["device"] = _cpu(arguments["device"])
        if func is torch.Tensor.to:
            args = [args[0], *map(_cpu, args[1:2]), *args[2:]]
        return func(*args, **arguments)


def _cpu(device: Any) -> Any:
    """`device`, or the CPU when that is a GPU."""
    if type(device) is int or (isinstance(device, str) and device.startswith("cuda")):
        return CPU
    return CPU if isinstance(device, torch.device) and device.type == "cuda" else device


def _without_gpu(to: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(to)
    def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        return to(module, *map(_cpu, args), **kwargs)

    return wrapper


def _without_nccl(new_group: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(new_group)
    def wrapper(*args: Any, backend: str | None = None, **kwargs: Any) -> Any:
        return new_group(*args, backend="ccl" if backend == "nccl" else backend, **kwargs)

    return wrapper


def _without_devices(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def wrapper(*args: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        init(*args, **kwargs)

    return wrapper
