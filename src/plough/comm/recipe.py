"""What is compiled, in which words, and under which key it is kept. Pure: nothing here starts a process.

All instruction sets go into one library and are chosen at run time, so a key knows the kind of machine and
not the machine. Must not know torch, nor where things are kept.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = [
    "CORE_FLAGS",
    "EXTENSION",
    "Compiler",
    "Paths",
    "Step",
    "Target",
    "core_flags",
    "digest",
    "extension_prefix",
    "extension_steps",
    "first_error",
    "instruction_sets",
    "read_sources",
    "torch_standard",
    "translation_units",
]

EXTENSION = "plough_ccl"
"""The Python module's name, and its file's."""

SUFFIXES = (".cpp", ".h", ".hpp", ".inl")
COMMON_FLAGS = ("-fPIC", "-ffp-contract=off", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread")
CORE_FLAGS = ("-std=c++17", "-O3", *COMMON_FLAGS)
TORCH_FLAGS = (
    "-O2",
    *COMMON_FLAGS,
    f"-DTORCH_EXTENSION_NAME={EXTENSION}",
    "-DTORCH_API_INCLUDE_EXTENSION_H",
)
# -lrt and -ldl: shm_open and dlopen, where the C library is older than 2.34.
LINK_FLAGS = ("-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10", "-lrt", "-ldl")

# Instruction set -> what its file, core/reduce_<set>.cpp, is compiled with on x86-64; empty elsewhere by #if.
X86_FLAGS = {
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": (
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c"),
        "-mprefer-vector-width=512",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """`argv`: the words that start it (`ccache g++`); `version`: the first line of its --version."""

    argv: tuple[str, ...]
    version: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the extension must fit: torch's version, ABI and C++ standard, Python's ABI, the processor."""

    torch: str
    cxx11_abi: bool
    standard: str
    soabi: str
    machine: str


@dataclass(frozen=True, kw_only=True)
class Paths:
    """Where headers and libraries lie. Not part of a key: the same torch may be installed in two places."""

    includes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One call of the compiler: argv, inputs (earlier outputs), libraries, -o output.

    source: the file an error is about. Inputs and output are names in the folder of the build.
    """

    source: str
    argv: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    output: str

    def command(self, compiler: Sequence[str], folder: Path) -> list[str]:
        inputs = [str(folder / name) for name in self.inputs]
        return [*compiler, *self.argv, *inputs, *self.libraries, "-o", str(folder / self.output)]


def read_sources(folder: Path) -> dict[str, bytes]:
    """Every source and header below `folder`, by its name relative to it."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def translation_units(names: Iterable[str]) -> list[str]:
    """What the extension consists of: core/*.cpp, then torch/*.cpp."""
    ours = [name for name in names if re.fullmatch(r"(core|torch)/[^/]+\.cpp", name)]
    return sorted(ours)


def torch_standard(version: str) -> str:
    """The C++ standard torch's own builder uses with that version's headers; from 2.14 they insist on it."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return "c++17" if found and (int(found[1]), int(found[2])) < (2, 13) else "c++20"


def core_flags(name: str, machine: str) -> tuple[str, ...]:
    """What a file of core/ is compiled with."""
    return (*CORE_FLAGS, *X86_FLAGS.get(_instruction_set(name), ())) if machine == "x86_64" else CORE_FLAGS


def instruction_sets(names: Iterable[str], machine: str) -> tuple[str, ...]:
    """The sets that an extension made of these files can choose from, the plainest first."""
    if machine == "x86_64":
        return ("generic", *sorted({_instruction_set(name) for name in names} & set(X86_FLAGS)))
    return ("neon",) if machine == "aarch64" else ("generic",)


def extension_prefix(sources: Mapping[str, bytes], target: Target) -> str:
    """The part of the key that does not depend on the compiler."""
    parts: list[str | bytes] = [EXTENSION, target.torch, str(target.cxx11_abi), target.soabi, target.machine]
    for name in sorted(sources):
        parts += [name, sources[name]]
    for name in translation_units(sources):
        parts += [name, *_flags(name, target)]
    return digest(*parts, *LINK_FLAGS)


def extension_steps(names: Iterable[str], target: Target, paths: Paths) -> tuple[tuple[Step, ...], Step]:
    """The objects, in any order, and then the link. Run in the folder of the sources."""
    units = translation_units(names)
    ours = [name for name in units if not name.startswith("torch/")]
    with_torch = [name for name in units if name.startswith("torch/")]
    quotes = ("-iquote", ".", "-iquote", "core")  # not -I: <torch/...> is torch's
    objects = [
        Step(source=name, argv=(*_flags(name, target), *quotes, "-c", name), output=_object(name))
        for name in ours
    ]
    if with_torch:
        # All in one go: reading torch's headers takes far longer than compiling what is ours.
        *before, last = with_torch
        includes = [word for path in paths.includes for word in ("-isystem", path)]
        joined = [word for name in before for word in ("-include", name)]
        argv = (*_flags(last, target), *quotes, *includes, *joined, "-c", last)
        objects.append(Step(source=last, argv=argv, output=_object(last)))
        objects.insert(0, objects.pop())  # the longest first
    # An inline function of a header is in many objects, and the linker keeps the first: a processor without
    # AVX-512 must not get the one compiled for it.
    ordered = sorted(objects, key=lambda step: _instruction_set(step.source) in X86_FLAGS)
    places = [word for path in paths.libraries for word in (f"-L{path}", f"-Wl,-rpath,{path}")]
    link = Step(
        source=f"{EXTENSION}.so",
        argv=("-shared", "-pthread"),
        inputs=tuple(step.output for step in ordered),
        libraries=(*places, *LINK_FLAGS),
        output=f"{EXTENSION}.so",
    )
    return tuple(objects), link


def digest(*parts: str | bytes) -> str:
    """A short hash of the parts and of where one ends and the next begins."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        found.update(b"%d:" % len(data))
        found.update(data)
    return found.hexdigest()[:16]


def first_error(output: str) -> str:
    """The line of a compiler's or linker's output that says what is wrong, else its last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for sign in (r"\berror:(?! ld returned| linker command failed)", r"undefined reference", r"cannot find"):
        for line in lines:
            if re.search(sign, line):
                return line
    return lines[-1] if lines else "the compiler said nothing"


def _object(name: str) -> str:
    return name.replace("/", "_")[: -len(".cpp")] + ".o"


def _instruction_set(name: str) -> str:
    return PurePosixPath(name).stem.removeprefix("reduce_") if name.startswith("core/reduce_") else ""


def _flags(name: str, target: Target) -> tuple[str, ...]:
    # Strings pass between core and torch files: all must mean the same std::string.
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(target.cxx11_abi)}"
    if name.startswith("torch/"):
        return (f"-std={target.standard}", *TORCH_FLAGS, abi)
    return (*core_flags(name, target.machine), abi)
