"""A free port that all ranks of one host agree on without being told: for mpirun and srun.

All local ranks of a job have the same parent, so its pid and start time name the job. Local rank 0
picks a port and leaves it in a private folder under that name; the others wait for it.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
import time
from pathlib import Path

from plough.contract import Env, WorkerIdentity
from plough.errors import LaunchError
from plough.files import write_text_atomic

__all__ = ["agree_on_port", "free_port", "job_key", "private_folder"]


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port nobody listens on at `address` now. Another process may still take it first."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def private_folder() -> Path:
    """A folder only this user can enter, plough-UID, in $XDG_RUNTIME_DIR, else in the temp folder.

    Raises LaunchError when it cannot be made, or something else, or somebody else's, stands in its place.
    """
    runtime = os.environ.get(Env.XDG_RUNTIME_DIR)
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"plough-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise LaunchError(
            f"{folder}: {error.strerror}",
            hint="set TMPDIR (and unset XDG_RUNTIME_DIR) to a folder you can write to",
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchError(
            f"{folder} is not a folder that only you can enter",
            hint="remove it, or set TMPDIR (and unset XDG_RUNTIME_DIR) to have another made",
        )
    return folder


def job_key(process: int) -> str:
    """Names a process for good: its pid and start time, since pids come round again.

    The parent's names the launch. Without a start time for a process that has ended.
    """
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        return f"{process}-{fields[19]}"
    except (OSError, IndexError):
        return str(process)


def agree_on_port(identity: WorkerIdentity, folder: Path, key: str, *, timeout: float = 60.0) -> int:
    """The port for this launch, chosen by local rank 0, which leaves it with its own name beside it.

    A shell may start one job after another, and their ranks then have the same parent: a port counts only
    while the rank 0 that left it lives. Raises LaunchError when there is none after `timeout` seconds.
    """
    path = folder / f"port-{key}"
    if identity.local_rank == 0:
        for old in folder.glob("port-*"):
            if _port_in(old) is None:
                old.unlink(missing_ok=True)
        port = free_port()
        write_text_atomic(path, f"{port} {job_key(os.getpid())}")
        return port
    deadline = time.monotonic() + timeout
    while True:
        agreed = _port_in(path)
        if agreed is not None:
            return agreed
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    raise LaunchError(
        f"rank {identity.rank}: rank 0 of this host left no port in {path} within {timeout:g} s",
        hint="set MASTER_PORT yourself, e.g. mpirun -genv MASTER_PORT=29500",
    )


def _port_in(path: Path) -> int | None:
    """The port that a rank 0 which still lives has left in `path`."""
    try:
        port, owner = path.read_text().split()
        return int(port) if job_key(int(owner.partition("-")[0])) == owner else None
    except (OSError, ValueError):
        return None
