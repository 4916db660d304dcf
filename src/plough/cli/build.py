"""`plough build`: compile Plough's C++ before a job needs it, and tidy up what was compiled before."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from typing import Any

from plough.cli.output import emit, note, table
from plough.comm import build
from plough.comm.build import Built, Product
from plough.comm.cache import Cache, Removed, find_cache
from plough.comm.oneccl import NotUsable, find_oneccl

__all__ = ["add_arguments", "run"]

EPILOG = """\
The `ccl` backend of ranks on CPUs is C++, compiled for the PyTorch that is installed when a job first needs
it: once, by one rank, while the others wait. This compiles it ahead of time, for an image or for machines
without a compiler. It takes a C++ compiler ($CXX, else g++, c++ or clang++) and Python's headers. Where
oneCCL is installed, the library that lets hosts talk over it is built too.

Builds are kept in $PLOUGH_CACHE_DIR, else $XDG_CACHE_HOME/plough, else ~/.cache/plough, one for each
combination of Plough, PyTorch, Python, compiler and architecture; all instruction sets are in each. Where
there is no compiler, a build by any compiler is used. The folder must belong to you or root and be writable
by nobody else.

examples:
  plough build                     in a Dockerfile, after ENV PLOUGH_CACHE_DIR=/opt/plough
  plough build --clean             after an upgrade
  plough build --force --dry-run   the commands, to look at
"""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--force", action="store_true", help="build even what is there already")
    parser.add_argument(
        "--clean", action="store_true", help="then remove all other builds, also those for other versions"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the commands, and do nothing")
    parser.add_argument("--json", action="store_true", help="what was done, or would be, as JSON")


def run(options: argparse.Namespace) -> int:
    cache = find_cache(os.environ)
    products, missing = [build.extension()], []
    oneccl = find_oneccl()
    if isinstance(oneccl, NotUsable):
        missing.append({"name": build.ONECCL_LINK, "reason": oneccl.reason, "hint": oneccl.hint})
    else:
        products.append(build.oneccl_product(oneccl))
    do = _dry_run if options.dry_run else _run
    done: dict[str, Any] = {"cache": str(cache.root), **do(products, cache, options), "missing": missing}
    if options.json:
        emit(json.dumps(done, indent=2, ensure_ascii=False))
    else:
        emit(_commands(done) if options.dry_run else _render(done))
    return 0


def _run(products: list[Product], cache: Cache, options: argparse.Namespace) -> dict[str, Any]:
    builds = [build.ensure(one, cache=cache, force=options.force, progress=note) for one in products]
    removed: list[Removed] | None = None
    if options.clean:
        with cache.locked("the ccl backend", note):
            removed = cache.clean({built.key for built in builds})
    return {
        "builds": [_as_json(product, built) for product, built in zip(products, builds, strict=True)],
        "removed": _removed(removed),
    }


def _dry_run(products: list[Product], cache: Cache, options: argparse.Namespace) -> dict[str, Any]:
    builds, keep = [], set()
    for product in products:
        there = build.existing(product, cache=cache)
        needed = options.force or there is None
        keep |= {there.key} if there is not None else set()
        builds.append(
            {
                "name": product.name,
                "title": product.title,
                "path": None if needed or there is None else str(there.path),
                "folder": str(product.folder),
                "commands": build.commands(product, cache.builds / ".build") if needed else [],
            }
        )
    return {
        "builds": builds,
        "removed": _removed(cache.clean(keep, really=False) if options.clean else None),
    }


def _as_json(product: Product, built: Built) -> dict[str, Any]:
    details = built.details
    return {
        "name": product.name,
        "title": product.title,
        "path": str(built.path),
        "bytes": built.path.stat().st_size,
        "fresh": built.fresh,
        "seconds": details and details.seconds,
        "compiler": details and details.compiler,
        "instructions": list(product.instructions),
    }


def _removed(removed: list[Removed] | None) -> list[dict[str, Any]] | None:
    return None if removed is None else [{"name": one.name, "bytes": one.size} for one in removed]


def _render(done: dict[str, Any]) -> str:
    rows = []
    for one in done["builds"]:
        seconds = "" if one["seconds"] is None else f", built in {one['seconds']:.0f} s"
        rows += [
            (one["name"], one["title"] + (seconds if one["fresh"] else ", there already")),
            ("  file", f"{one['path']} ({_mib(one['bytes'])})"),
            ("  compiler", one["compiler"] or "unknown"),
        ]
        if one["instructions"]:
            rows.append(("  instructions", f"{', '.join(one['instructions'])}; chosen at run time"))
    for one in done["missing"]:
        rows += [(one["name"], f"not built: {one['reason']}"), ("", one["hint"])]
    if done["removed"] is not None:
        rows.append(("removed", _freed(done["removed"])))
    return table(("", ""), rows).strip("\n")


def _commands(done: dict[str, Any]) -> str:
    """As a shell takes it."""
    lines = []
    for one in done["builds"]:
        if one["path"] is not None:
            lines.append(f"# {one['title']} is there already: {one['path']}")
            continue
        lines += [f"# {one['title']}", f"cd {shlex.quote(one['folder'])}"]
        lines += [shlex.join(command) for command in one["commands"]]
    lines += [f"# {one['name']} is not built: {one['reason']}" for one in done["missing"]]
    if done["removed"] is not None:
        lines.append(f"# would remove {_freed(done['removed'])}")
        lines += [f"#   {one['name']}" for one in done["removed"]]
    return "\n".join(lines)


def _freed(removed: list[dict[str, Any]]) -> str:
    if not removed:
        return "nothing: there is nothing else"
    return f"{len(removed)} older, {_mib(sum(one['bytes'] for one in removed))}"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
