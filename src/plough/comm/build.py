"""Compile Plough's C++ at first use, once for all ranks of a host, and load it.

The compiler is started here and nowhere else. What to compile is `recipe`'s to say, where it is kept is
`cache`'s. Importing this module does not import torch; what needs it says so.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import msgspec

from plough.comm.cache import Cache, find_cache
from plough.comm.oneccl import OneCcl, compile_command, key_parts, require_oneccl
from plough.comm.recipe import (
    EXTENSION,
    Compiler,
    Paths,
    Step,
    Target,
    digest,
    extension_prefix,
    extension_steps,
    first_error,
    instruction_sets,
    read_sources,
    torch_standard,
)
from plough.contract import Env
from plough.errors import BuildError

__all__ = [
    "SOURCES",
    "Built",
    "Details",
    "Product",
    "build_extension",
    "build_oneccl_shim",
    "build_shared",
    "commands",
    "ensure",
    "existing",
    "extension",
    "find_compiler",
    "import_extension",
    "load_extension",
    "oneccl_product",
    "shared",
    "torch_target",
]

SOURCES = Path(__file__).with_name("csrc")
COMPILERS = ("g++", "c++", "clang++")
ONECCL_LINK = "oneccl_link"
DETAILS = "build.json"
LOG = "build.log"
VERSION_TIMEOUT_S = 30
WITHOUT = "choose `--ddp_backend gloo`, which needs no building"

Progress = Callable[[str], None]


class Details(msgspec.Struct, frozen=True, kw_only=True):
    """What is written beside a finished build, for people and for `plough build`."""

    title: str
    compiler: str
    machine: str
    seconds: float
    instructions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Product:
    """A library to be had: `title` for messages, `file` its name, `prefix` its key less the compiler's part.

    `steps` gives what runs side by side and what runs after; it is asked only when there is something to
    build. `folder`: where the commands run. `compiler`: its words, when it is not the user's to choose.
    `without`: how to do without the product.
    """

    title: str
    file: str
    prefix: str
    folder: Path
    steps: Callable[[], tuple[tuple[Step, ...], Step]]
    instructions: tuple[str, ...] = ()
    estimate: str = "a few seconds"
    compiler: tuple[str, ...] | None = None
    without: str = ""

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def key(self, compiler: Compiler) -> str:
        return f"{self.prefix}-{digest(compiler.version)[:8]}"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A finished library; `fresh` when it was built just now. `details` is None when none can be read."""

    path: Path
    fresh: bool
    details: Details | None

    @property
    def key(self) -> str:
        return self.path.parent.name


class _StepFailed(Exception):
    def __init__(self, step: Step, output: str) -> None:
        self.step, self.output = step, output


def tell(text: str) -> None:
    print(f"plough: {text}", file=sys.stderr, flush=True)


@functools.cache
def load_extension() -> ModuleType:
    """The compiled module `plough_ccl`, built if need be. Raises BuildError. Imports torch."""
    return import_extension(build_extension())


def build_extension(*, force: bool = False, progress: Progress = tell, sources: Path = SOURCES) -> Path:
    """The file of the compiled module, built if it is not there. Raises BuildError. Imports torch."""
    return ensure(extension(sources), force=force, progress=progress).path


def build_shared(
    name: str,
    argv: Sequence[str],
    key_parts: Sequence[str | bytes] = (),
    *,
    force: bool = False,
    progress: Progress = tell,
) -> Path:
    """The shared library NAME.so that `argv` makes once `-o FILE` is appended, built if it is not there.

    key_parts: what else it depends on, above all the contents of its sources. Raises BuildError.
    """
    return ensure(shared(name, argv, key_parts), force=force, progress=progress).path


def build_oneccl_shim(*, force: bool = False, progress: Progress = tell) -> Path:
    """The library `oneccl.OneCclShim` loads, built if it is not there. LaunchError if there is no oneCCL."""
    return ensure(oneccl_product(require_oneccl()), force=force, progress=progress).path


