"""Measure the form of the code: files, their lines, who imports whom, duplicates, reading paths.

`python tools/form.py` prints the figures next to their bars, `--json` prints them for a program.
The structure test refuses a form worse than `form.yaml` allows.
"""

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
BARS = Path(__file__).with_suffix(".yaml")
# What is neither a product nor a part of one.
_OTHERS = ("tests", "bench")
# Rooms that keep their package in a folder of its own.
_PACKAGES = (
    "agent/tpu_agent",
    "bootstrap/tpu_bootstrap",
    "core/tpu_core",
    "infra/tpu_infra",
    "localcloud/localcloud",
    "policy/tpu_policy",
    "training/tpu_training",
)
_DUPLICATE_LINES = 6


@dataclass(frozen=True)
class File:
    """A source file.

    Attributes:
        path: its path in the repository.
        text: what it holds.
    """

    path: str
    text: str

    @property
    def room(self) -> str:
        """The folder at the repository's root."""
        return self.path.partition("/")[0]

    @property
    def module(self) -> str:
        """The dotted name by which others import it."""
        package = next((p for p in _PACKAGES if self.path.startswith(f"{p}/")), "")
        name = self.path[len(package.partition("/")[0]) + 1 if package else 0 :]
        return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def lines(self) -> list[str]:
        """All lines, without their ends."""
        return self.text.splitlines()

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the syntax tree."""
        return list(ast.walk(ast.parse(self.text)))

    @property
    def imports(self) -> list[ast.Import | ast.ImportFrom]:
        """All import statements, also those inside functions."""
        return [node for node in self.nodes if isinstance(node, ast.Import | ast.ImportFrom)]

    def imported(self) -> Iterator[str]:
        """Yield each dotted name that may be a module which this file imports."""
        for node in self.imports:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def functions(self) -> list[int]:
        """Return the number of lines of each function, decorators left out."""
        return [
            _lines(node)
            for node in self.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    def words(self) -> int:
        """Count the lines that are a comment or part of a docstring."""
        # Also those of attributes, which follow an assignment.
        docstrings = (
            _lines(node)
            for node in self.nodes
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )
        return sum(docstrings) + sum(line.lstrip().startswith("#") for line in self.lines)


def tracked(root: Path = ROOT) -> list[File]:
    """Read all Python files that git knows or would add."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.py"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    paths = (root / name for name in sorted(set(names)))
    present = [path for path in paths if path.is_file() and not path.is_symlink()]
    return [File(str(path.relative_to(root)), path.read_text("utf-8")) for path in present]


def measure(files: Iterable[File]) -> dict[str, Any]:
    """Return the figures of the product by name, and the lines of each room under `rooms`."""
    files = list(files)
    product = [file for file in files if file.room not in _OTHERS]
    bench = [file for file in files if file.room == "bench"]
    functions = [lines for file in product for lines in file.functions()]
    total = sum(len(file.lines) for file in product)
    imports = sum(_lines(node) for file in product for node in file.imports)
    rooms: Counter[str] = Counter()
    for file in product:
        rooms[file.room] += len(file.lines)
    return {
        "files": len(product),
        "lines": total,
        "median file": median(len(file.lines) for file in product),
        "longest file": max(len(file.lines) for file in product),
        "modules with one importer": len(single_importers(product)),
        "import lines, %": _share(imports, total),
        "comment lines, %": _share(sum(file.words() for file in product), total),
        "median function": median(functions),
        "longest function": max(functions),
        "duplicates": len(duplicates(product)),
        "bench files": len(bench),
        "bench lines": sum(len(file.lines) for file in bench),
        "rooms": dict(sorted(rooms.items())),
    }


def single_importers(files: Iterable[File]) -> list[str]:
    """Return the modules that exactly one other module imports."""
    files = list(files)
    importers: dict[str, set[str]] = {file.module: set() for file in files}
    for file in files:
        for name in file.imported():
            if name in importers and name != file.module:
                importers[name].add(file.module)
    return sorted(module for module, others in importers.items() if len(others) == 1)


