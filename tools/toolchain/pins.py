"""The versions this project runs with, and which found ones are as good."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent

ENGINE_VERSION = "3.259.0"
# The first engine with error hooks (release notes of v3.219.0), by which errors get their cures.
ENGINE_OLDEST = (3, 219, 0)
ENGINE_BELOW = (4, 0, 0)
HOST_VERSION = "3.184.0"
PROVIDER_VERSION = "8.34.0"

ENGINE = "pulumi"
HOST = "pulumi-language-python"
HOST_SCRIPTS = ("pulumi-language-python-exec", "pulumi-resource-pulumi-python")
"""What the host runs Python programs with, and what the engine runs dynamic resources with."""
PROVIDER = "pulumi-resource-gcp"


@dataclass(frozen=True)
class Module:
    """A Go module of ours that pins one binary and everything it is built from."""

    name: str
    """The binary's file name."""
    folder: str
    package: str
    version: str
    version_variable: str
    """The Go variable that the linker sets to the version."""
    scripts: tuple[str, ...] = ()
    """Files of Pulumi's SDK next to the binary, by their path in the SDK."""

    @property
    def path(self) -> Path:
        """Return the folder of the module in this repository."""
        return TOOLS / self.folder


ACTIONLINT = Module(
    name="actionlint",
    folder="actionlint",
    package="github.com/rhysd/actionlint/cmd/actionlint",
    version="v1.7.12",
    version_variable="github.com/rhysd/actionlint.version",
)
"""Checks the workflows; no part of the toolchain that runs Pulumi."""

GITLEAKS = Module(
    name="gitleaks",
    folder="gitleaks",
    package="github.com/zricethezav/gitleaks/v8",
    version="v8.30.1",
    version_variable="github.com/zricethezav/gitleaks/v8/version.Version",
)
"""Looks for secrets in every commit."""

MODULES = {
    ENGINE: Module(
        name=ENGINE,
        folder="engine",
        package="github.com/pulumi/pulumi/pkg/v3/cmd/pulumi",
        version=f"v{ENGINE_VERSION}",
        version_variable="github.com/pulumi/pulumi/sdk/v3/go/common/version.Version",
    ),
    HOST: Module(
        name=HOST,
        folder="language-python",
        package="github.com/pulumi/pulumi/sdk/python/cmd/pulumi-language-python/v3",
        version=f"v{HOST_VERSION}",
        version_variable="github.com/pulumi/pulumi/sdk/v3/go/common/version.Version",
        scripts=(f"python/cmd/{HOST_SCRIPTS[0]}", f"python/dist/{HOST_SCRIPTS[1]}"),
    ),
    PROVIDER: Module(
        name=PROVIDER,
        folder="provider",
        package=".",
        version=PROVIDER_VERSION,
        version_variable="main.version",
    ),
}


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Read the first x.y.z (or x.y, as Go says) in a program's answer."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def engine_suits(version: tuple[int, int, int] | None) -> bool:
    """Tell whether an engine that was found can run this project."""
    return version is not None and ENGINE_OLDEST <= version < ENGINE_BELOW
