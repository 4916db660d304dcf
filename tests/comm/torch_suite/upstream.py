"""Which tests torch has for a backend, read from its source: imported, it changes torch for all of pytest."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

SOURCE = "testing/_internal/distributed/distributed_test.py"
BASE = "_DistTestBase"


@dataclass(frozen=True)
class UpstreamTest:
    """least: ranks without which it makes no sense. gpu: it would put its tensors on one."""

    name: str
    least: int
    gpu: bool


def upstream_tests() -> list[UpstreamTest]:
    """In the order of torch's file."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / SOURCE).read_text())
    base = next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == BASE)
    return [
        UpstreamTest(
            node.name, max([2, *map(_least, node.decorator_list)]), any(map(_wants_gpu, node.decorator_list))
        )
        for node in base.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def _least(decorator: ast.expr) -> int:
    match decorator:
        # Says 8, to keep small machines out; what these tests do is send within the group of ranks 1 and 2.
        case ast.Name("skip_if_small_worldsize"):
            return 4
        case ast.Call(
            ast.Name("require_world_size" | "require_exact_world_size" | "skip_if_lt_x_gpu"), [number]
        ):
            return number.value if isinstance(number, ast.Constant) else 2
    return 2


def _wants_gpu(decorator: ast.expr) -> bool:
    match decorator:
        case ast.Name("skip_if_no_gpu" | "skip_if_rocm_multiprocess"):
            return True
        case ast.Call(ast.Name("skip_if_lt_x_gpu" | "requires_nccl_version")):
            return True
    return False
