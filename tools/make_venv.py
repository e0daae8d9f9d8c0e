"""Makes the virtual environment `.venv` with the locked dependencies.

Runs with any Python 3.8 or newer and needs nothing else: `python3 tools/make_venv.py`. It looks for
an interpreter that TensorFlow has a wheel for, and does nothing when `.venv` is up to date.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.txt"
STAMP = VENV / ".installed"
# TensorFlow 2.19, the last release with full TPU support, has wheels for these.
SUITABLE = ((3, 12), (3, 11), (3, 10))


def main() -> int:
    """Make or update `.venv`; the exit code is 0 when it is ready."""
    wanted = _fingerprint()
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return 0
    python = find_python()
    if python is None:
        print(_no_python(), file=sys.stderr)
        return 1
    try:
        _install(python)
    except subprocess.CalledProcessError as error:
        print(
            f"error: `{' '.join(map(str, error.cmd))}` failed with exit code "
            f"{error.returncode}; its output is above. Nothing else was changed; run make again "
            "once the cause is removed.",
            file=sys.stderr,
        )
        return 1
    STAMP.write_text(wanted, encoding="utf-8")
    return 0


def find_python() -> str | None:
    """An interpreter of a suitable version: this one, one on PATH, or one that uv knows."""
    if sys.version_info[:2] in SUITABLE:
        return sys.executable
    names = [f"python{major}.{minor}" for major, minor in SUITABLE]
    candidates = [path for path in map(shutil.which, names) if path]
    uv = shutil.which("uv")
    if uv:
        found = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", ">=3.10,<3.13"],
            capture_output=True,
            text=True,
            check=False,
        )
        candidates += [found.stdout.strip()] if found.returncode == 0 else []
    # A shim on PATH may stand for a version that is not installed: it has to run.
    return next((path for path in candidates if _runs(path)), None)


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _no_python() -> str:
    have = ".".join(map(str, sys.version_info[:2]))
    return (
        f"error: TensorFlow 2.19.1 has no wheel for Python {have}, and no Python 3.10, 3.11 or "
        "3.12 was found.\n"
        "uv gets one that has: pip install uv && uv python install 3.12, then run make again\n"
        "(or name an interpreter: make demo PYTHON=/path/to/python3.12)."
    )


def _install(python: str) -> None:
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    print(f"making .venv with {python} …", file=sys.stderr)
    STAMP.unlink(missing_ok=True)
    _run([python, "-m", "venv", "--clear", str(VENV)], environment)
    venv_python = str(VENV / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        only_uv = Path(folder) / "uv.txt"
        only_uv.write_text(_locked("uv"), encoding="utf-8")
        pip = [venv_python, "-m", "pip", "install", "--quiet", "--require-hashes"]
        _run([*pip, "-r", str(only_uv)], environment)
    uv = [str(VENV / "bin" / "uv"), "pip", "install", "--python", venv_python]
    if not sys.stderr.isatty():
        uv.append("--quiet")
    _run([*uv, "--require-hashes", "-r", str(LOCK)], environment)
    project = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    _run([*uv, *project], environment)


def _locked(name: str) -> str:
    """The lock file's entry of one package, with its hashes."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"{name}=="))
    end = next(index for index in range(start, len(lines)) if not lines[index].endswith("\\"))
    return "\n".join(lines[start : end + 1]) + "\n"


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest() + f" {ROOT}\n"


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
