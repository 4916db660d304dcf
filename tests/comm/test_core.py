"""The core without torch: every TEST of core/*.cpp here, plain and under the compiler's sanitizers.

Most ranks are threads of one process, so that the thread sanitizer sees what one does to another.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from plough.comm.build import SOURCES
from plough.comm.recipe import core_flags

HERE = Path(__file__).with_name("core")
CORE = SOURCES / "core"
COMMON = ("-std=c++17", "-g", "-pthread", "-ffp-contract=off", "-Wall", "-Wextra")
# Without optimisation the address sanitizer compiles in a third of the time.
VARIANTS = {
    "plain": ("-O1",),
    "thread": ("-O1", "-fsanitize=thread"),
    "address": ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
}
# What the thread sanitizer cannot see, or what has no threads.
NOT_SEEN = re.compile(r"process_|.*_kernel|layout_|parts_between_hosts")
TIMEOUT_S = 300

Program = Callable[[str, str], Path]


def names() -> list[str]:
    sources = sorted(HERE.glob("*_test.cpp"))
    return [name for source in sources for name in re.findall(r"^TEST\((\w+)\)", source.read_text(), re.M)]


def cases() -> list[tuple[str, str]]:
    return [
        (variant, name)
        for variant in VARIANTS
        for name in names()
        if variant != "thread" or not NOT_SEEN.match(name)
    ]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of a variant, `core` or `reduce`; compiled when it is first asked for."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ to compile the core with")
    folder = tmp_path_factory.mktemp("core")
    made: dict[tuple[str, str], Path] = {}

    def run(*argv: str) -> None:
        ended = subprocess.run([compiler, *argv], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        assert "warning:" not in ended.stderr, ended.stderr

    def compile_all(variant: str) -> None:
        flags = VARIANTS[variant]
        needs(compiler, flags, folder)

        def compile_one(source: Path) -> Path:
            output = folder / f"{variant}-{source.stem}.o"
            # Once with all instruction sets, as they are shipped; the sanitizers need but one.
            shipped = variant == "plain" and source.name.startswith("reduce_") and source.parent == CORE
            own = core_flags(f"core/{source.name}", platform.machine()) if shipped else (*flags, *COMMON)
            run(*own, f"-I{CORE}", "-c", str(source), "-o", str(output))
            return output

        # The slowest first.
        sources = sorted(
            [*CORE.glob("*.cpp"), *HERE.glob("*.cpp")], key=lambda path: "reduce" not in path.name
        )
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
            objects = list(workers.map(compile_one, sources))
        of_reduce = [path for path in objects if re.search(r"-(reduce|types)", path.name)]
        of_core = [path for path in objects if not path.name.endswith("-reduce_test.o")]
        for what, parts in (("core", of_core), ("reduce", of_reduce)):
            made[variant, what] = folder / f"{variant}-{what}"
            run(*flags, "-pthread", *map(str, parts), "-ldl", "-o", str(made[variant, what]))

    def get(variant: str, what: str) -> Path:
        if (variant, what) not in made:
            compile_all(variant)
        return made[variant, what]

    return get


def needs(compiler: str, flags: tuple[str, ...], folder: Path) -> None:
    """Skips where the sanitizer is not installed, or does not run on this kernel."""
    source, nothing = folder / "nothing.cpp", folder / "nothing"
    source.write_text("int main() {}\n")
    made = subprocess.run([compiler, *flags, str(source), "-o", str(nothing)], capture_output=True)
    if made.returncode != 0 or subprocess.run([str(nothing)], capture_output=True).returncode != 0:
        pytest.skip(f"{' '.join(flags)} does not work here")


def run_program(argv: list[str]) -> None:
    ended = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S
    )
    assert ended.returncode == 0, ended.stdout[-8000:]


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        pytest.param(variant, name, marks=[pytest.mark.slow] if variant != "plain" else [])
        for variant, name in cases()
    ],
)
def test_core(program: Program, variant: str, name: str) -> None:
    run_program([str(program(variant, "core")), name])


@pytest.mark.parametrize("variant", ["plain", pytest.param("address", marks=pytest.mark.slow)])
def test_reduce(program: Program, variant: str) -> None:
    run_program([str(program(variant, "reduce"))])


def test_every_test_is_listed(program: Program) -> None:
    listed = subprocess.run([program("plain", "core"), "--list"], capture_output=True, text=True, check=True)
    assert sorted(listed.stdout.split()) == sorted(names())
