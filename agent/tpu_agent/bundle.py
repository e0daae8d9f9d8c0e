"""What the Pulumi program gives to machines: the agent in one file, start-up scripts, locks."""

import base64
import bz2
import json
from functools import cache
from pathlib import Path

import tpu_core

_HERE = Path(__file__).parent
_PACKAGES = (_HERE, Path(tpu_core.__file__).parent)
LOCKS = _HERE / "locks"
"""One file per release, PACKAGE-VERSION.txt, written by tools/lock_machines.py."""
_PROGRAM = '''"""tpu-stack's agent: the packages tpu_agent and tpu_core in one file."""
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
from tpu_agent.main import main

main()
'''


@cache
def program() -> str:
    """Return a Python file that runs the agent with its own arguments.

    It is packed because Google allows 256 KiB in one metadata value, and because the engine writes
    every value into its state and many times into its log. bz2, not zlib: there are several zlibs,
    which compress differently, and each preview would show a change.
    """
    sources = {
        _module(path, package): path.read_text("utf-8")
        for package in _PACKAGES
        for path in sorted(package.rglob("*.py"))
        if path != Path(__file__)
    }
    packed = bz2.compress(json.dumps(sources, sort_keys=True).encode())
    return _PROGRAM.format(base64.encodebytes(packed).decode())


def startup_script(name: str) -> str:
    """Return `vm.sh` or `tpu_vm.sh`, preceded by the functions that they share."""
    return "\n".join((_HERE / "startup" / part).read_text("utf-8") for part in ("common.sh", name))


def lock_of(package: str, version: str) -> str | None:
    """Return the requirements of a release with the hashes of their wheels, if they are known."""
    path = LOCKS / f"{package}-{version}.txt"
    return path.read_text("utf-8") if path.is_file() else None


def _module(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")
