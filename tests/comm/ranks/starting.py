"""Start the ranks of a test as processes, each with its own environment, and collect what they say."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RANKS = Path(__file__).parent


@dataclass(frozen=True)
class Ended:
    code: int
    stdout: str
    stderr: str


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_ranks(
    script: str,
    *arguments: str,
    size: int,
    env: dict[str, str] | None = None,
    hosts: int = 1,
    prefix: Sequence[Sequence[str]] = (),
    address: str = "127.0.0.1",
) -> list[subprocess.Popen[str]]:
    """Rank r acts as if on host r % hosts. prefix[r]: words before python, e.g. to enter a namespace."""
    port = free_port()
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PLOUGH_CCL", "CCL_"))}
    processes = []
    for rank in range(size):
        environment = {
            **inherited,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "ignore",
            **(env or {}),
        }
        if hosts > 1:
            environment["PLOUGH_CCL_LOCALITY"] = f"host {rank % hosts}"
        before = list(prefix[rank]) if prefix else []
        processes.append(
            subprocess.Popen(
                [*before, sys.executable, str(RANKS / script), *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def end_ranks(processes: list[subprocess.Popen[str]], timeout: float) -> list[Ended]:
    """Wait for all; whoever is not done in time is killed and counts as failed with code -9."""
    ended = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        ended.append(Ended(process.returncode, out, err))
    return ended


def run_ranks(script: str, *arguments: str, timeout: float = 240, **how: object) -> list[Ended]:
    return end_ranks(start_ranks(script, *arguments, **how), timeout)  # type: ignore[arg-type]
