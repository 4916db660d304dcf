"""`plough build`: what it says and does, with a compiler of our own that answers at once."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from plough.comm.build import Product
from plough.comm.oneccl import NotUsable, OneCcl
from plough.comm.recipe import Step
from plough.contract import Env
from tests.cli.conftest import Plough, Said

COMPILER = """\
#!/bin/sh
[ "$1" = --version ] && { echo "g++ (Test) 12.3.0"; exit; }
while [ "$1" != -o ]; do shift; done
head -c 2000000 /dev/zero > "$2"
"""


def extension() -> Product:
    """Two files, and a key of zeros."""
    units = ("core_a", "torch b")
    objects = tuple(Step(source=f"{one}.cpp", argv=("-c", f"{one}.cpp"), output=f"{one}.o") for one in units)
    file = "plough_ccl.so"
    link = Step(source=file, argv=("-shared",), inputs=tuple(step.output for step in objects), output=file)
    return Product(
        title="the ccl backend for torch 2.13.0",
        file=file,
        prefix="0" * 16,
        folder=Path("/"),
        steps=lambda: (objects, link),
        instructions=("generic", "avx2"),
        estimate="a minute or two",
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler and a cache; oneCCL is not installed."""
    (tmp_path / "g++").write_text(COMPILER)
    (tmp_path / "g++").chmod(0o755)
    monkeypatch.setenv(Env.CXX, str(tmp_path / "g++"))
    monkeypatch.setenv(Env.PLOUGH_CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.setattr("plough.comm.build.extension", extension)
    monkeypatch.setattr(
        "plough.cli.build.find_oneccl", lambda: NotUsable("oneCCL is not installed", "get it")
    )
    return tmp_path


@pytest.fixture
def oneccl(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = OneCcl(version="2021.16.2", library=Path("/lib/libccl.so.1"), include=Path("/include"))
    monkeypatch.setattr("plough.cli.build.find_oneccl", lambda: found)


def settled(said: Said, here: Path) -> str:
    text = f"{said.err}--\n{said.out}".replace(str(here), "HERE")
    text = re.sub(r"\b[0-9a-f]{16}-", "KEY-", re.sub(r"-[0-9a-f]{8}\b", "-COMPILER", text))
    return re.sub(r"(?<=in )\d+(?= s)|(?<=\"seconds\": )[\d.]+", "N", text)


def test_builds_and_then_finds(plough: Plough, here: Path, snapshot: SnapshotAssertion) -> None:
    for _ in range(2):
        said = plough("build")
        assert said.code == 0
        assert settled(said, here) == snapshot


def test_with_oneccl(plough: Plough, here: Path, oneccl: None, snapshot: SnapshotAssertion) -> None:
    said = plough("build")
    assert said.code == 0
    assert settled(said, here) == snapshot


def test_force(plough: Plough, here: Path) -> None:
    plough("build")
    assert "there already" in plough("build").out
    assert "there already" not in plough("build", "--force").out


def test_json(plough: Plough, here: Path, oneccl: None, snapshot: SnapshotAssertion) -> None:
    said = plough("build", "--json", "--clean")
    assert said.code == 0
    assert settled(said, here) == snapshot
    found = json.loads(said.out)
    assert found["builds"][0]["fresh"]
    assert os.path.getsize(found["builds"][0]["path"]) == found["builds"][0]["bytes"]
    assert not json.loads(plough("build", "--json").out)["builds"][0]["fresh"]


@pytest.mark.parametrize("words", [(), ("--force",), ("--json",), ("--clean",)])
def test_dry_run(words: tuple[str, ...], plough: Plough, here: Path, snapshot: SnapshotAssertion) -> None:
    plough("build")
    older(here)
    before = tree(here)
    said = plough("build", "--dry-run", *words)
    assert (said.code, said.err) == (0, "")
    assert settled(said, here) == snapshot
    assert tree(here) == before


def test_dry_run_at_first(plough: Plough, here: Path, snapshot: SnapshotAssertion) -> None:
    said = plough("build", "--dry-run")
    assert (said.code, said.err) == (0, "")
    assert settled(said, here) == snapshot
    assert not (here / "cache").exists()


def test_clean(plough: Plough, here: Path, snapshot: SnapshotAssertion) -> None:
    plough("build")
    (kept,) = (here / "cache/ccl").glob("0000*")
    older(here)
    said = plough("build", "--clean")
    assert said.code == 0
    assert settled(said, here) == snapshot
    assert sorted(os.listdir(here / "cache/ccl")) == [kept.name, "lock"]
    assert plough("build", "--clean").out.splitlines()[-1].endswith("nothing: there is nothing else")


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--force",)])
def test_no_compiler(
    words: tuple[str, ...],
    plough: Plough,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.delenv(Env.CXX)
    monkeypatch.setattr("plough.comm.build.COMPILERS", ())
    said = plough("build", *words)
    assert (said.code, said.out) == (2, "")
    assert said.err == snapshot(name="no compiler")


def test_no_compiler_and_none_needed(plough: Plough, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plough("build")
    monkeypatch.delenv(Env.CXX)
    monkeypatch.setattr("plough.comm.build.COMPILERS", ())
    said = plough("build")
    assert said.code == 0
    assert "there already" in said.out
    assert plough("build", "--dry-run").code == 0
    assert plough("build", "--force").code == 2


def test_a_folder_others_can_write(plough: Plough, here: Path, snapshot: SnapshotAssertion) -> None:
    (here / "cache").mkdir()
    (here / "cache").chmod(0o777)
    said = plough("build")
    assert (said.code, said.out) == (2, "")
    assert settled(said, here) == snapshot


def older(here: Path) -> None:
    """What another torch's build and a failed one leave."""
    (here / "cache/ccl/77-8888").mkdir()
    (here / "cache/ccl/77-8888/plough_ccl.so").write_bytes(b"0" * 3_000_000)
    (here / "cache/ccl/99-8888.log").write_text("words")


def tree(here: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mtime_ns) for path in here.rglob("*"))
