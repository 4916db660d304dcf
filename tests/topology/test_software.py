"""Libraries and launchers, in environments made of empty files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from plough.topology.machine import Software
from plough.topology.software import find_software, mpi_flavour

ELF64 = b"\x7fELF\x02\x01\x01"


def library(path: Path, header: bytes = ELF64) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header)
    return str(path)


def program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def find(tmp_path: Path, **environ: str) -> Software:
    return find_software(
        environ={"PATH": str(tmp_path / "path"), **environ},
        prefix=tmp_path / "venv",
        executable=tmp_path / "venv/bin/python",
        system=tmp_path / "system",
    )


def test_nothing_installed(tmp_path: Path) -> None:
    assert find(tmp_path) == Software()


def test_a_captured_tree_has_no_software(tmp_path: Path) -> None:
    assert find_software(tmp_path) == Software()


def test_multiarch_libraries(tmp_path: Path) -> None:
    where = tmp_path / f"system/usr/lib/{os.uname().machine}-linux-gnu"
    minimal = library(where / "libtcmalloc_minimal.so.4")
    library(where / "libtcmalloc.so.4")
    jemalloc = library(where / "libjemalloc.so.2")
    assert find(tmp_path) == Software(tcmalloc=minimal, jemalloc=jemalloc)


def test_own_environment_before_the_system(tmp_path: Path) -> None:
    library(tmp_path / "system/usr/lib64/libtcmalloc.so.4")
    own = library(tmp_path / "venv/lib/libtcmalloc.so.4")
    assert find(tmp_path).tcmalloc == own
    conda = library(tmp_path / "conda/lib/libtcmalloc.so.4")
    assert find(tmp_path, CONDA_PREFIX=str(tmp_path / "conda")).tcmalloc == conda


@pytest.mark.parametrize(
    "header", [b"", b"\x7fELF\x01", b"INPUT(libtcmalloc)"], ids=["empty", "32 bits", "ld script"]
)
def test_what_cannot_be_preloaded_is_passed_over(tmp_path: Path, header: bytes) -> None:
    library(tmp_path / "venv/lib/libtcmalloc_minimal.so.4", header)
    (tmp_path / "venv/lib/libjemalloc.so.2").symlink_to("gone")
    good = library(tmp_path / "system/usr/local/lib/libtcmalloc_minimal.so.4")
    assert find(tmp_path) == Software(tcmalloc=good)


def test_intel_openmp(tmp_path: Path) -> None:
    oneapi = library(tmp_path / "system/opt/intel/oneapi/compiler/latest/lib/libiomp5.so")
    assert find(tmp_path).intel_openmp == oneapi
    own = library(tmp_path / "venv/lib/libiomp5.so")
    assert find(tmp_path).intel_openmp == own


def test_mpirun_of_an_environment_wins_over_path(tmp_path: Path) -> None:
    on_path = program(tmp_path / "path/mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    own = program(tmp_path / "venv/bin/mpirun")
    for name in ("mpiexec.hydra", "impi_info"):
        program(tmp_path / "venv/bin" / name)
    # A python that is not in an environment: its neighbour is the system's, and PATH decides.
    assert find(tmp_path) == Software(mpirun=str(on_path), mpi_flavour="openmpi")
    (tmp_path / "venv/pyvenv.cfg").touch()
    assert find(tmp_path) == Software(mpirun=str(own), mpi_flavour="intel")


@pytest.mark.parametrize(
    ("answer", "flavour"),
    [
        ("Intel(R) MPI Library for Linux* OS, Version 2021.16", "intel"),
        ("HYDRA build details:\n    Version: 4.0.2", "mpich"),
        ("mpirun (Open MPI) 5.0.3", "openmpi"),
        ("prterun (PRRTE) 3\nReport bugs to https://www.open-mpi.org/", "openmpi"),
        ("something else", None),
    ],
)
def test_mpirun_is_asked_when_nothing_else_tells(tmp_path: Path, answer: str, flavour: str | None) -> None:
    assert mpi_flavour(program(tmp_path / "mpirun", f"cat <<'END'\n{answer}\nEND")) == flavour


def test_a_hanging_or_broken_mpirun_has_no_flavour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plough.topology.software.VERSION_TIMEOUT_S", 0.2)
    assert mpi_flavour(program(tmp_path / "mpirun", "exec sleep 30")) is None
    broken = program(tmp_path / "mpirun")
    broken.write_text("#!/no/such/interpreter\n")
    assert mpi_flavour(broken) is None


def test_flavour_from_files_starts_nothing(tmp_path: Path) -> None:
    script = f"touch {tmp_path}/started"
    for name in ("mpirun.openmpi", "mpirun.mpich"):  # Debian with both: the link's target tells
        program(tmp_path / name, script)
    program(tmp_path / "ompi_info")
    program(tmp_path / "mpichversion")
    (tmp_path / "mpirun").symlink_to("mpirun.mpich")
    assert mpi_flavour(tmp_path / "mpirun") == "mpich"
    (tmp_path / "mpirun").unlink()
    (tmp_path / "mpirun").symlink_to("mpirun.openmpi")
    assert mpi_flavour(tmp_path / "mpirun") == "openmpi"
    program(tmp_path / "mine/mpirun", script)
    program(tmp_path / "mine/mpichversion")
    assert mpi_flavour(tmp_path / "mine/mpirun") == "mpich"
    assert not (tmp_path / "started").exists()
