"""A measurement as text: cells for tables, and what one must know to read them. Pure; prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from plough.bench.result import Measured, Result, Setup, Timing
from plough.bench.sizes import size_name

__all__ = ["facts", "legend", "tables"]

LAUNCHERS = {
    "intel-mpi": "mpiexec.hydra",
    "openmpi": "Open MPI's mpirun",
    "slurm": "srun",
    "torchrun": "torch.distributed.run",
}


Column = tuple[str, list[str]]
"""Header and cells."""


def facts(setup: Setup) -> list[tuple[str, str]]:
    """(name, words): the machine first, then each backend, then what was left out."""
    hosts = setup.hosts[0] if len(setup.hosts) == 1 else f"{len(setup.hosts)} hosts"
    lines = [
        ("machine", f"{setup.model}, Linux {setup.kernel}"),
        ("ranks", f"{setup.ranks} on {hosts}, {_cores(setup.cores)}, started by {_launcher(setup)}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in setup.versions.items())),
    ]
    for name, said in setup.backends.items():
        lines.append(
            (name, ", ".join(f"{key} {said[key]}" for key in said if said[key] and key != "settings"))
        )
    lines.append(("date", setup.date))
    return lines + [("note", note) for note in setup.notes]


def legend(result: Result) -> list[str]:
    """What the columns mean."""
    backends = result.setup.backends
    lines = [
        "time: median of all repetitions; each from a barrier to the end of the call, on its slowest rank",
        "bus: bandwidth at that time, as nccl-tests define it",
    ]
    if "oneccl" in backends:
        lines += [
            "oneccl: called at its own C API, the others through torch.distributed. What torch takes for a",
            "    call, some microseconds, is missing from its times",
        ]
        if any(one.collective in ("gather", "scatter") for one in result.measured):
            lines.append("-: oneCCL has no gather and no scatter")
    if any(one.collective == "send_recv" for one in result.measured):
        lines.append("send_recv: half of the way there and back between the first and the last rank")
    return lines


def tables(result: Result) -> list[str]:
    """One for each collective and dtype, in the order measured. Three backends fit 80 columns."""
    backends = tuple(result.setup.backends)
    groups: dict[tuple[str, str | None], list[Measured]] = {}
    for one in result.measured:
        groups.setdefault((one.collective, one.dtype), []).append(one)
    return [
        _table(collective if dtype is None else f"{collective}, {dtype}", group, backends)
        for (collective, dtype), group in groups.items()
    ]


def _table(title: str, group: Sequence[Measured], backends: Sequence[str]) -> str:
    blocks: list[tuple[str, list[Column]]] = []
    if group[0].dtype is not None:
        blocks.append(("", [("size", [size_name(one.size) for one in group])]))
    blocks.append(("time, us", [(name, [_time(one.timing(name)) for one in group]) for name in backends]))
    if group[0].dtype is not None:
        columns = [(name, [_bandwidth(one.timing(name)) for one in group]) for name in backends]
        blocks.append(("bus, GB/s", columns))
    others = [name for name in backends if name != "ccl"] if "ccl" in backends else []
    if others:
        ratios = [(name, [_ratio(one.timing(name), one.timing("ccl")) for one in group]) for name in others]
        blocks.append(("time / ccl's", ratios))
    drawn = [_block(header, columns) for header, columns in blocks]
    return "\n".join([title, *("  " + "   ".join(parts).rstrip() for parts in zip(*drawn, strict=True))])


def _block(header: str, columns: Sequence[Column]) -> list[str]:
    """Its lines, all equally long: what the columns are, whose they are, and the cells to the right."""
    widths = [max(map(len, [name, *cells])) for name, cells in columns]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in zip(*([name, *cells] for name, cells in columns), strict=True)
    ]
    width = max(len(header), len(lines[0]))
    return [header.rjust(width), *(line.rjust(width) for line in lines)]


def _time(timing: Timing | None) -> str:
    return "-" if timing is None else _digits(timing.us.median)


def _bandwidth(timing: Timing | None) -> str:
    return "-" if timing is None or timing.busbw is None else _digits(timing.busbw)


def _ratio(other: Timing | None, ours: Timing | None) -> str:
    if other is None or ours is None or ours.us.median <= 0:
        return "-"
    return _digits(other.us.median / ours.us.median)


def _digits(value: float) -> str:
    """Three digits that matter, and never an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _cores(cores: Sequence[int]) -> str:
    numbers = Counter(cores)
    if len(numbers) > 1:
        return f"{min(cores)} to {max(cores)} cores each"
    only = cores[0]
    return "not bound to cores" if only == 0 else f"{only} core{'s' * (only > 1)} each"


def _launcher(setup: Setup) -> str:
    return LAUNCHERS.get(setup.launcher, setup.launcher)
