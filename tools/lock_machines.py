"""Pin what the start-up scripts install as root, with hashes: `make lock`.

Writes agent/tpu_agent/locks/PACKAGE-VERSION.txt and, from their requirements.in, the examples'
requirements.txt, which pip installs with --require-hashes. Without arguments it pins those that are
there. For another release run `.venv/bin/python tools/lock_machines.py tensorflow-cpu==2.22.0`,
for an example `.venv/bin/python tools/lock_machines.py examples/jax`.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from tpu_agent.bundle import LOCKS
from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import JAX_PACKAGE, VM_PACKAGE

_UV = Path(sys.executable).with_name("uv")
_OLDEST = 10
# A release of TensorFlow has wheels for the Pythons of its time: these are tried in turn.
_ENDS = (14, 13, 12)
_MACHINE = "platform_machine == 'x86_64' and sys_platform == 'linux'"
# Matplotlib draws the trainer's pictures. TensorBoard imports what later setuptools lack.
_BESIDE = ("matplotlib", "setuptools<81")
# The oldest that the trainer runs its steps with (training/pyproject.toml).
_JAX = ("jax[tpu]>=0.6.2,<0.12",)
_NEVER = "libtpu ; sys_platform == 'none'"
# Ubuntu 22.04, the oldest of Google's images with such a Python, has glibc 2.35.
_PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 36)),
    *(f"manylinux{name}_x86_64" for name in ("1", "2010", "2014")),
]


def main(asked: list[str]) -> int:
    """Write a lock for each pin, such as `tensorflow-cpu==2.19.1`, and each example's folder."""
    there = sorted("==".join(path.stem.rsplit("-", 1)) for path in LOCKS.glob("*.txt"))
    examples = sorted(str(path.parent) for path in Path("examples").glob("*/requirements.in"))
    for one in asked or [*there, *examples]:
        if "==" in one:
            path = LOCKS / f"{one.replace('==', '-')}.txt"
            wanted = [one, *_BESIDE]
            if one.startswith(JAX_PACKAGE):
                wanted = [one.replace(JAX_PACKAGE, VM_PACKAGE), *_JAX, *_BESIDE]
            lines = _lock(wanted, without_libtpu=_lacks_libtpu(one))
        else:
            path = Path(one) / "requirements.txt"
            wanted = path.with_suffix(".in").read_text(encoding="utf-8").splitlines()
            lines = _lock(wanted, without_libtpu=False)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {path.parent.name}/{path.name}")
    return 0


def _lock(wanted: Sequence[str], *, without_libtpu: bool) -> Iterator[str]:
    """Yield the lines of a lock: requirements with the hashes of their wheels for a machine."""
    end, packages = _resolved(wanted, without_libtpu=without_libtpu)
    ((usual, _),) = Counter(one.get("marker", "") for one in packages).most_common(1)
    yield "# Written by `make lock`: wheels for Linux on x86-64, Python 3.10 and newer."
    for one in packages:
        marker = one.get("marker", "")
        when = "" if marker == usual else f" ; {marker.removesuffix(f' and {_MACHINE}')}"
        hashes = [
            f"    --hash=sha256:{wheel['hashes']['sha256']}"
            for wheel in one["wheels"]
            if not _tags(end).isdisjoint(parse_wheel_filename(wheel["url"].rpartition("/")[2])[3])
        ]
        yield " \\\n".join([f"{one['name']}=={one['version']}{when}", *hashes])


def _resolved(wanted: Sequence[str], *, without_libtpu: bool) -> tuple[int, list[dict[str, Any]]]:
    """Return the packages that are needed, and the minor version of Python where support ends."""
    for end in _ENDS:
        done = _compile(wanted, end, without_libtpu=without_libtpu)
        if done.returncode == 0:
            # In the standard library from Python 3.11 on.
            toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
            return end, toml.loads(done.stdout)["packages"]
    raise SystemExit(f"error: uv can't resolve {wanted[0]}. It reports:\n{done.stderr}")


def _lacks_libtpu(pin: str) -> bool:
    """Return whether the package index lacks the libtpu of a release; Google's own list has it."""
    package, version = pin.split("==")
    release = Catalog().packages.releases(package).get(version)
    return release is not None and release.wheels is not None


def _compile(
    wanted: Sequence[str], end: int, *, without_libtpu: bool
) -> subprocess.CompletedProcess[str]:
    python = f"python_full_version < '3.{end}'"
    with tempfile.TemporaryDirectory() as folder:
        project = f'[tool.uv]\nenvironments = ["{_MACHINE} and {python}"]\n'
        (Path(folder) / "pyproject.toml").write_text(project, encoding="utf-8")
        command = [str(_UV), "pip", "compile", "--quiet", "--universal", "--only-binary", ":all:"]
        command += ["--python-version", f"3.{_OLDEST}", "--format", "pylock.toml", "-"]
        if without_libtpu:
            (Path(folder) / "without.txt").write_text(_NEVER, encoding="utf-8")
            command += ["--override", "without.txt"]
        return subprocess.run(
            command,
            input="\n".join(wanted),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )


@cache
def _tags(end: int) -> frozenset[Tag]:
    """Return the tags of the wheels that some Python on a machine can install."""
    found: set[Tag] = set()
    for minor in range(_OLDEST, end):
        python, interpreter = (3, minor), f"cp3{minor}"
        found.update(cpython_tags(python, [interpreter], _PLATFORMS))
        found.update(compatible_tags(python, interpreter, _PLATFORMS))
    return frozenset(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
