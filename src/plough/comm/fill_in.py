"""What torch.distributed asks of gloo or nccl by name, and refuses any other backend: done for `ccl`.

`monitored_barrier` is for groups called gloo, `split_group` for groups on an accelerator. For groups of
ours these two do what they say; all others go to torch's own functions untouched. Two places, both here.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from plough.errors import UsageError

__all__ = ["fill_in"]


def fill_in() -> None:
    """Wrap the two functions, wherever torch keeps a name for them. Once."""
    for name, ours in (("monitored_barrier", _monitored_barrier), ("split_group", _split_group)):
        theirs = getattr(c10d, name)
        if hasattr(theirs, "__plough__"):
            continue

        @functools.wraps(theirs)
        def either(*args: Any, _ours: Any = ours, _theirs: Any = theirs, **kwargs: Any) -> Any:
            return _ours(_theirs, *args, **kwargs)

        either.__plough__ = True  # type: ignore[attr-defined]
        setattr(c10d, name, either)
        setattr(dist, name, either)


def _is_ours(group: Any) -> bool:
    if not dist.is_initialized():
        return False
    group = group or c10d._get_default_group()
    return group in c10d._world.pg_map and "ccl" in c10d._world.pg_map[group][0].split(",")[0]


def _monitored_barrier(
    theirs: Any, group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
) -> None:
    if not _is_ours(group):
        theirs(group, timeout, wait_all_ranks)
        return
    group = group or c10d._get_default_group()
    if isinstance(timeout, (int, float)):
        timeout = timedelta(seconds=timeout)
    if timeout is None:
        timeout = group._get_backend(torch.device("cpu")).options._timeout
    group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


def _split_group(
    theirs: Any,
    parent_pg: Any = None,
    split_ranks: list[list[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    backend: str | None = None,
    **more: Any,
) -> Any:
    if not _is_ours(parent_pg):
        return theirs(parent_pg, split_ranks, timeout, pg_options, group_desc, backend, **more)
    if not split_ranks:
        raise ValueError("split_ranks cannot be None or empty")
    parent = parent_pg or c10d._get_default_group()
    members = dist.get_process_group_ranks(parent)
    seen: set[int] = set()
    for ranks in split_ranks:
        if not ranks:
            raise ValueError("the split group cannot be empty")
        if len(set(ranks)) != len(ranks) or seen & set(ranks):
            raise ValueError("the split groups cannot have ranks in common")
        if not set(ranks) <= set(range(len(members))):
            raise UsageError(f"split_group: {ranks} are not all ranks of a group of {len(members)}")
        seen |= set(ranks)
    mine = next((sorted(ranks) for ranks in split_ranks if parent.rank() in ranks), None)
    if mine is None:
        return None
    return dist.new_group(
        [members[rank] for rank in mine],
        timeout=timeout,
        backend=backend or "ccl",
        group_desc=group_desc,
        # Only the members of the parent call this, so only they can be waited for.
        use_local_synchronization=True,
    )
