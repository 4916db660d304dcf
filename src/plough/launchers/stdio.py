"""Hand the launcher's own stdout and stderr to each rank's relay, past whatever program starts the ranks.

mpirun and torchrun buffer, merge and decorate what passes through them. A socket in the job's private
folder passes the file descriptors themselves, so ranks write where the user looks and share its offset.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["receive", "serve"]

SOCKET = "stdio"


@contextmanager
def serve(job_dir: Path) -> Iterator[None]:
    """Give descriptors 1 and 2 to every relay that asks, until the job is over."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listener.bind(str(job_dir / SOCKET))
        except OSError:  # the path is too long for a socket: relays use what mpirun or torchrun gave them
            yield
            return
        os.chmod(job_dir / SOCKET, 0o600)
        listener.listen(256)
        threading.Thread(target=_give, args=(listener,), daemon=True).start()
        yield
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread out of accept
        listener.close()


def _give(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
            with connection:
                socket.send_fds(connection, [b"0"], [1, 2])
        except OSError:
            return


def receive(job_dir: Path) -> tuple[int, int]:
    """The launcher's stdout and stderr; this process's own where the launcher cannot be asked."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(str(job_dir / SOCKET))
            _, fds, _, _ = socket.recv_fds(connection, 1, 2)
    except OSError:
        return 1, 2
    return (fds[0], fds[1]) if len(fds) == 2 else (1, 2)
