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

from plough.contract import WorkerIdentity
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
    """A folder only this user can enter: $XDG_RUNTIME_DIR/plough, else one under the temp folder.

    Raises LaunchError when somebody else's folder stands in its place.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"plough-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise LaunchError(
            f"{folder}: {error.strerror}", hint="set TMPDIR to a folder you can write to"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LaunchError(
            f"{folder} is not a private folder of yours", hint=f"remove it, or set TMPDIR: {folder}"
        )
    return folder


def job_key(parent: int) -> str:
    """Names the launch: the parent's pid and start time, since pids come round again."""
    try:
        fields = Path(f"/proc/{parent}/stat").read_text().rsplit(")", 1)[1].split()
        return f"{parent}-{fields[19]}"
    except (OSError, IndexError):
        return str(parent)


def agree_on_port(identity: WorkerIdentity, folder: Path, key: str, *, timeout: float = 60.0) -> int:
    """The port for this launch, chosen by local rank 0.

    Raises LaunchError when local rank 0 has left none within `timeout` seconds.
    """
    path = folder / f"port-{key}"
    if identity.local_rank == 0:
        port = free_port()
        write_text_atomic(path, str(port))
        return port
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            time.sleep(0.02)
    raise LaunchError(
        f"rank {identity.rank}: rank 0 of this host left no port in {path} within {timeout:g} s",
        hint="set MASTER_PORT yourself, e.g. mpirun -genv MASTER_PORT=29500",
    )
