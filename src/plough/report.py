"""What really ran: one rank's facts as data, and the block that says them for the whole job.

Written by the worker, read by the launcher; knows neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from plough.errors import LaunchError
from plough.files import write_text_atomic

__all__ = ["ONE_BUCKET", "RankFacts", "bucket_words", "ranges", "read_facts", "render_block", "write_facts"]

ONE_BUCKET = 1 << 20
"""MiB: more than any model has, so that all gradients are averaged together, at the end."""
SHOWN = 16
"""Ranks whose cores the block lists."""


class RankFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found in force in one rank.

    world_size: of the process group, 1 when none was formed. backend: of the group, or None.
    cpus: logical CPUs the process may run on. openmp, allocator: the library that really answers.
    memory: the kernel's policy of the main thread, as words. bucket_mb: MiB of gradients that are averaged
    together, None where torch's own default holds.
    steps: optimizer steps seen; seconds: from the worker's start to its end.
    """

    rank: int
    host: str
    pid: int
    world_size: int
    backend: str | None
    device: str
    threads: int
    cpus: tuple[int, ...]
    openmp: str
    allocator: str
    memory: str
    steps: int = 0
    seconds: float = 0.0
    samples_per_second: float | None = None
    precision: str | None = None
    bucket_mb: float | None = None
    problems: tuple[str, ...] = ()


def write_facts(folder: Path, facts: RankFacts) -> None:
    write_text_atomic(folder / f"facts-{facts.rank}.json", msgspec.json.encode(facts).decode())


def read_facts(folder: Path) -> list[RankFacts]:
    """The facts the ranks left in `folder`, in rank order. Raises LaunchError for a garbled file."""
    found = []
    for path in folder.glob("facts-*.json"):
        try:
            found.append(msgspec.json.decode(path.read_bytes(), type=RankFacts))
        except (msgspec.DecodeError, UnicodeError, OSError) as error:
            raise LaunchError(f"{path}: {error}") from error
    return sorted(found, key=lambda facts: facts.rank)


def render_block(facts: Sequence[RankFacts]) -> str:
    """The end-of-job block of at least one rank's facts; what is the same for all ranks is said once."""
    first, ranks = facts[0], [f.rank for f in facts]
    hosts = list(dict.fromkeys(f.host for f in facts))
    more = f"; and {len(facts) - SHOWN} more ranks" if len(facts) > SHOWN else ""
    rows = [
        ("ranks", f"{len(facts)} on {', '.join(hosts)}"),
        ("group", _group(first)),
        ("device", _same(ranks, [f.device for f in facts])),
        ("threads", _same(ranks, [f"{f.threads} per rank" for f in facts])),
        ("cores", "; ".join(f"rank {f.rank}: {ranges(f.cpus)}" for f in facts[:SHOWN]) + more),
        ("memory", _same(ranks, [f.memory for f in facts])),
        ("OpenMP", _same(ranks, [f.openmp for f in facts])),
        ("allocator", _same(ranks, [f.allocator for f in facts])),
    ]
    if first.precision:
        rows.append(("precision", first.precision))
    if first.steps:
        speed = f", {first.samples_per_second:.1f} samples/s" if first.samples_per_second else ""
        rows.append(("trained", f"{first.steps} steps{speed}"))
    rows.append(("time", f"{max(f.seconds for f in facts):.1f} s"))
    problems = dict.fromkeys([p for f in facts for p in f.problems] + _crowded(facts))
    rows += [("problem", problem) for problem in problems]
    return "\n".join(["what ran", *(f"  {name:<10} {value}" for name, value in rows)])


def _group(facts: RankFacts) -> str:
    buckets = ""
    if facts.bucket_mb is not None and facts.world_size > 1:
        buckets = f", gradients in {bucket_words(facts.bucket_mb)}"
    return f"world size {facts.world_size}, backend {facts.backend or 'none (one process)'}{buckets}"


def _crowded(facts: Sequence[RankFacts]) -> list[str]:
    """Hosts whose ranks compute with more threads than they have cores between them."""
    found = []
    for host in dict.fromkeys(f.host for f in facts):
        here = [f for f in facts if f.host == host]
        threads, cores = sum(f.threads for f in here), len({cpu for f in here for cpu in f.cpus})
        if all(f.cpus for f in here) and threads > cores:
            them = f"{cores} core{'s' * (cores != 1)} of {host}"
            found.append(f"{threads} threads took turns on {them}: every step was slower for it")
    return found


def _same(ranks: Sequence[int], values: Sequence[str]) -> str:
    """The one value all ranks have, or each of the values with its ranks."""
    groups: dict[str, list[int]] = {}
    for rank, value in zip(ranks, values, strict=True):
        groups.setdefault(value, []).append(rank)
    if len(groups) == 1:
        return values[0]
    return "; ".join(
        f"rank{'s' * (len(those) > 1)} {ranges(those)}: {value}" for value, those in groups.items()
    )


def bucket_words(bucket_mb: float) -> str:
    """How gradients are averaged together, by the MiB that DistributedDataParallel is given."""
    return "one bucket" if bucket_mb >= ONE_BUCKET else f"buckets of {bucket_mb:g} MiB"


def ranges(cpus: Sequence[int]) -> str:
    """Numbers as people write them: (0, 1, 2, 5) -> "0-2,5"; none at all -> "not bound"."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts) or "not bound"
