"""An engineer: a home with nothing in it, a clone, and a shell that runs the commands of a page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE
from tests.wheels import UNFINISHED

from .pages import ROOT

# Google's own command line, as far as the pages use it: it asks a browser who is there.
_GCLOUD = """#!/bin/sh
case "$*" in
  "auth application-default login")
    mkdir -p "$HOME/.config/gcloud"
    cp '{login}' "$HOME/.config/gcloud/application_default_credentials.json" ;;
  "config get project") echo '{project}' ;;
  *) echo "gcloud $*: the pages used only the login so far" >&2; exit 1 ;;
esac
"""


@dataclass(frozen=True)
class Life:
    """How a script ended, and all that it wrote."""

    code: int
    said: str


class Engineer:
    """One person on one machine.

    Args:
        name: as the machine knows the person, and its stacks call themselves.
        folder: of the home and the clone.
        refresh_token: what the login gets from Google.
        network: the variables that lead to the local cloud.
        project: the Google Cloud project.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        refresh_token: str,
        network: Mapping[str, str],
        project: str,
    ) -> None:
        self.name = name
        self._clone = folder / "tpu-stack"
        home, bin_folder = folder / "home", folder / "bin"
        bin_folder.mkdir(parents=True)
        _keep_caches(home)
        login = folder / "login.json"
        login.write_text(json.dumps(_login(refresh_token)), encoding="utf-8")
        gcloud = bin_folder / "gcloud"
        gcloud.write_text(_GCLOUD.format(login=login, project=project), encoding="utf-8")
        gcloud.chmod(0o755)
        self._environment = {
            **network,
            "HOME": str(home),
            # Pulumi asks the system for the home of its user, who is the same for all.
            "PULUMI_HOME": str(home / ".pulumi"),
            "USER": name,
            "LANG": "C.UTF-8",
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
        }
        _clone(self._clone)

    def live(self, script: str) -> Life:
        """Run the commands in one shell, which ends at the first that fails."""
        done = subprocess.run(
            ["bash", "-c", f"set -exuo pipefail\n{script}"],
            cwd=self._clone,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        self._clone.with_name("life.log").write_text(done.stdout, encoding="utf-8")
        return Life(done.returncode, done.stdout)


def _login(refresh_token: str) -> dict[str, str]:
    """What `gcloud auth application-default login` writes."""
    return {
        "type": "authorized_user",
        "client_id": "local.apps.googleusercontent.com",
        "client_secret": "local",
        "refresh_token": refresh_token,
    }


def _keep_caches(home: Path) -> None:
    """What this machine has downloaded and built already, as a second clone finds it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tpu-stack"
    cache.mkdir(parents=True, exist_ok=True)
    (home / ".cache").mkdir(parents=True)
    (home / ".cache" / "tpu-stack").symlink_to(cache)


def _clone(target: Path) -> None:
    """The files of this repository, changed ones as they are now, and its virtual environment.

    `make setup` finds that environment ready: making it takes half a minute, and CI begins with it.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, names.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            # With its time, by which Python finds what it has compiled.
            shutil.copy2(ROOT / name, target / name)
    for compiled in ROOT.glob("[a-z]*/**/__pycache__"):
        folder = target / compiled.relative_to(ROOT)
        if folder.parent.is_dir():
            shutil.copytree(compiled, folder, ignore=UNFINISHED)
    venv = target / ".venv"
    venv.mkdir()
    for part in Path(sys.prefix).iterdir():
        (venv / part.name).symlink_to(part)
    stamp = venv / ".installed"
    text = stamp.read_text(encoding="utf-8")
    stamp.unlink()
    stamp.write_text(text.replace(f" {ROOT}\n", f" {target}\n"), encoding="utf-8")
