"""What the user may tune about the `ccl` backend, read from the environment. Pure; knows no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plough.contract import Env
from plough.errors import UsageError

__all__ = ["TRANSPORTS", "Settings", "read_settings"]

TRANSPORTS = ("auto", "shm", "oneccl", "gloo")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """transport: between hosts. spin_us: None lets the number of cores decide. worker_cpus: where our
    threads are bound, ours of CCL_WORKER_AFFINITY, empty when they are not. slot_bytes: shared memory of a
    rank, twice. locality: None unless forced."""

    transport: str = "auto"
    direct: bool = True
    spin_us: float | None = None
    slot_bytes: int = 256 << 10
    isa: str | None = None
    locality: str | None = None
    workers: int = 1
    worker_cpus: tuple[int, ...] = ()


def read_settings(env: Mapping[str, str]) -> Settings:
    """Raises UsageError naming the variable that cannot be understood."""
    transport = env.get(Env.PLOUGH_CCL_TRANSPORT, "auto")
    if transport not in TRANSPORTS:
        raise UsageError(
            f"{Env.PLOUGH_CCL_TRANSPORT}={transport!r}: unknown", hint=f"one of {', '.join(TRANSPORTS)}"
        )
    direct = env.get(Env.PLOUGH_CCL_DIRECT, "1")
    if direct not in ("0", "1"):
        raise UsageError(f"{Env.PLOUGH_CCL_DIRECT}={direct!r} is neither 0 nor 1")
    workers = int(_number(env, Env.CCL_WORKER_COUNT, 1, least=1, most=64))
    spin = _number(env, Env.PLOUGH_CCL_SPIN_US, -1, least=0, most=1e6)
    return Settings(
        transport=transport,
        direct=direct == "1",
        spin_us=None if spin < 0 else spin,
        slot_bytes=int(_number(env, Env.PLOUGH_CCL_SLOT_KIB, 256, least=4, most=1 << 20) * 1024),
        isa=env.get(Env.PLOUGH_CCL_ISA),
        locality=env.get(Env.PLOUGH_CCL_LOCALITY),
        workers=workers,
        worker_cpus=_worker_cpus(env, workers),
    )


def _number(env: Mapping[str, str], name: str, default: float, *, least: float, most: float) -> float:
    text = env.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise UsageError(f"{name}={text!r} is not a number from {least:g} to {most:g}", hint="or unset it")
    return number


def _worker_cpus(env: Mapping[str, str], workers: int) -> tuple[int, ...]:
    """Ours of CCL_WORKER_AFFINITY, which lists the workers of all ranks of the host, one rank after another.

    "auto", ranges and lists of another length are oneCCL's to understand; our threads then stay unbound.
    """
    text, local_rank = env.get(Env.CCL_WORKER_AFFINITY, ""), env.get(Env.LOCAL_RANK, "0")
    try:
        cpus = [int(part) for part in text.split(",") if part]
        first = int(local_rank) * workers
    except ValueError:
        return ()
    return tuple(cpus[first : first + workers]) if len(cpus) >= first + workers else ()
