"""Fetch the official releases, checked against the digests that this repository pins."""

from __future__ import annotations

import functools
import http.client
import os
import shutil
import tarfile
import urllib.request
from pathlib import Path, PurePosixPath

from toolchain import cache, pins, plugins, processes

# Every archive is checked against this repository's digest, from whichever mirror it comes.
_MIRROR, _RELEASES = "TPUSTACK_PULUMI_RELEASES", "https://get.pulumi.com/releases/sdk"
# Of each connection and each read, not of the whole download.
_TIMEOUT_SECONDS = 5.0
_FAILURES = (OSError, http.client.HTTPException)


@functools.cache
def reachable() -> bool:
    """Tell, within seconds, whether Pulumi's download site answers from here."""
    try:
        with urllib.request.urlopen(_checksums_address(), timeout=_TIMEOUT_SECONDS):
            return True
    except _FAILURES:
        place = f"the mirror in {_MIRROR}" if os.environ.get(_MIRROR) else "Pulumi's download site"
        processes.say(f"{place} can't be reached")
        return False


def cached_engine() -> Path | None:
    """Return the folder of an engine that was downloaded before."""
    folder = cache.root() / _entry_name()
    return folder if folder.is_dir() else None


def engine() -> Path:
    """Return the folder with the official engine and its language hosts."""
    return cache.entry(
        _entry_name(),
        make=_download_engine,
        waiting=lambda: processes.say(
            "waiting for another process, which is downloading the engine"
        ),
    )


def provider(engine_path: Path) -> Path:
    """Let Pulumi install its gcp plugin, and return it."""
    install: list[str | Path] = [engine_path, "plugin", "install", "resource", "gcp"]
    # A link to a built one may lie in its place.
    install += [pins.PROVIDER_VERSION, "--reinstall"]
    archive = f"{pins.PROVIDER}-v{pins.PROVIDER_VERSION}-{cache.machine()}.tar.gz"
    if pins.in_ci() or archive in pins.pinned():
        install += ["--checksum", pins.pinned_of(archive)]
    with processes.patience(f"downloading the gcp plugin {pins.PROVIDER_VERSION}"):
        processes.run(install)
    plugin = plugins.installed()
    if plugin is None:
        raise pins.ToolchainError(
            "pulumi installed the gcp plugin, but its home has no such plugin"
        )
    return plugin


def _entry_name() -> str:
    return f"pulumi-{pins.ENGINE_VERSION}-official-{cache.machine()}"


def _checksums_address() -> str:
    return _address(f"pulumi-{pins.ENGINE_VERSION}-checksums.txt")


def _address(file: str) -> str:
    return f"{os.environ.get(_MIRROR) or _RELEASES}/{file}"


def _download_engine(folder: Path) -> None:
    # Pulumi's releases say x64 where Go says amd64.
    archive = f"pulumi-v{pins.ENGINE_VERSION}-{cache.machine().replace('amd64', 'x64')}.tar.gz"
    expected = pins.pinned_of(archive)
    packed = folder / archive
    try:
        with (
            processes.patience(f"downloading pulumi {pins.ENGINE_VERSION}"),
            urllib.request.urlopen(_address(archive), timeout=_TIMEOUT_SECONDS) as answer,
            packed.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
    except _FAILURES as error:
        raise pins.ToolchainError(f"the download of {archive} failed: {error}") from error
    if pins.digest_of(packed) != expected:
        raise pins.ToolchainError(
            f"{archive} doesn't have the digest that {pins.DIGESTS.name} pins, so it is not used"
        )
    _unpack(packed, folder)
    packed.unlink()


def _unpack(packed: Path, folder: Path) -> None:
    """Put the archive's programs flat into the folder, whatever folders they lie in."""
    with tarfile.open(packed) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None:
                program = folder / PurePosixPath(member.name).name
                program.write_bytes(content.read())
                program.chmod(0o755)
    if not (folder / pins.ENGINE).is_file():
        raise pins.ToolchainError(f"{packed.name} has no program named {pins.ENGINE}")
