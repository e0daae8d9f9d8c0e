"""The project's folder, the folders of what it keeps, and its training wheel."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tpustack.errors import TpustackError, UsageError

BACKEND = "PULUMI_BACKEND_URL"
"""The variable that says where Pulumi keeps the stacks' state."""
_NAME = re.compile(r"^name: tpu-stack$", re.MULTILINE)


def root() -> Path:
    """Return the project's folder: the nearest at or above the current one, else the checkout.

    Raises:
        UsageError: when the command runs outside any checkout of the project.
    """
    here = Path.cwd()
    for folder in (here, *here.parents, Path(__file__).resolve().parent.parent):
        if _is_project(folder):
            return folder
    raise UsageError(
        f"neither {here} nor a folder above it is a checkout of tpu-stack (its Pulumi.yaml is "
        "missing). Change into a clone of the project and run the command there"
    )


def _is_project(folder: Path) -> bool:
    try:
        return bool(_NAME.search((folder / "Pulumi.yaml").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises UsageError if it can't be read, or isn't YAML."""
    # The jobs' commands load neither YAML nor the settings, which take longer than their work.
    import yaml

    from infra.settings.parse import load_yaml

    name = f"{path.parent.name}/{path.name}"
    try:
        return load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{name} is not valid YAML: {' '.join(str(error).split())}") from None


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
    """Build the wheel of training/ into `output` (dist/), in place of an older one.

    Raises:
        TpustackError: with the build's output when it fails.
    """
    output = output or root() / "dist"
    with tempfile.TemporaryDirectory() as folder:
        # A build leaves files next to the sources, so it gets a copy. Git on Windows writes a text
        # for the link to core, and a wheel without core would fail only on the machine.
        made = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "tpu_core")
        shutil.copytree(root() / "training", f"{folder}/training", ignore=made)
        shutil.copytree(root() / "core/tpu_core", f"{folder}/training/tpu_core", ignore=made)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "--wheel-dir", folder, f"{folder}/training"]
        fixed = {"SOURCE_DATE_EPOCH": _EPOCH, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            command, env=os.environ | fixed, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise TpustackError(f"the training wheel can't be built:\n{done.stderr.strip()}")
        built = next(Path(folder).glob("*.whl"))
        output.mkdir(parents=True, exist_ok=True)
        for old in output.glob("tpu_stack_training-*.whl"):
            old.unlink()
        return Path(shutil.move(built, output / built.name))
