"""What is compiled, how, and that every change that matters has a key of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plough.comm.recipe import (
    Paths,
    Step,
    Target,
    core_flags,
    digest,
    extension_prefix,
    extension_steps,
    first_error,
    instruction_sets,
    read_sources,
    torch_standard,
    translation_units,
)

TARGET = Target(torch="2.13.0+cpu", cxx11_abi=True, standard="c++20", soabi="cpython-311", machine="x86_64")
SOURCES = {
    "core/reduce_avx2.cpp": b"2",
    "core/reduce_avx512.cpp": b"5",
    "core/reduce_generic.cpp": b"g",
    "core/types.h": b"h",
    "oneccl/link.cpp": b"o",
    "torch/module.cpp": b"m",
}
NAMES = ["core/reduce_avx2.cpp", "core/reduce_avx512.cpp", "core/reduce_generic.cpp", "torch/module.cpp"]


def test_reads_sources_and_headers_and_nothing_else(tmp_path: Path) -> None:
    for name in [*SOURCES, "core/kernels.inl", "torch/a.hpp", "core/notes.md", "core/a.o"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = read_sources(tmp_path)
    assert list(found) == sorted([*SOURCES, "core/kernels.inl", "torch/a.hpp"])
    assert found["core/kernels.inl"] == b"core/kernels.inl"


def test_translation_units() -> None:
    assert translation_units([*reversed(SOURCES), "core/deep/x.cpp", "x.cpp"]) == NAMES


@pytest.mark.parametrize(
    ("version", "standard"),
    [
        ("2.11.0", "c++17"),
        ("2.12.1+cu126", "c++17"),
        ("2.13.0+cpu", "c++20"),
        ("2.14.0a0+git1", "c++20"),
        ("3.0", "c++20"),
        ("main", "c++20"),
    ],
)
def test_torch_standard(version: str, standard: str) -> None:
    assert torch_standard(version) == standard


class TestKey:
    def test_is_the_same_for_the_same(self) -> None:
        turned = dict(reversed(SOURCES.items()))
        assert extension_prefix(SOURCES, TARGET) == extension_prefix(turned, TARGET)

    @pytest.mark.parametrize(
        "target",
        [
            replace(TARGET, torch="2.13.1+cpu"),
            replace(TARGET, cxx11_abi=False),
            replace(TARGET, standard="c++17"),
            replace(TARGET, soabi="cpython-312"),
            replace(TARGET, machine="aarch64"),
        ],
    )
    def test_changes_with_the_target(self, target: Target) -> None:
        assert extension_prefix(SOURCES, target) != extension_prefix(SOURCES, TARGET)

    @pytest.mark.parametrize("name", SOURCES)
    def test_changes_with_any_source(self, name: str) -> None:
        others = {other: data for other, data in SOURCES.items() if other != name}
        keys = {
            extension_prefix(sources, TARGET)
            for sources in (
                SOURCES,
                others,
                {**SOURCES, name: SOURCES[name] + b" "},
                {**others, name + "x": SOURCES[name]},
            )
        }
        assert len(keys) == 4

    def test_changes_with_flags(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = extension_prefix(SOURCES, TARGET)
        monkeypatch.setattr("plough.comm.recipe.LINK_FLAGS", ("-ltorch",))
        assert extension_prefix(SOURCES, TARGET) != before

    @given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
    def test_digest_tells_parts_apart(self, one: list[str], other: list[str]) -> None:
        assert (digest(*one) == digest(*other)) == (one == other)

    def test_digest_takes_any_file_name(self) -> None:
        assert digest("\udcff") != digest("ÿ")


class TestSteps:
    def steps(self, machine: str = "x86_64") -> tuple[tuple[Step, ...], Step]:
        paths = Paths(includes=("/torch/include", "/python"), libraries=("/torch/lib",))
        return extension_steps(SOURCES, replace(TARGET, machine=machine), paths)

    def test_each_unit_once(self) -> None:
        objects, last = self.steps()
        # Those that need torch's headers are compiled in one go, the last of them taking in the others.
        taken_in = [objects[0].argv[i + 1] for i, word in enumerate(objects[0].argv) if word == "-include"]
        assert sorted([*taken_in, *(step.source for step in objects)]) == sorted(NAMES)
        assert sorted(last.inputs) == sorted(step.output for step in objects)
        assert len(set(last.inputs)) == len(objects)

    def test_only_torch_files_see_torch(self) -> None:
        for step in self.steps()[0]:
            is_torchs = step.source.startswith("torch/")
            assert ("/torch/include" in step.argv) == is_torchs
            assert ("-std=c++20" in step.argv) == is_torchs
            assert ("-std=c++17" in step.argv) != is_torchs
            assert "-D_GLIBCXX_USE_CXX11_ABI=1" in step.argv
            assert "-ffp-contract=off" in step.argv

    def test_instruction_sets_have_files_of_their_own(self) -> None:
        flags = {step.source: " ".join(step.argv) for step in self.steps()[0]}
        avx2, avx512 = flags.pop("core/reduce_avx2.cpp"), flags.pop("core/reduce_avx512.cpp")
        assert "-mavx2 -mfma -mf16c" in avx2
        assert "-mavx512" not in avx2
        assert "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c" in avx512
        assert not any("-mavx" in argv or "-mfma" in argv for argv in flags.values())

    def test_inline_functions_are_taken_from_the_plainest(self) -> None:
        assert self.steps()[1].inputs[-2:] == ("core_reduce_avx2.o", "core_reduce_avx512.o")

    @pytest.mark.parametrize("machine", ["aarch64", "ppc64le"])
    def test_elsewhere_no_flag_is_x86s(self, machine: str) -> None:
        assert not any(word.startswith("-m") for step in self.steps(machine)[0] for word in step.argv)

    def test_command(self) -> None:
        step = Step(source="a.cpp", argv=("-c",), inputs=("a.o",), libraries=("-lx",), output="a.so")
        assert step.command(["ccache", "g++"], Path("/b")) == [
            *("ccache", "g++", "-c", "/b/a.o", "-lx", "-o", "/b/a.so")
        ]


@pytest.mark.parametrize(
    ("names", "machine", "sets"),
    [
        (NAMES, "x86_64", ("generic", "avx2", "avx512")),
        (["core/a.cpp"], "x86_64", ("generic",)),
        (NAMES, "aarch64", ("neon",)),
        (NAMES, "riscv64", ("generic",)),
    ],
)
def test_instruction_sets(names: list[str], machine: str, sets: tuple[str, ...]) -> None:
    assert instruction_sets(names, machine) == sets


def test_core_flags_of_another_file() -> None:
    assert core_flags("core/avx2.cpp", "x86_64") == core_flags("core/reduce_avx2.cpp", "aarch64")


OUTPUTS = {
    "a mistake": (
        "core/a.cpp: In function 'int f()':\ncore/a.cpp:3:5: error: 'x' was not declared\n   3 | x;\n",
        "core/a.cpp:3:5: error: 'x' was not declared",
    ),
    "a header": (
        "a.cpp:1:10: fatal error: b.h: No such file or directory\ncompilation terminated.\n",
        "a.cpp:1:10: fatal error: b.h: No such file or directory",
    ),
    "a symbol": (
        "ld: a.o: in function `f':\na.cpp:(.text+0x9): undefined reference to `g()'\n"
        "collect2: error: ld returned 1 exit status\n",
        "a.cpp:(.text+0x9): undefined reference to `g()'",
    ),
    "a library": (
        "/usr/bin/ld: cannot find -lc10: No such file\n"
        "clang++: error: linker command failed with exit code 1\n",
        "/usr/bin/ld: cannot find -lc10: No such file",
    ),
    "memory": (
        "g++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.\n",
        "g++: fatal error: Killed signal terminated program cc1plus",
    ),
    "something odd": ("one\ntwo\n\n", "two"),
    "nothing": ("\n", "the compiler said nothing"),
}


@pytest.mark.parametrize("case", sorted(OUTPUTS))
def test_first_error(case: str) -> None:
    output, line = OUTPUTS[case]
    assert first_error(output) == line
