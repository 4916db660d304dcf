"""One rank that counts what its host sends while all ranks add up a tensor. Prints JSON from rank 0.

Run as: python traffic.py BACKEND MEGABYTES REPETITIONS
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def sent() -> int:
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main(backend: str, megabytes: float, repetitions: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=120))
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(int(megabytes * 2**20) // 4)
    dist.all_reduce(tensor)
    dist.barrier()
    before = sent()
    dist.barrier()
    for _ in range(repetitions):
        tensor.fill_(rank)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full_like(tensor, size * (size - 1) / 2))
    dist.barrier()
    counts: list[tuple[str, int]] = [("", 0)] * size
    after = sent()
    dist.all_gather_object(counts, (os.environ["HOST"], after - before))
    if rank == 0:
        data = tensor.nbytes * repetitions
        # One of each host's ranks: they count the same.
        print(json.dumps({"hosts": {host: count / data for host, count in dict(counts).items()}}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
