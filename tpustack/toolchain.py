"""The Pulumi engine, found or built by tools/install.py, and its settings for local use."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tpustack.errors import TpustackError
from tpustack.project import ROOT, STATE, cache_folder

# The stack `local` holds no secret; its passphrase only satisfies the secrets provider, and the
# salt in its settings file belongs to it.
PASSPHRASE = "local"


@dataclass(frozen=True)
class Toolchain:
    """Where the engine's binaries lie and where it came from."""

    bin: Path
    description: str


def find() -> Toolchain:
    """The engine, language host and provider; built now, with progress on stderr, if need be.

    Raises:
        TpustackError: when it can be neither found, downloaded nor built.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "install.py"), "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError("no Pulumi engine; the reason is above")
    report = json.loads(done.stdout)
    engine = report["engine"]
    return Toolchain(Path(report["bin"]), f"Pulumi {engine['version']} ({engine['origin']})")


def environment(toolchain: Toolchain, state: Path = STATE) -> dict[str, str]:
    """The variables with which Pulumi keeps its state in `state`, beside PATH."""
    state.mkdir(parents=True, exist_ok=True)
    return {
        "PATH": f"{toolchain.bin}{os.pathsep}{os.environ.get('PATH', '')}",
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
        "PULUMI_HOME": str(cache_folder() / "pulumi"),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


def exports(variables: dict[str, str]) -> str:
    """The variables as shell commands."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
