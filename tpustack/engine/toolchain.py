"""The Pulumi engine, found or built by tools/install.py, and its settings for local use."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tpustack.engine import leftovers
from tpustack.errors import TpustackError
from tpustack.project import cache_folder, root

# The stack `local` holds no secret; its passphrase only satisfies the secrets provider, and the
# salt in its settings file belongs to it.
PASSPHRASE = "local"


@dataclass(frozen=True)
class Toolchain:
    """Where the engine's binaries and the provider lie, and where the engine came from."""

    bin: Path
    provider: Path
    description: str


def find() -> Toolchain:
    """Find the engine, language host and provider; build them, with progress on stderr, if need be.

    Raises:
        TpustackError: when it can be neither found, downloaded nor built.
    """
    done = subprocess.run(
        [sys.executable, str(root() / "tools" / "install.py"), "--json"],
        env={**os.environ, **leftovers.mark()},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError("no Pulumi engine; the reason is above")
    report = json.loads(done.stdout)
    engine = report["engine"]
    return Toolchain(
        Path(report["bin"]),
        Path(report["provider"]["path"]),
        f"Pulumi {engine['version']} ({engine['origin']})",
    )


def environment(toolchain: Toolchain, state: Path) -> dict[str, str]:
    """Return PATH and the variables that make Pulumi keep its state in `state`."""
    state.mkdir(parents=True, exist_ok=True)
    return engine(toolchain) | {
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
    }


def engine(toolchain: Toolchain) -> dict[str, str]:
    """Return the variables that select this engine; the user's own say where its state is."""
    return {
        "PATH": f"{toolchain.bin}{os.pathsep}{os.environ.get('PATH', '')}",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    } | _home_with(toolchain.provider)


def _home_with(provider: Path) -> dict[str, str]:
    """Make a Pulumi home of this project's own, in which the provider is installed."""
    home = cache_folder() / "pulumi"
    plugin = home / "plugins" / f"resource-gcp-v{version('pulumi-gcp')}" / provider.name
    if not plugin.is_symlink() or plugin.resolve() != provider.resolve():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        fresh = plugin.with_name(f".{provider.name}.{os.getpid()}")
        fresh.symlink_to(provider)
        fresh.replace(plugin)
    return {
        "PULUMI_HOME": str(home),
        "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


def exports(variables: dict[str, str]) -> str:
    """Return the variables as shell commands."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
