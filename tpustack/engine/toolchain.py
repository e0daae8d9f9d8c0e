"""The Pulumi engine: found, built or installed; the processes that outlive it.

Language host, program and provider have process groups of their own, and keep a mark of our command
in their environment. `make clean`, and the next command that runs the engine, end what earlier ones
have left.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tpu_core.process import began, place
from tpustack.errors import TpustackError, UsageError
from tpustack.project import cache_folder, clone

# The stack `local` holds no secret; its passphrase only satisfies the secrets provider, and the
# salt in its settings file belongs to it.
PASSPHRASE = "local"
_CURE = "Install the Pulumi CLI (https://www.pulumi.com/docs/install/), so that PATH has it"


@dataclass(frozen=True)
class Toolchain:
    """Where the engine's binaries and the provider are, and where the engine came from.

    Without a provider the engine takes the one in the user's own Pulumi home, or downloads it.
    """

    bin: Path
    provider: Path | None
    description: str


def find() -> Toolchain:
    """Find the engine, language host and provider.

    In a clone they are downloaded or built, with progress on stderr, if need be. Elsewhere the
    engine is the one on PATH, or else the one that `install` has put into the user's cache.

    Raises:
        TpustackError: when it can be neither found, downloaded nor built.
    """
    source = clone()
    if source is None:
        if (own := _users_own()) is None:
            raise TpustackError(lacking())
        return Toolchain(own.parent, None, f"Pulumi ({own})")
    done = subprocess.run(
        [sys.executable, str(source / "tools" / "install.py"), "--json"],
        env={**os.environ, **mark()},
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


def lacking() -> str:
    """Return what `find` would say of a missing engine; empty if it is there, or may be built."""
    return "" if clone() or _users_own() else f"pulumi is not on PATH. {_CURE}"


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Let wrong input to what runs the engine be told first, and a missing engine with it."""
    try:
        yield
    except UsageError as error:
        raise UsageError("\n".join(filter(None, (str(error), lacking())))) from None


def _users_own() -> Path | None:
    found = shutil.which("pulumi") or shutil.which("pulumi", path=_installed() / "bin")
    return Path(found) if found else None


def _installed() -> Path:
    return cache_folder() / f"pulumi-{version('pulumi')}"


def install() -> None:
    """Let the Automation API install the engine of its own version in the user's cache.

    Raises:
        TpustackError: when it can't be downloaded or doesn't run.
    """
    from pulumi.automation import InvalidVersionError, PulumiCommand

    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=cache) as made:
            PulumiCommand.install(f"{made}/pulumi")
            # What is interrupted before leaves nothing there. Another demo may have been quicker.
            if not _users_own():
                shutil.rmtree(_installed(), ignore_errors=True)
                os.rename(f"{made}/pulumi", _installed())
    except (OSError, HTTPException, subprocess.CalledProcessError, InvalidVersionError) as error:
        # Of the installer, what it wrote.
        said = getattr(error, "output", b"").decode(errors="replace").strip() or error
        raise TpustackError(
            f"Pulumi {version('pulumi')} can't be installed: {said}\n{_CURE}"
        ) from None


def fetch_provider(toolchain: Toolchain) -> None:
    """Let the user's own engine install Google's provider, unless it has it; it shows progress.

    In the environment of the local cloud nothing else on the network can be reached.

    Raises:
        TpustackError: when the engine has said why it can't.
    """
    if toolchain.provider is not None:
        return
    install = ["plugin", "install", "resource", "gcp", version("pulumi-gcp")]
    if subprocess.run([toolchain.bin / "pulumi", *install], check=False).returncode:
        raise TpustackError(f"`pulumi {' '.join(install)}` failed; the reason is above")


def environment(toolchain: Toolchain, state: Path) -> dict[str, str]:
    """Return the variables that select this engine and make it keep its state in `state`."""
    state.mkdir(parents=True, exist_ok=True)
    return engine(toolchain) | {
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
    }


def engine(toolchain: Toolchain) -> dict[str, str]:
    """Return the variables that select this engine; the user's own say where its state is."""
    if toolchain.provider is None:
        # First in PATH, its folder might hide the commands of an environment.
        path = os.environ.get("PATH", os.defpath)
        lacks = str(toolchain.bin) not in path.split(os.pathsep)
        added = {"PATH": f"{path}{os.pathsep}{toolchain.bin}"} if lacks else {}
        return {"PULUMI_SKIP_UPDATE_CHECK": "true", **added}
    # A Pulumi home of this project's own, in which the provider is installed: the user's own home
    # may have another build of the same version.
    home, provider = cache_folder() / "pulumi", toolchain.provider
    plugin = home / "plugins" / f"resource-gcp-v{version('pulumi-gcp')}" / provider.name
    if not plugin.is_symlink() or plugin.resolve() != provider.resolve():
        plugin.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: of two commands that start at once, neither may find the name missing.
        fresh = plugin.with_name(f".{provider.name}.{os.getpid()}")
        fresh.symlink_to(provider)
        fresh.replace(plugin)
    # The engine takes plugins from this home alone: none from PATH, where the user's own Pulumi may
    # have them, and none from the network, which a build without it could not reach.
    return {
        "PATH": f"{toolchain.bin}{os.pathsep}{os.environ.get('PATH', '')}",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_HOME": str(home),
        "PULUMI_IGNORE_AMBIENT_PLUGINS": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }


# Processes that outlive the engine.

# The value is process, its start and its place: a process number alone is used again, and is
# another process in another container.
MARK = "TPUSTACK_OWNER"
# Seconds that processes get to end after SIGTERM, and to be gone after SIGKILL.
_SECONDS = 5.0


def mark() -> dict[str, str]:
    """Return the variable that marks what this process starts, and what that starts."""
    return {MARK: _own(os.getpid())}


@lru_cache(maxsize=1)
def _own(pid: int) -> str:
    return f"{pid}:{_born(pid)}:{place()}"


def end_own() -> None:
    """End everything that this process has marked."""
    own = mark()[MARK]
    _end(lambda process: process.environ().get(MARK) == own)


def end_orphans() -> int:
    """End what processes have marked that are dead; return how many there were."""
    return _end(_is_orphan)


def _end(chosen: Callable[[psutil.Process], bool]) -> int:
    """End processes, politely and then for sure; return how many there were.

    They are looked for again until there are none: one that ends may have started another.
    """
    count = 0
    while found := _find(chosen):
        count += len(found)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, stubborn = psutil.wait_procs(found, timeout=_SECONDS)
        for process in stubborn:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(stubborn, timeout=_SECONDS)
    return count


def _find(chosen: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        # Other users' processes can't be read.
        with contextlib.suppress(psutil.Error, OSError):
            dead = process.status() == psutil.STATUS_ZOMBIE
            if not dead and process.pid != os.getpid() and chosen(process):
                found.append(process)
    return found


def _is_orphan(process: psutil.Process) -> bool:
    """Return whether the command that marked a process is dead; in another container: unknown."""
    owner = process.environ().get(MARK, "").split(":", 2)
    return len(owner) == 3 and owner[2] == place() and _born(int(owner[0])) != owner[1]


def _born(pid: int) -> str:
    """Return when a process began, by a clock that can't be set; nothing if none lives."""
    if ticks := began(pid):
        return ticks
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return f"{process.create_time():.1f}"
    return ""


if __name__ == "__main__":
    end_orphans()