def import_extension(path: Path) -> ModuleType:
    """Import the module `plough_ccl` from its file, as often as one likes. Imports torch first."""
    import torch  # noqa: F401  its libraries must be in the process already

    if EXTENSION in sys.modules:
        return sys.modules[EXTENSION]
    loader = importlib.machinery.ExtensionFileLoader(EXTENSION, str(path))
    spec = importlib.util.spec_from_file_location(EXTENSION, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        hint = f"`plough build --force` builds it again; or {WITHOUT}"
        if "failed to map segment" in str(error):
            hint = f"its disk is mounted noexec: set {Env.PLOUGH_CACHE_DIR} to a folder on another"
        raise BuildError(f"{path} cannot be loaded: {error}", hint=hint) from error
    sys.modules[EXTENSION] = module
    return module


def extension(sources: Path = SOURCES) -> Product:
    """The Python extension made of core/*.cpp and torch/*.cpp below `sources`. Imports torch."""
    target, found = torch_target(), read_sources(sources)
    if not found:
        raise BuildError(
            f"there is no C++ in {sources}: this Plough is not whole", hint="install Plough again"
        )
    return Product(
        title=f"the ccl backend for torch {target.torch}",
        file=f"{EXTENSION}.so",
        prefix=extension_prefix(found, target),
        folder=sources,
        steps=lambda: extension_steps(found, target, _torch_paths()),
        instructions=instruction_sets(found, target.machine),
        estimate="a minute or two",
        without=WITHOUT,
    )


def shared(name: str, argv: Sequence[str], key_parts: Sequence[str | bytes] = ()) -> Product:
    """A library that takes one command; its first word is the compiler."""
    step = Step(source=name, argv=tuple(argv[1:]), output=f"{name}.so")
    return Product(
        title=name,
        file=f"{name}.so",
        prefix=digest(name, platform.machine(), *argv, "", *key_parts),
        folder=Path.cwd(),
        steps=lambda: ((), step),
        compiler=(argv[0],),
    )


def oneccl_product(found: OneCcl) -> Product:
    """The library between the links of hosts and this oneCCL, by the user's own compiler."""
    title, argv = f"the link over oneCCL {found.version}", compile_command(found)
    product = shared(ONECCL_LINK, argv, key_parts(found))
    without = f"set {Env.PLOUGH_CCL_TRANSPORT}=gloo to talk between hosts without it"
    return replace(product, title=title, compiler=None, without=without)


def torch_target() -> Target:
    """What the installed torch and this Python want of an extension. Imports torch."""
    import torch

    return Target(
        torch=torch.__version__,
        cxx11_abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI),
        standard=torch_standard(torch.__version__),
        soabi=str(sysconfig.get_config_var("SOABI")),
        machine=platform.machine(),
    )


def _torch_paths() -> Paths:
    """Where torch's and Python's headers and torch's libraries are. Raises BuildError without Python.h."""
    import torch

    try:
        from torch.utils.cpp_extension import include_paths, library_paths

        includes, libraries = include_paths(), library_paths()
    except ImportError:  # it wants setuptools, which an environment may lack
        home = Path(torch.__file__).parent
        includes = [str(home / "include"), str(home / "include/torch/csrc/api/include")]
        libraries = [str(home / "lib")]
    python = sysconfig.get_path("include", scheme="posix_prefix")
    if not Path(python, "Python.h").is_file():
        raise BuildError(
            f"the ccl backend cannot be built: Python's headers are missing (no {python}/Python.h)",
            hint="`apt install python3-dev` (Debian, Ubuntu) or `dnf install python3-devel` (Fedora, RHEL);\n"
            f"or {WITHOUT}",
        )
    return Paths(includes=(*includes, python), libraries=tuple(libraries))


