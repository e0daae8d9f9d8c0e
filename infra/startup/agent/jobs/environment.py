"""The environment of one try: its files, a Python environment of its own, its variables."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import layout
from .record import Spec
from .store import Store
from .unpack import check_digest, unpack

PYTHON, PACKAGES = "TPU_STACK_PYTHON", "TPU_STACK_PACKAGES"
"""Variables of the runner's unit: the Python that has TensorFlow, and where the trainer is."""
_HASH = "--hash="
_WRITE = "import os, sys; p = sys.argv[1]; open(p, 'w').write(sys.argv[2]); os.chmod(p, 0o755)"
_TRAINER = '#!/bin/sh\nexec python -m tpu_training "$@"\n'
_PATHS = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"


class SetupError(Exception):
    """What a job needs can't be had."""


class Environment:
    """Makes what a try runs in.

    Args:
        folder: the try's.
        spec: what to run.
        content: what the runner knows of it: `variables`, `job`, and whether it `sees_packages` of
            the machine's Python whatever its framework.
        call: runs a command with further variables, and returns its exit code.
        own: gives the job folders. From then on its commands alone change them: it may have put
            links there.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        content: Mapping[str, Any],
        call: Callable[[Sequence[str], Mapping[str, str]], int],
        own: Callable[[Iterable[Path]], None],
    ) -> None:
        self._own = own
        self._folder, self._spec, self._content, self._call = folder, spec, content, call
        self._work, self._venv = folder / "work", folder / "venv"
        self.artifacts = folder / "artifacts"

    def make(self, store: Store) -> None:
        """Make it. Raises SetupError, Harmful or StoreError."""
        folders = (self._work, self.artifacts, self._venv, self._folder / "home")
        for path in folders:
            path.mkdir(exist_ok=True)
        wheel = self._fetch(store)
        needed = [*([str(wheel)] if wheel else []), *self._requirements()]
        # By /dev/stderr a job opens its log again.
        self._own((*folders, self._folder / "log"))
        self._make_venv(with_pip=bool(needed))
        if self._spec.framework == "tensorflow" or self._content.get("sees_packages"):
            self._see_packages()
        if needed:
            self._install(needed)

    def variables(self) -> dict[str, str]:
        """Return the variables of the job's processes."""
        path = f"{self._venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {"PATH": path, "VIRTUAL_ENV": str(self._venv), "ARTIFACTS_DIR": str(self.artifacts)}
        return {**own, **self._content["variables"]}

    def _fetch(self, store: Store) -> Path | None:
        """Bring the job's archive here; return the wheel if it is one."""
        if not self._spec.archive:
            return None
        found = store.read(layout.archive(self._spec.archive))
        if found is None:
            raise SetupError(f"its archive {self._spec.archive} is no longer in the bucket")
        is_wheel = self._spec.kind == "wheel"
        # pip reads name and version in a wheel's own name.
        path = self._folder / (Path(self._spec.source).name if is_wheel else "archive.tar.gz")
        path.write_bytes(found[0])
        check_digest(path, self._spec.archive)
        if is_wheel:
            return path
        unpack(path, self._work)
        path.unlink()
        return None

    def _requirements(self) -> list[str]:
        if not self._spec.requirements:
            return []
        path = self._folder / "requirements.txt"
        path.write_text(self._spec.requirements, "utf-8")
        hashes = ["--require-hashes"] if _HASH in self._spec.requirements else []
        return [*hashes, "--requirement", str(path)]

    def _make_venv(self, *, with_pip: bool) -> None:
        command = [self._python(), "-I", "-m", "venv", "--clear", str(self._venv)]
        if self._call(command if with_pip else [*command, "--without-pip"], {}) != 0:
            raise SetupError("no Python environment could be made")

    def _install(self, needed: Sequence[str]) -> None:
        pip = [str(self._venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        # A wheel of the person's own has no hash in their lock file.
        for arguments in _apart(needed):
            if self._call([*pip, "install", "--quiet", *arguments], {}) != 0:
                raise SetupError("its requirements can't be met: the log says which")

    def _see_packages(self) -> None:
        """Let the environment find the machine's TensorFlow, and the trainer."""
        asked = subprocess.run(
            [self._python(), "-c", _PATHS], capture_output=True, text=True, check=False
        )
        if asked.returncode != 0:
            raise SetupError("the machine's TensorFlow can't be found")
        paths = [*json.loads(asked.stdout), *filter(None, [os.environ.get(PACKAGES)])]
        (packages,) = self._venv.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({path!r})" for path in paths]
        self._write(packages / "tpu-stack.pth", "\n".join([*lines, ""]))
        self._write(self._venv / "bin" / "tpu-training", _TRAINER)

    def _write(self, path: Path, text: str) -> None:
        """Write a program or a file as the job, whose folder it is in."""
        if self._call([self._python(), "-I", "-c", _WRITE, str(path), text], {}) != 0:
            raise SetupError(f"{path.name} could not be written")

    @staticmethod
    def _python() -> str:
        return os.environ.get(PYTHON) or "python3"


def _apart(needed: Sequence[str]) -> list[list[str]]:
    wheels = [one for one in needed if one.endswith(".whl")]
    rest = [one for one in needed if one not in wheels]
    return [part for part in (rest, wheels) if part]
