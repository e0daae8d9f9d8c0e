"""Choose for each part where it comes from: this machine, Pulumi's site, or a build."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolchain import cache, download, gobuild, pins, plugins, processes
from toolchain.processes import say


@dataclass(frozen=True)
class Part:
    """One program of the toolchain, and where it came from: path, download or build."""

    version: str
    origin: str
    path: str


@dataclass(frozen=True)
class Engine:
    """The engine and what it runs Python programs with; these fit each other."""

    engine: Part
    host: Part
    scripts: tuple[Path, ...]


@dataclass(frozen=True)
class Toolchain:
    """All parts, and the one folder that has the engine and its host side by side."""

    bin: Path
    engine: Part
    language_host: Part
    provider: Part

    def tell(self) -> None:
        """Say which parts there are, and where they are from."""
        parts = {
            pins.ENGINE: self.engine,
            pins.HOST: self.language_host,
            pins.PROVIDER: self.provider,
        }
        for name, part in parts.items():
            say(f"{name} {part.version} (from {part.origin})")

    def as_json(self, seconds: float) -> Mapping[str, object]:
        """Return what `install.py --json` prints."""
        return {**asdict(self), "bin": str(self.bin), "seconds": round(seconds, 1)}


def toolchain(languages: Sequence[str] = ()) -> Toolchain:
    """Find, download or build every part, and put them where Pulumi looks for them.

    `languages` are those of `pins.LANGUAGES` whose programs the engine shall run, too.
    """
    engine = choose_engine()
    provider = choose_provider(engine.engine)
    plugins.link(Path(provider.path))
    return Toolchain(
        bin=_side_by_side(
            {
                pins.ENGINE: Path(engine.engine.path),
                pins.HOST: Path(engine.host.path),
                **{script.name: script for script in engine.scripts},
                **{host.name: host for host in (_host_of(each, engine) for each in languages)},
            }
        ),
        engine=engine.engine,
        language_host=engine.host,
        provider=provider,
    )


def choose_engine() -> Engine:
    """Take the engine on PATH, else one that is cached, else download it, else build it."""
    on_path = _engine_on_path()
    if on_path:
        return on_path
    downloaded = download.cached_engine()
    if downloaded:
        return _engine_in(downloaded, downloaded, "download", pins.ENGINE_VERSION)
    if not (gobuild.cached(pins.MODULES[pins.ENGINE]) and gobuild.cached(pins.MODULES[pins.HOST])):
        try:
            if download.reachable():
                folder = download.engine()
                return _engine_in(folder, folder, "download", pins.ENGINE_VERSION)
        except pins.ToolchainError as error:
            say(f"{error}\nbuilding it instead")
    built, host = gobuild.build(pins.MODULES[pins.ENGINE]), gobuild.build(pins.MODULES[pins.HOST])
    return _engine_in(built, host, "build", pins.HOST_VERSION)


def choose_provider(engine: Part) -> Part:
    """Take the gcp plugin that Pulumi has, else a cached build, else install it, else build it."""
    installed = plugins.installed()
    if installed and pins.may_run(installed):
        return Part(pins.PROVIDER_VERSION, "path", str(installed))
    if not gobuild.cached(pins.MODULES[pins.PROVIDER]):
        try:
            if download.reachable():
                return Part(
                    pins.PROVIDER_VERSION, "download", str(download.provider(Path(engine.path)))
                )
        except pins.ToolchainError as error:
            say(f"{error}\nbuilding it instead")
    folder = gobuild.build(pins.MODULES[pins.PROVIDER])
    return Part(pins.PROVIDER_VERSION, "build", str(folder / pins.PROVIDER))


def _host_of(language: str, engine: Engine) -> Path:
    """Return the host of another language: the one that came with the engine, else a build."""
    module = pins.LANGUAGES[language]
    sibling = Path(engine.engine.path).resolve().with_name(module.name)
    if sibling.is_file() and (engine.engine.origin != "path" or pins.may_run(sibling)):
        return sibling
    return gobuild.build(module) / module.name


def _engine_on_path() -> Engine | None:
    paths = {name: shutil.which(name) for name in (pins.ENGINE, pins.HOST, *pins.HOST_SCRIPTS)}
    engine, host = paths[pins.ENGINE], paths[pins.HOST]
    scripts = tuple(Path(path) for name in pins.HOST_SCRIPTS if (path := paths[name]))
    # Our own folder may be on PATH already; then its parts are what they were before.
    if engine is None or Path(engine).resolve().is_relative_to(cache.root().resolve()):
        return None
    if refused := [path for path in paths.values() if path and not pins.may_run(Path(path))]:
        say(f"CI doesn't run {refused[0]}, because {pins.DIGESTS.name} lacks its digest")
        return None
    try:
        version = pins.parse_version(processes.run([engine, "version"]))
    except (pins.ToolchainError, OSError) as error:
        say(f"the pulumi on PATH doesn't run: {error}")
        return None
    found = ".".join(map(str, version or ()))
    if not pins.engine_suits(version):
        oldest, below = (".".join(map(str, v)) for v in (pins.ENGINE_OLDEST, pins.ENGINE_BELOW))
        say(f"the pulumi on PATH is {found or 'unknown'}, not {oldest} or later, below {below}")
        return None
    if host is None or len(scripts) < len(pins.HOST_SCRIPTS):
        lacking = " and ".join(
            name for name in (pins.HOST, *pins.HOST_SCRIPTS) if paths[name] is None
        )
        say(f"the pulumi {found} on PATH lacks {lacking}")
        return None
    return Engine(Part(found, "path", engine), Part(found, "path", host), scripts)


def _engine_in(folder: Path, host: Path, origin: str, host_version: str) -> Engine:
    return Engine(
        Part(pins.ENGINE_VERSION, origin, str(folder / pins.ENGINE)),
        Part(host_version, origin, str(host / pins.HOST)),
        tuple(host / name for name in pins.HOST_SCRIPTS),
    )


def _side_by_side(programs: Mapping[str, Path]) -> Path:
    """Return a folder with links to exactly these programs, the same one for the same programs."""
    listing = "\n".join(f"{name} {path}" for name, path in sorted(programs.items()))

    def link(folder: Path) -> None:
        for name, path in programs.items():
            if path.is_relative_to(cache.root()):
                # Pulumi looks for its host, and the host for its script, next to the real file.
                (folder / name).hardlink_to(path)
            else:
                (folder / name).symlink_to(path)

    return cache.entry(f"bin-{hashlib.sha256(listing.encode()).hexdigest()[:12]}", make=link)
