"""Where the ranks that form a group post what all of them must know: the group's key-value store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import DistBackendError

__all__ = ["Board"]


class Board:
    """One rank's view. Everything that is read must have been posted before the timeout of the group."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.deadline = time.monotonic() + timeout.total_seconds()

    def post(self, topic: str, text: str) -> None:
        self.store.set(f"{topic}/{self.rank}", text)

    def read(self, topic: str, ranks: Sequence[int]) -> list[str]:
        """What `ranks` posted. Raises DistBackendError naming those who did not in time."""
        keys = [f"{topic}/{rank}" for rank in ranks]
        pause = 0.0005
        while keys and not self.store.check(keys):
            if time.monotonic() > self.deadline:
                late = [rank for rank, key in zip(ranks, keys, strict=True) if not self.store.check([key])]
                names = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
                raise DistBackendError(
                    f"ccl: {names} of {self.size} did not come to form the group "
                    f"within {self.timeout.total_seconds():g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return [self.store.get(key).decode() for key in keys]
