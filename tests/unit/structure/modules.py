"""Which module of a room imports which: read from the sources, type-only and lazy imports too."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[3]
# Next to these packages lies what starts, builds or explains them.
FOLDERS = {
    "tpu_agent": "agent/tpu_agent",
    "tpu_bootstrap": "bootstrap/tpu_bootstrap",
    "tpu_core": "core/tpu_core",
    "tpu_infra": "infra/tpu_infra",
    "tpu_policy": "policy/tpu_policy",
    "tpu_training": "training/tpu_training",
    "localcloud": "localcloud/localcloud",
}

Imports: TypeAlias = dict[str, set[str]]
"""The imported modules of the same room by module, both with dotted names."""


def folder(room: str) -> Path:
    return ROOT / FOLDERS.get(room, room)


@functools.cache
def sources(room: str) -> list[Path]:
    paths = folder(room).rglob("*.py")
    return sorted(p for p in paths if "__pycache__" not in p.parts and not p.is_symlink())


@functools.cache
def import_statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Those of a file, wherever in it they stand; most tests here ask for them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def imports_within(room: str) -> Imports:
    modules = {_module(room, path): path for path in sources(room)}
    return {
        module: {name for name in _imported(path, modules) if name != module}
        for module, path in modules.items()
    }


def circles(graph: Imports) -> list[list[str]]:
    """The groups of modules that import each other (Tarjan's strongly connected components)."""
    low: dict[str, int] = {}
    order: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def against_the_floors(graph: Imports, floors: list[list[str]]) -> list[str]:
    """The imports that do not go down, as sentences; within an entry all may be imported."""
    level = {entry: number for number, floor in enumerate(floors) for entry in floor}
    return [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in sorted(others)
        if _entry(module) != _entry(other) and level[_entry(module)] <= level[_entry(other)]
    ]


def entries(room: str) -> set[str]:
    """The packages and modules at the root of a room."""
    return {_entry(module) for module in imports_within(room)}


def _entry(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _module(room: str, path: Path) -> str:
    parts = path.relative_to(folder(room)).with_suffix("").parts
    return ".".join((room, *parts[:-1], *(() if parts[-1] == "__init__" else parts[-1:])))


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    found = set()
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module and node.level == 0:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules.keys() or {node.module}
    return found & modules.keys()
