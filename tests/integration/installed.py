"""Builds this project's wheels and installs them outside the checkout, with no network.

uv takes what they depend on from its cache, where `make setup` has put the locked versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Sequence
from pathlib import Path

import pip

from tests.wheels import COMMAND, PACKAGES, UNFINISHED, build
from tpustack.engine import toolchain
from tpustack.project import cache_folder, root

UV = Path(sys.prefix) / "bin" / "uv"


def build_wheels(folder: Path) -> dict[str, Path]:
    """Build the wheels of all distributions, by folder."""
    return {source: build(source, folder) for source in PACKAGES}


class Installed:
    """A virtual environment of its own, with its commands run in an empty folder.

    Args:
        folder: where all of it is made.
        arguments: what `uv pip install` gets.
        python: another Python than that of the tests.
    """

    def __init__(
        self, folder: Path, arguments: Sequence[str | Path], python: str | None = None
    ) -> None:
        self.environment = folder / "environment"
        self.elsewhere = folder / "elsewhere"
        self.elsewhere.mkdir(parents=True)
        if python:
            self.install(["venv", "--python", python, self.environment])
        else:
            venv.create(self.environment)
        self.install(["pip", "install", "--python", self.python, *arguments])
        if not python:
            self._take_over()

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def _take_over(self) -> None:
        """Take pip from this environment, and what Python has compiled of the same files.

        The engine asks pip for the packages of a program. To install it takes five seconds, and to
        compile those that a program imports even more.
        """
        (packages,) = self.environment.glob("lib/*/site-packages")
        own = Path(pip.__file__).parents[1]
        for folder in own.glob("pip*") if not [*packages.glob("pip")] else ():
            shutil.copytree(folder, packages / folder.name, ignore=UNFINISHED)
        for compiled in own.rglob("__pycache__"):
            target = packages / compiled.relative_to(own)
            # A few wheels bring some of it.
            if target.parent.is_dir() and not target.exists():
                shutil.copytree(compiled, target, ignore=UNFINISHED)

    def install(self, arguments: Sequence[str | Path]) -> None:
        _uv(*arguments, folder=self.elsewhere)

    def run(self, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's commands; nothing of the checkout is on the path."""
        return subprocess.run(
            [str(self.environment / "bin" / command), *map(str, arguments)],
            cwd=self.elsewhere,
            env={"PATH": os.defpath, "HOME": str(self.elsewhere), "LANG": "C.UTF-8"},
            capture_output=True,
            text=True,
            check=False,
        )

    def output(self, command: str, *arguments: str | Path) -> str:
        """What a command prints that must succeed."""
        done = self.run(command, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def megabytes(self) -> float:
        files = (path for path in self.environment.rglob("*") if path.is_file())
        return sum(path.lstat().st_size for path in files) / 1e6


def first_demos(folder: Path) -> tuple[float, float]:
    """The seconds that `uvx tpustack demo` takes, and `make demo` in a clone without a `.venv`."""
    tools = toolchain.find()
    machine = toolchain.engine(tools) | empty_machine(folder, build_wheels(folder), tools.bin)
    machine["XDG_CACHE_HOME"] = str(cache_folder().parent)
    venv = folder / "venv"
    make: list[str | Path] = [sys.executable, root() / "tools" / "make_venv.py", "--into", venv]
    demo = [str(venv / "bin" / "python"), "-m", "tpustack", "demo"]
    clone = dict(os.environ)
    return (
        _seconds(["uvx", "tpustack", "demo"], folder / "home", machine),
        _seconds(make, root(), clone) + _seconds(demo, root(), clone),
    )


def _seconds(command: Sequence[str | Path], folder: Path, variables: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def empty_machine(folder: Path, wheels: dict[str, Path], *paths: Path) -> dict[str, str]:
    """The variables of a machine with Python, uv and a package index alone, whose home is empty.

    uv takes our wheels from their folders, and all others from its cache.

    Args:
        paths: more folders with programs.
    """
    programs, home = folder / "bin", folder / "home"
    for each in (programs, home):
        each.mkdir()
    for name in ("uv", "uvx"):
        (programs / name).symlink_to(UV.with_name(name))
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    cache = subprocess.run([UV, "cache", "dir"], capture_output=True, text=True, check=True).stdout
    links = [*wheels.values(), build(COMMAND, folder)]
    return {
        **{name: value for name, value in os.environ.items() if name.startswith("UV_")},
        "PATH": os.pathsep.join((str(programs), *map(str, paths), os.defpath)),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "UV_CACHE_DIR": cache.strip(),
        "UV_CONSTRAINT": str(constraints(folder, "requirements.txt")),
        "UV_FIND_LINKS": ",".join(str(path.parent) for path in links),
        "UV_OFFLINE": "true",
    }


def constraints(folder: Path, lock: str) -> Path:
    """The locked versions, without hashes: our own wheels have none."""
    lines = (root() / lock).read_text(encoding="utf-8").splitlines()
    pins = [line.removesuffix("\\") for line in lines if "==" in line and line[0].isalnum()]
    path = folder / "constraints.txt"
    path.write_text("\n".join(pins), encoding="utf-8")
    return path


def _uv(*arguments: str | Path, folder: Path) -> None:
    done = subprocess.run(
        [UV, "--offline", "--quiet", *arguments],
        cwd=folder,
        env=os.environ | {"VIRTUAL_ENV": sys.prefix},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
