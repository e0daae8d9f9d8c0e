"""The gcp plugin among Pulumi's own plugins, where the engine finds it without a warning."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from toolchain import cache
from toolchain.pins import PROVIDER, PROVIDER_VERSION


def installed() -> Path | None:
    """Return the installed plugin, if there is one; what `link` put there is not."""
    plugin = _place()
    return plugin if plugin.is_file() and not _is_ours(plugin) else None


def link(provider: Path) -> None:
    """Put a link to the built provider there, unless a plugin is installed.

    On PATH the provider would be named in a warning at every command.
    """
    plugin, target = _place(), provider.resolve()
    if plugin.resolve() == target or (os.path.lexists(plugin) and not _is_ours(plugin)):
        return
    plugin.parent.mkdir(parents=True, exist_ok=True)
    # A link is replaced in one step: an engine that looks at this moment finds the old one or the
    # new one.
    fresh = plugin.with_name(f".{PROVIDER}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # of a process with the same number that was killed
    fresh.symlink_to(target)
    fresh.replace(plugin)


def _is_ours(plugin: Path) -> bool:
    """Tell whether it is a link into a cache of this project, this user's or another one."""
    return plugin.is_symlink() and plugin.resolve().parts[-4:-2] == cache.root().parts[-2:]


def _place() -> Path:
    home = Path(os.environ.get("PULUMI_HOME") or _home() / ".pulumi")
    return home / "plugins" / f"resource-gcp-v{PROVIDER_VERSION}" / PROVIDER


def _home() -> Path:
    """Return the user's home as Pulumi does: the system's word counts before $HOME."""
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()