def unlinked(files: Iterable[File], flows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which files of a flow are missing, or have no import from or to one before them.

    A program that runs in a process of its own is `runs: PATH`; no import links it.
    """
    by_path = {file.path: file for file in files}
    problems = []
    for flow, described in flows.items():
        known: list[File] = []
        for entry in described["files"]:
            path = entry if isinstance(entry, str) else entry["runs"]
            if not (file := by_path.get(path)):
                problems.append(f"{flow}: {path} doesn't exist. Name the file that took its place")
                continue
            before = {other.module for other in known}
            leads = any(file.module in other.imported() for other in known)
            if known and path == entry and not leads and before.isdisjoint(file.imported()):
                problems.append(f"{flow}: no import links {path} to the files before it")
            known.append(file)
    return problems


def duplicates(files: Iterable[File]) -> list[tuple[str, str]]:
    """Return where the same six lines or more stand twice, as pairs of `path:line`.

    Blank lines, comments, imports, indentation and lines of brackets alone don't count.
    """
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    found: list[tuple[str, str]] = []
    for file in files:
        code = _code(file)
        last = -_DUPLICATE_LINES
        for start in range(len(code) - _DUPLICATE_LINES + 1):
            window = tuple(line for _, line in code[start : start + _DUPLICATE_LINES])
            where = (file.path, code[start][0])
            first = seen.setdefault(window, where)
            # A longer run is one duplicate, however many windows it fills.
            if first != where and start > last + 1:
                found.append((f"{first[0]}:{first[1]}", f"{where[0]}:{where[1]}"))
            if first != where:
                last = start
    return found


def _code(file: File) -> list[tuple[int, str]]:
    imports = {
        row for node in file.imports for row in range(node.lineno, node.lineno + _lines(node))
    }
    stripped = ((row, line.strip()) for row, line in enumerate(file.lines, 1) if row not in imports)
    return [(row, line) for row, line in stripped if line.strip("()[]{},") and line[0] != "#"]


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _share(part: int, whole: int) -> float:
    return round(100 * part / whole, 1)


def worse(figures: dict[str, Any], bars: dict[str, Any]) -> list[str]:
    """Say which figures are beyond their bars; a room without a ceiling is one of them."""
    problems = [
        f"{name} is {figures[name]}, the bar is {words} {bar}"
        for words, kind in (("at most", "most"), ("at least", "least"))
        for name, bar in bars[kind].items()
        if (figures[name] > bar if kind == "most" else figures[name] < bar)
    ]
    for room, lines in figures["rooms"].items():
        ceiling = bars["rooms"].get(room, {"lines": 0})["lines"]
        if lines > ceiling:
            problems.append(f"{room}/ has {lines} lines, its ceiling is {ceiling}")
    for flow, described in bars.get("flows", {}).items():
        if (count := len(described["files"])) > described["most"]:
            problems.append(f"{flow} takes {count} files, the bar is at most {described['most']}")
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; the exit code is 1 if one is worse than its bar."""
    parser = argparse.ArgumentParser(prog="python tools/form.py", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--list", action="store_true", help="list duplicates and single importers")
    options = parser.parse_args(arguments)
    files = tracked()
    figures = measure(files)
    bars = yaml.safe_load(BARS.read_text(encoding="utf-8"))
    problems = [*worse(figures, bars), *unlinked(files, bars["flows"])]
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        _print(figures, bars)
    if options.list:
        product = [file for file in files if file.room not in _OTHERS]
        print(*(f"{a}  {b}" for a, b in duplicates(product)), sep="\n")
        print(*single_importers(product), sep="\n")
    print(*problems, sep="\n", file=sys.stderr)
    return int(bool(problems))


def _print(figures: dict[str, Any], bars: dict[str, Any]) -> None:
    signs = {name: f"≤ {bar}" for name, bar in bars["most"].items()}
    signs |= {name: f"≥ {bar}" for name, bar in bars["least"].items()}
    rooms = {f"{room}/": lines for room, lines in figures.pop("rooms").items()}
    signs |= {f"{room}/": f"≤ {bar['lines']}" for room, bar in bars["rooms"].items()}
    flows = {flow: len(described["files"]) for flow, described in bars["flows"].items()}
    signs |= {flow: f"≤ {described['most']}" for flow, described in bars["flows"].items()}
    for name, value in (figures | rooms | flows).items():
        print(f"{name:28}{value:>10}   {signs.get(name, '')}")


if __name__ == "__main__":
    sys.exit(main())
