"""Put the agent into one Python file, as a machine's metadata takes it."""

from __future__ import annotations

import ast
import base64
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

# Where statements stand in others.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_HERE = Path(__file__).parent
_MAIN = "from agent.main import main\n\nmain()\n"
# The same sources give the same text on every machine, or each preview would show a change.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PROGRAM = '''"""tpu-stack's agent: infra/startup/agent in one file."""
import base64, io, os, runpy, sys, tempfile

PROGRAM = """
{}"""
folder = os.path.dirname(os.path.abspath(__file__))
path = os.path.join(folder, "agent.pyz")
new, unfinished = tempfile.mkstemp(dir=folder)
with os.fdopen(new, "wb") as file:
    file.write(base64.b64decode(PROGRAM))
os.replace(unfinished, path)
runpy.run_path(path, run_name="__main__")
'''


@cache
def program() -> str:
    """Return a Python file that runs the agent with its own arguments."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for source in sorted(_HERE.rglob("*.py")):
            if source != Path(__file__):
                name = source.relative_to(_HERE).as_posix()
                _add(archive, f"agent/{name}", _without_docstrings(source.read_text("utf-8")))
        _add(archive, "__main__.py", _MAIN)
    return _PROGRAM.format(base64.encodebytes(packed.getvalue()).decode())


def _without_docstrings(source: str) -> str:
    """Return a module without what only people read; its lines keep their numbers.

    Google takes 256 KiB in one value of the metadata.
    """
    lines = source.splitlines()
    for node in _statements(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            end = text.end_lineno or text.lineno
            empty = [" " * text.col_offset + '""', *[""] * (end - text.lineno)]
            lines[text.lineno - 1 : end] = empty
    return "\n".join([*lines, ""])


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module and all statements in it, but not the expressions, which are most of it."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in _BLOCKS:
            waiting += getattr(node, block, ())


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    # What ZipInfo takes from the operating system otherwise.
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    archive.writestr(entry, text)