def find_compiler(environment: Mapping[str, str]) -> Compiler | None:
    """$CXX, which must be right if it is set, else the first of g++, c++, clang++; None if there is none."""
    chosen = environment.get(Env.CXX, "").strip()
    # Beside this Python too: an environment of conda may be used without being activated.
    places = os.pathsep.join([environment.get(Env.PATH, os.defpath), str(Path(sys.executable).parent)])
    if chosen:
        hint = f"unset {Env.CXX}, or set it to a C++ compiler"
        try:
            words = shlex.split(chosen)
        except ValueError as error:
            raise BuildError(f"{Env.CXX}={chosen}: {error}", hint=hint) from error
        first = shutil.which(words[0], path=places)
        if first is None:
            raise BuildError(f"{Env.CXX}={chosen}: there is no {words[0]}", hint=hint)
        return _asked_version((first, *words[1:]))
    found = next(filter(None, (shutil.which(name, path=places) for name in COMPILERS)), None)
    return _asked_version((found,)) if found else None


def compiler_for(product: Product) -> Compiler | None:
    """The one that builds the product here, if any."""
    if product.compiler is None:
        return find_compiler(os.environ)
    return _asked_version(product.compiler) if shutil.which(product.compiler[0]) else None


def commands(product: Product, folder: Path) -> list[list[str]]:
    """What building the product in `folder` runs. Raises BuildError where it cannot be built."""
    compiler = compiler_for(product)
    if compiler is None:
        raise _no_compiler(product)
    objects, last = product.steps()
    return [step.command(compiler.argv, folder) for step in (*objects, last)]


def existing(product: Product, *, cache: Cache | None = None) -> Built | None:
    """The product if it need not be built. Without a compiler, one by any compiler will do."""
    cache, compiler = cache or find_cache(os.environ), compiler_for(product)
    if compiler is None:
        there = cache.look_for_any(product.prefix, product.file)
    else:
        there = cache.look(product.key(compiler), product.file)
    return None if there is None else _described(there)


