"""Put the agent into one Python file, as a machine's metadata takes it."""

from __future__ import annotations

import base64
import bz2
import io
import zipfile
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_MAIN = "from agent.main import main\n\nmain()\n"
# The same sources give the same text on every machine, or each preview would show a change. So
# nothing here is deflated: there are several zlibs, and they don't pack alike.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PROGRAM = '''"""tpu-stack's agent: infra/startup/agent in one file."""
import base64, bz2, os, runpy, sys, tempfile

PROGRAM = """
{}"""
folder = os.path.dirname(os.path.abspath(__file__))
path = os.path.join(folder, "agent.pyz")
new, unfinished = tempfile.mkstemp(dir=folder)
with os.fdopen(new, "wb") as file:
    file.write(bz2.decompress(base64.b64decode(PROGRAM)))
os.replace(unfinished, path)
runpy.run_path(path, run_name="__main__")
'''


@cache
def program() -> str:
    """Return a Python file that runs the agent with its own arguments.

    It is packed since Google takes 256 KiB in one value of the metadata, and since the engine
    writes every value into its state, and many times into its log.
    """
    archived = io.BytesIO()
    with zipfile.ZipFile(archived, "w", zipfile.ZIP_STORED) as archive:
        for source in sorted(_HERE.rglob("*.py")):
            if source != Path(__file__):
                name = source.relative_to(_HERE).as_posix()
                _add(archive, f"agent/{name}", source.read_text("utf-8"))
        _add(archive, "__main__.py", _MAIN)
    return _PROGRAM.format(base64.encodebytes(bz2.compress(archived.getvalue())).decode())


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    # What ZipInfo takes from the operating system otherwise.
    entry.create_system, entry.external_attr = 3, 0o644 << 16
    archive.writestr(entry, text)
