"""Several hosts on one machine: network namespaces joined by a bridge. Needs root and iproute2."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def why_not() -> str | None:
    """Why this machine cannot have namespaces, or None."""
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    if shutil.which("ip") is None:
        return "needs iproute2: ip is not here"
    probe = subprocess.run(
        ["ip", "netns", "add", "plough-probe"], capture_output=True, text=True, check=False
    )
    subprocess.run(["ip", "netns", "del", "plough-probe"], capture_output=True, check=False)
    return f"needs network namespaces: {probe.stderr.strip()}" if probe.returncode else None


@contextmanager
def hosts(count: int) -> Iterator[tuple[list[list[str]], list[str]]]:
    """Words that put a command on each host, and the hosts' addresses. Gone when done."""
    tag, net = secrets.token_hex(2), f"10.{200 + secrets.randbelow(50)}.{secrets.randbelow(250)}"
    bridge, names = f"pb{tag}", [f"pn{tag}{i}" for i in range(count)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("link", "set", bridge, "up")
        for i, name in enumerate(names):
            ip("netns", "add", name)
            ip("link", "add", f"pv{tag}{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"pv{tag}{i}", "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{net}.{10 + i}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield [["ip", "netns", "exec", name] for name in names], [f"{net}.{10 + i}" for i in range(count)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)
