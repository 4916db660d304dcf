"""What `plough tune` measured, as a file: for which machine and ranks it holds, and where `plough run` looks.

Reads and writes files; starts nothing, and knows no torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from plough.contract import Env
from plough.errors import PloughError
from plough.files import write_text_atomic
from plough.plan import Tuned
from plough.topology.machine import Machine
from plough.tune.candidates import Setting, Verdict
from plough.tune.workload import Workload

__all__ = [
    "FORMAT",
    "Found",
    "Measured",
    "Record",
    "file_name",
    "find",
    "load",
    "machine_key",
    "save",
    "tuned_folder",
]

FORMAT = 1


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting while searching: milliseconds of a step (median, 10 % and 90 %), or what went wrong."""

    setting: Setting
    ms: float | None = None
    p10: float | None = None
    p90: float | None = None
    steps: int = 0
    error: str | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything `plough tune` found out, and when and where.

    machine: `machine_key`. ranks: on this host. best: of the search; verdict: its meeting with the default,
    None if there was none. chosen: what a job is to be started with: the best, or the default.
    """

    format: int = FORMAT
    plough: str
    date: str
    host: str
    machine: str
    model_name: str
    ranks: int
    launcher: str
    workload: Workload
    title: str
    parameters: int
    backend: str | None
    versions: dict[str, str]
    default: Setting
    best: Setting
    verdict: Verdict | None
    chosen: Setting
    measured: tuple[Measured, ...]
    fixed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def tuned(self) -> Tuned:
        return self.chosen.tuned(self.default, f"tuned on {self.date[:10]} with {self.title}")

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """path, tuned: of the newest record that fits, if there is one. notes: what was passed over, and why."""

    path: Path | None = None
    tuned: Tuned | None = None
    notes: tuple[str, ...] = ()


def tuned_folder(env: Mapping[str, str]) -> Path | None:
    """`tuned` in Plough's folder for settings of this user; None for a user without a home."""
    base = env.get(Env.XDG_CONFIG_HOME, "")
    if base.startswith("/"):  # anything else is to be ignored, by the standard
        return Path(base) / "plough" / "tuned"
    try:
        return Path.home() / ".config" / "plough" / "tuned"
    except RuntimeError:
        return None


def machine_key(machine: Machine) -> str:
    """Equal for machines on which the same setting is best: processor, cores, and what of them is ours."""
    limits = machine.limits
    nature = (machine.architecture, machine.model_name, machine.cores, limits.cpus, limits.quota_cpus)
    return hashlib.sha256(msgspec.json.encode(nature)).hexdigest()[:16]


def file_name(machine: Machine, ranks: int) -> str:
    """One file for each machine and number of ranks: measuring anew replaces what was measured before."""
    model = re.sub(r"[^a-z0-9]+", "-", machine.model_name.lower()).strip("-")[:40].strip("-")
    return f"{model or 'cpu'}-{machine_key(machine)}-{ranks}-rank{'s' * (ranks > 1)}.json"


def save(record: Record, path: Path) -> None:
    """Write it whole or not at all, making the folder. Raises PloughError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PloughError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    write_text_atomic(path, record.to_json() + "\n")


def load(path: Path) -> Record:
    """Read what `save` wrote. Raises PloughError naming the file, and the item at fault."""
    try:
        text = path.read_bytes()
        written = msgspec.json.decode(text, type=_Format).format
        if written != FORMAT:
            raise PloughError(f"{path} was written by another version of Plough (format {written})")
        return msgspec.json.decode(text, type=Record)
    except OSError as error:
        raise PloughError(f"{path}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PloughError(f"{path} is not what `plough tune` wrote: {error}") from error


class _Format(msgspec.Struct):
    """The one field that every version of the file has."""

    format: int


def find(folder: Path | None, machine: Machine, ranks: int) -> Found:
    """The newest record in the folder for this machine and so many ranks on it.

    Files are known by what is in them, whatever they are called. One that cannot be used, or is about
    this host as it was before, is passed over with a note.
    """
    records: list[tuple[Path, Record]] = []
    notes = []
    for path in _files(folder):
        try:
            records.append((path, load(path)))
        except PloughError as error:
            notes.append(f"{error.cause}; ignored. `plough tune` measures anew")
    of_so_many = [(path, record) for path, record in records if record.ranks == ranks]
    here = [(path, record) for path, record in of_so_many if record.machine == machine_key(machine)]
    if here:
        path, newest = max(here, key=lambda one: one[1].date)
        return Found(path=path, tuned=newest.tuned, notes=tuple(notes))
    notes += [
        f"{path} was measured when {machine.hostname} had other cores for this; ignored. "
        "`plough tune` measures anew"
        for path, record in of_so_many
        if record.host == machine.hostname
    ]
    return Found(notes=tuple(notes))


def _files(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        return
    try:
        yield from sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        return  # no folder: nothing was ever tuned
