"""torch's backend entry point: makes `ccl` a name that torch.distributed knows, in every process.

It runs whenever torch is imported, so it must be quick, must never fail, and builds or loads nothing.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Called by torch itself when it is imported; calling it again does no harm."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "CCL"):
        return
    dist.Backend.register_backend("ccl", _create, extended_api=True, devices=["cpu"])
    from plough.comm.fill_in import fill_in

    fill_in()


def _create(options: Any, backend_options: Any = None) -> Any:
    from plough.comm.backend import create

    return create(options, backend_options)
