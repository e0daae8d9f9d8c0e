"""Make the virtual environment `.venv` with the locked dependencies.

Run it with any Python 3.8 or newer; it needs nothing else: `python3 tools/make_venv.py`. It looks
for an interpreter that TensorFlow has a wheel for, and does nothing when `.venv` is up to date.
With --deploy it leaves out what only training, TPUs of the local cloud and the tests need.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FULL_LOCK = ROOT / "requirements.txt"
DEPLOY_LOCK = ROOT / "requirements-deploy.txt"
DISTRIBUTIONS = ("core", "training", "localcloud", ".")
# TensorFlow 2.19, the last release with full TPU support, has wheels for these.
SUITABLE = ((3, 12), (3, 11), (3, 10))
DEPLOYING = ((3, 13), *SUITABLE)


def main() -> int:
    """Make or update the environment; the exit code is 0 when it is ready."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deploy", action="store_true", help="only what deploying needs")
    parser.add_argument("--into", type=Path, default=ROOT / ".venv", help="folder (default: .venv)")
    options = parser.parse_args()
    venv: Path = options.into.absolute()
    lock = DEPLOY_LOCK if options.deploy else FULL_LOCK
    if _is_ready(venv, lock):
        return 0
    suitable = DEPLOYING if options.deploy else SUITABLE
    python = find_python(suitable)
    if python is None:
        print(_no_python(suitable), file=sys.stderr)
        return 1
    try:
        _install(python, venv, lock)
    except subprocess.CalledProcessError as error:
        print(
            f"error: `{' '.join(map(str, error.cmd))}` failed with exit code "
            f"{error.returncode}. Its output is above. Remove the cause and run make again.",
            file=sys.stderr,
        )
        return 1
    return 0


def _is_ready(venv: Path, lock: Path) -> bool:
    """Whether `venv` has what `lock` pins; the full environment has what deploying needs, too."""
    stamp = venv / ".installed"
    installed = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
    return installed in {_fingerprint(lock), _fingerprint(FULL_LOCK)}


def find_python(suitable: tuple[tuple[int, int], ...] = SUITABLE) -> str | None:
    """Find an interpreter of a suitable version: this one, one on PATH, or one that uv knows."""
    if sys.version_info[:2] in suitable:
        return sys.executable
    names = [f"python{major}.{minor}" for major, minor in suitable]
    candidates = [path for path in map(shutil.which, names) if path]
    uv = shutil.which("uv")
    if uv:
        found = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", f">=3.10,<3.{suitable[0][1] + 1}"],
            capture_output=True,
            text=True,
            check=False,
        )
        candidates += [found.stdout.strip()] if found.returncode == 0 else []
    # A shim on PATH may stand for a version that is not installed: it has to run.
    return next((path for path in candidates if _runs(path)), None)


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _no_python(suitable: tuple[tuple[int, int], ...]) -> str:
    have = ".".join(map(str, sys.version_info[:2]))
    last = f"3.{suitable[0][1]}"
    why = "" if suitable == DEPLOYING else ", for which TensorFlow 2.19.1 has wheels"
    return (
        f"error: this takes Python 3.10 to {last}{why}. This is Python {have}, and PATH has none "
        f"of those.\nInstall one with uv: `pip install uv && uv python install {last}`. Then run "
        f"make again.\nTo use another interpreter, name it: `make PYTHON=/path/to/python{last}`."
    )


def _install(python: str, venv: Path, lock: Path) -> None:
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1")
    # uv reads its own setting for the index, not that of pip.
    if index := environment.get("PIP_INDEX_URL"):
        environment.setdefault("UV_DEFAULT_INDEX", index)
    print(f"creating {venv.name} with {python} …", file=sys.stderr)
    _run([python, "-m", "venv", "--clear", str(venv)], environment)
    venv_python = str(venv / "bin" / "python")
    with tempfile.TemporaryDirectory() as folder:
        # pip installs uv alone, by its hashes; uv installs the rest in a fraction of the time.
        only_uv = Path(folder) / "uv.txt"
        only_uv.write_text(_locked("uv", lock), encoding="utf-8")
        pip = [venv_python, "-m", "pip", "install", "--quiet", "--require-hashes"]
        _run([*pip, "-r", str(only_uv)], environment)
    uv = [str(venv / "bin" / "uv"), "pip", "install", "--python", venv_python]
    if not sys.stderr.isatty():
        uv.append("--quiet")
    _run([*uv, "--require-hashes", "-r", str(lock)], environment)
    for name in DISTRIBUTIONS:
        own = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT / name)]
        _run([*uv, *own], environment)
    # Last: an environment that was left half made has no stamp, and is made again.
    (venv / ".installed").write_text(_fingerprint(lock), encoding="utf-8")


def _locked(name: str, lock: Path) -> str:
    """Return the lock file's entry of one package, with its hashes."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"{name}=="))
    # An entry ends with its first line without a backslash.
    end = next(index for index in range(start, len(lines)) if not lines[index].endswith("\\"))
    return "\n".join(lines[start : end + 1]) + "\n"


def _fingerprint(lock: Path) -> str:
    digest = hashlib.sha256()
    for path in (lock, *(ROOT / name / "pyproject.toml" for name in DISTRIBUTIONS)):
        digest.update(path.read_bytes())
    # Editable installs name this folder: a clone that was moved needs another environment.
    return digest.hexdigest() + f" {ROOT}\n"


def _run(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
