"""`plough probe`: what this machine is, as words or JSON."""

from __future__ import annotations

import argparse

from plough.cli.output import emit, table
from plough.report import ranges
from plough.topology import Machine, Software, probe

__all__ = ["add_arguments", "render", "run"]

GIB = 1 << 30


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument(
        "--json", action="store_true", help="as JSON, which `plough plan --machine` reads on any machine"
    )
    parser.add_argument("--root", default="/", help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    machine = probe(options.root)
    emit(machine.to_json() if options.json else render(machine))
    return 0


def render(machine: Machine) -> str:
    limits, software = machine.limits, machine.software
    smt = max(len(core.cpus) for core in machine.cores)
    rows = [
        ("host", machine.hostname),
        ("processor", f"{machine.model_name} ({machine.architecture})"),
        ("sockets", str(len(machine.sockets))),
        ("cores", f"{len(machine.cores)} physical, {smt} logical CPU{'s' * (smt > 1)} each"),
        ("may use", f"CPUs {ranges(limits.cpus)}"),
        ("CPU quota", "none" if limits.quota_cpus is None else f"{limits.quota_cpus:g} CPUs (cgroup)"),
        ("memory", _gib(machine.memory_bytes)),
        ("memory limit", "none" if limits.memory_bytes is None else f"{_gib(limits.memory_bytes)} (cgroup)"),
        ("instructions", ", ".join(machine.isa) or "none that matter here"),
        ("runs in", ", ".join(filter(None, (machine.hypervisor, machine.container))) or "bare metal"),
        ("tcmalloc", software.tcmalloc or "not found"),
        ("jemalloc", software.jemalloc or "not found"),
        ("Intel OpenMP", software.intel_openmp or "not found"),
        ("mpirun", _mpi(software)),
    ]
    nodes = []
    for node in machine.nodes:
        cpus = [cpu for core in machine.cores if core.node == node.id for cpu in core.cpus]
        memory = "unknown" if node.memory_bytes is None else _gib(node.memory_bytes)
        nodes.append((str(node.id), ranges(cpus) if cpus else "none (memory only)", memory))
    caches = [
        (f"L{cache.level} {cache.type}", f"{cache.instances} x {cache.size_bytes >> 10} KiB",
         f"shared by {cache.cpus_per_instance}")
        for cache in machine.caches
    ]  # fmt: skip
    return "\n".join(
        [
            table(("", ""), rows).lstrip("\n"),
            table(("NUMA node", "CPUs", "memory"), nodes),
            table(("cache", "size", "CPUs"), caches),
        ]
    ).rstrip()


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _mpi(software: Software) -> str:
    if software.mpirun is None:
        return "not found"
    return f"{software.mpirun} ({software.mpi_flavour or 'of a kind Plough does not know'})"