def _asked_version(argv: tuple[str, ...]) -> Compiler:
    try:
        answer = subprocess.run(
            [*argv, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
            text=True,
            errors="replace",
            env=_quiet_environment(None),
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f"{shlex.join(argv)} does not work as a C++ compiler: {error}",
            hint=f"set {Env.CXX} to one that does",
        ) from error
    lines = answer.stdout.splitlines() or [""]
    return Compiler(argv=argv, version=lines[0].strip())


def _no_compiler(product: Product) -> BuildError:
    ways = [
        "`apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora, RHEL) or `conda install gxx`",
        "or run `plough build` where there is a compiler and the same torch and Python, and bring the folder "
        f"here, with {Env.PLOUGH_CACHE_DIR} set to it in both places",
    ]
    if product.without:
        ways.append(f"or {product.without}")
    return BuildError(
        f"{product.title} has to be compiled once, and there is no C++ compiler here", hint=";\n".join(ways)
    )


def ensure(
    product: Product,
    *,
    cache: Cache | None = None,
    force: bool = False,
    progress: Progress = tell,
) -> Built:
    """The product, built unless it is there. Of processes that come at once, one builds and all get it.

    Raises BuildError.
    """
    cache = cache or find_cache(os.environ)
    if not force and (there := existing(product, cache=cache)):
        return there
    compiler = compiler_for(product)
    if compiler is None:
        raise _no_compiler(product)
    key = product.key(compiler)
    failed = cache.failure(key)
    with cache.locked(product.title, progress) as waited:
        if not force and (there := existing(product, cache=cache)):
            return there
        again = cache.failure(key)
        if waited and again is not None and again != failed:
            # It would fail once more for each of the ranks, one after the other.
            raise _failed(product, again[1], cache.log(key))
        details = _build(product, compiler, cache, key, progress)
    return Built(path=cache.builds / key / product.file, fresh=True, details=details)


def _build(product: Product, compiler: Compiler, cache: Cache, key: str, progress: Progress) -> Details:
    started = time.monotonic()
    objects, last = product.steps()
    log: list[str] = []
    progress(f"building {product.title} (once; {product.estimate}) ...")
    with cache.workspace() as folder:
        try:
            # Those with torch's headers, which take longest, first.
            _run(objects[::-1], product.folder, compiler, folder, log)
            _run([last], product.folder, compiler, folder, log)
        except _StepFailed as failed:
            if "No space left on device" in failed.output:
                raise BuildError(
                    f"{product.title} cannot be built: the disk of {cache.root} is full",
                    hint=f"free 100 MB, or set {Env.PLOUGH_CACHE_DIR} to a folder on another disk",
                ) from None
            cause = f"{product.title} cannot be built: {_blame(failed)}"
            path = cache.write_log(key, "\n".join([cause, "", *log]))
            raise _failed(product, cause, path) from None
        except OSError as error:
            raise BuildError(f"{product.title} cannot be built in {cache.root}: {error}") from error
        details = Details(
            title=product.title,
            compiler=compiler.version,
            machine=platform.machine(),
            seconds=round(time.monotonic() - started, 1),
            instructions=product.instructions,
        )
        texts = {DETAILS: msgspec.json.format(msgspec.json.encode(details)).decode(), LOG: "\n".join(log)}
        cache.keep(key, folder, folder / last.output, texts)
    progress(f"... done in {time.monotonic() - started:.0f} s")
    return details


def _run(steps: Sequence[Step], where: Path, compiler: Compiler, folder: Path, log: list[str]) -> None:
    """Run the steps side by side, on the CPUs this process may use; the first failure ends all."""
    waiting, limit = list(steps), len(os.sched_getaffinity(0))
    running: dict[subprocess.Popen[bytes], Step] = {}
    environment = _quiet_environment(folder)
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                step = waiting.pop(0)
                with _said(folder, step).open("wb") as output:
                    process = subprocess.Popen(
                        step.command(compiler.argv, folder),
                        cwd=where,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # so that its own children can be ended with it
                    )
                running[process] = step
            ended = [process for process in running if process.poll() is not None]
            if not ended:
                time.sleep(0.02)
            for process in ended:
                step = running.pop(process)
                said = _said(folder, step).read_text(encoding="utf-8", errors="replace")
                log.append(f"$ {shlex.join(step.command(compiler.argv, folder))}\n{said}")
                if process.returncode:
                    raise _StepFailed(step, said)
    finally:
        for process in running:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _said(folder: Path, step: Step) -> Path:
    return folder / f"{step.output}.txt"


def _quiet_environment(temporary: Path | None) -> dict[str, str]:
    """The user's, but messages are in English, for `first_error`, and a rank's preloads are not for it."""
    environment = {name: value for name, value in os.environ.items() if name != Env.LD_PRELOAD}
    environment[Env.LC_ALL] = "C"
    if temporary is not None:
        environment[Env.TMPDIR] = str(temporary)
    return environment


def _blame(failed: _StepFailed) -> str:
    line = first_error(failed.output)
    return line if line.startswith(failed.step.source) else f"{failed.step.source}: {line}"


def _failed(product: Product, cause: str, log: Path) -> BuildError:
    ways = [f"the whole output is in {log}"]
    if "Killed" in cause:
        ways.insert(
            0, "memory ran out: each CPU runs a compiler that takes about 1 GB; `taskset -c 0 plough build`"
        )
    elif "unrecognized" in cause:
        ways.insert(
            0, f"the compiler is too old, or none that is known; {Env.CXX} chooses another, g++ 12 will do"
        )
    if product.without:
        ways.append(f"or {product.without}")
    return BuildError(cause, hint=";\n".join(ways))


def _described(path: Path) -> Built:
    details = None
    with contextlib.suppress(OSError, msgspec.DecodeError):
        details = msgspec.json.decode((path.parent / DETAILS).read_bytes(), type=Details)
    return Built(path=path, fresh=False, details=details)
