"""The project's folder, the folders of what it keeps, and its training wheel."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tpustack.errors import TpustackError, UsageError

BACKEND = "PULUMI_BACKEND_URL"
"""The variable that says where Pulumi keeps the stacks' state."""
_FILE = "Pulumi.yaml"
# Where Pulumi and this command both find the stack files. Other programs' projects lack it.
_OURS = re.compile(r"""^stackConfigDir: *["']?(\./)?stacks/?["']? *(#.*)?$""", re.MULTILINE)
# What a clone has, and no project of a user's.
_CLONE = Path("core/tpu_core")
_PACKAGE = Path(__file__).resolve().parent.parent


def root() -> Path:
    """Return the project's folder: the nearest at or above the current one, else the clone.

    Raises:
        UsageError: when there is none, or when Pulumi would take another project than this.
    """
    here = Path.cwd()
    project = next((folder for folder in (here, *here.parents) if is_project(folder)), None)
    nearest = next((each for each in (here, *here.parents) if (each / _FILE).exists()), None)
    if project is None and is_project(_PACKAGE):
        return _PACKAGE
    if project is None:
        other = f" ({nearest / _FILE} is of another program)" if nearest else ""
        raise UsageError(
            f"neither {here} nor a folder above it is a project of tpu-stack, whose {_FILE} says "
            f"`stackConfigDir: stacks`{other}. Change into one, or make one with `tpustack new`"
        )
    if nearest != project:
        raise UsageError(
            f"there are two projects: `pulumi` would take {nearest}, and `tpustack` {project}. "
            "Change into the one you mean"
        )
    return project


def is_project(folder: Path) -> bool:
    """Return whether a folder itself is a project whose stack files this command finds."""
    try:
        return bool(_OURS.search((folder / _FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def clone() -> Path | None:
    """Return the clone that is worked in, or whose code runs; None: this is installed."""
    return next((each for each in (root(), _PACKAGE) if (each / _CLONE).is_dir()), None)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises UsageError if it can't be read, or isn't YAML."""
    # The jobs' commands load neither YAML nor the settings, which take longer than their work.
    import yaml

    from tpu_infra.settings.parse import load_yaml, yaml_reason

    name = f"{path.parent.name}/{path.name}"
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not valid YAML: {yaml_reason(error)}") from None


def locked_provider() -> str | None:
    """Return the version of pulumi-gcp that a user's own project pins, which its program runs with.

    A clone's program runs with the installed one, as this command.
    """
    folder = root()
    try:
        lock = (folder / "requirements.txt").read_text(encoding="utf-8")
    except OSError:
        return None
    pinned = re.search(r"^pulumi-gcp==([\d.]+)", lock, re.MULTILINE)
    return pinned[1] if pinned and not (folder / _CLONE).is_dir() else None


def state() -> Path:
    """Return the folder of the local stacks' state."""
    return root() / ".state"


def demo() -> Path:
    """Return the folder where the demo keeps its data and its figures; Git ignores it."""
    return root() / ".demo"


def local_cloud_home() -> Path:
    """Return the folder of the local cloud."""
    return Path(os.environ.get("LOCALCLOUD_HOME") or root() / ".localcloud")


def cache_folder() -> Path:
    """Return the user's cache folder for this project: what a second clone need not make again.

    XDG_CACHE_HOME counts on every system; else it is where the system keeps caches.
    """
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "tpu-stack"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tpu-stack"
    return Path.home() / ".cache" / "tpu-stack"


# The wheel's digest names it in the bucket, and another digest means another boot of the VM. So two
# builds of the same sources must be equal: all files get this time, 1980-01-01, which is the
# earliest that a zip archive can hold.
_EPOCH = "315532800"


def build_wheel(output: Path | None = None) -> Path:
    """Put the training wheel into `output` (dist/), in place of an older one.

    It is built from a clone's training/; without a clone it is packed from what is installed.

    Raises:
        TpustackError: with the build's output when it fails.
    """
    output, source = output or root() / "dist", clone()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        built = _build(source, place) if source else pack("tpu-stack-training", place)
        output.mkdir(parents=True, exist_ok=True)
        for old in output.glob("tpu_stack_training-*.whl"):
            old.unlink()
        return Path(shutil.move(built, output / built.name))


def _build(source: Path, output: Path) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        # A build leaves files next to the sources, so it gets a copy. Git on Windows writes a text
        # for the link to core, and a wheel without core would fail only on the machine.
        made = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "tpu_core")
        shutil.copytree(source / "training", f"{folder}/training", ignore=made)
        shutil.copytree(source / _CLONE, f"{folder}/training/tpu_core", ignore=made)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "--wheel-dir", str(output), f"{folder}/training"]
        fixed = {"SOURCE_DATE_EPOCH": _EPOCH, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            command, env=os.environ | fixed, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise TpustackError(f"the training wheel can't be built:\n{done.stderr.strip()}")
    return next(output.glob("*.whl"))


def pack(name: str, output: Path) -> Path:
    """Put the wheel of an installed distribution into `output`.

    It has the files that were installed, so that no index and no network is asked for them.

    Raises:
        UsageError: when it was installed from a clone, for development.
    """
    found = distribution(name)
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        raise UsageError(
            f"{name} is installed from a clone, so there is no wheel of it. Install the wheels of "
            "`make release` in another environment, and run the command there"
        )
    # The packages of this project are pure Python.
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{name.replace('-', '_')}-{found.version}-py3-none-any.whl"
    records = (found.read_text("RECORD") or "").splitlines()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        kept = sorted(line for line in records if not _OF_INSTALLER.search(line.split(",")[0]))
        for file in (line.split(",")[0] for line in kept):
            source = Path(str(found.locate_file(file)))
            listed = file.endswith(".dist-info/RECORD")
            entry = zipfile.ZipInfo(file)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # pip looks at the bits of regular files alone.
            mode = stat.S_IFREG | (0o755 if os.access(source, os.X_OK) else 0o644)
            entry.external_attr = mode << 16
            content = "".join(f"{line}\n" for line in kept).encode() if listed else None
            wheel.writestr(entry, source.read_bytes() if content is None else content)
    return path


# What an installer adds to the files of a wheel (packaging.python.org, "Recording installed
# projects"): commands, compiled modules, and where the wheel was from.
_OF_INSTALLER = re.compile(
    r"^\.\.|__pycache__/|\.dist-info/(INSTALLER|REQUESTED|direct_url\.json|uv_\w+\.json)$"
)
