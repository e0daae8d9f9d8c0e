"""Put the agent into one Python file, as a machine's metadata takes it."""

from __future__ import annotations

import base64
import bz2
import json
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_PROGRAM = '''"""tpu-stack's agent: infra/startup/agent in one file."""
import base64, bz2, importlib.abc, importlib.util, json, sys

PROGRAM = """
{}"""


class Agent(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Loads the agent from memory: the machine's disk may be full."""

    sources = json.loads(bz2.decompress(base64.b64decode(PROGRAM)))

    def find_spec(self, name, path=None, target=None):
        if name in self.sources:
            return importlib.util.spec_from_loader(name, self)

    def is_package(self, name):
        return any(other.startswith(name + ".") for other in self.sources)

    def get_source(self, name):
        return self.sources[name]


sys.meta_path.insert(0, Agent())
from agent.main import main

main()
'''


@cache
def program() -> str:
    """Return a Python file that runs the agent with its own arguments.

    It is packed since Google takes 256 KiB in one value of the metadata, and since the engine
    writes every value into its state, and many times into its log. bz2, not zlib: there are several
    zlibs, which don't pack alike, and each preview would show a change.
    """
    sources = {
        _module(path): path.read_text("utf-8")
        for path in sorted(_HERE.rglob("*.py"))
        if path != Path(__file__)
    }
    packed = bz2.compress(json.dumps(sources, sort_keys=True).encode())
    return _PROGRAM.format(base64.encodebytes(packed).decode())


def _module(path: Path) -> str:
    parts = ("agent", *path.relative_to(_HERE).with_suffix("").parts)
    return ".".join(part for part in parts if part != "__init__")
