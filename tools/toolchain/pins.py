"""The versions and digests this project runs with, and which found ones are as good."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parent.parent
# Of what is downloaded, and of what CI may run.
DIGESTS = TOOLS / "toolchain" / "digests.txt"
_CHUNK = 1 << 20

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


# They check the repository; they are not part of the toolchain that runs Pulumi.
SCANNERS = {
    "actionlint": Module(
        name="actionlint",
        folder="actionlint",
        package="github.com/rhysd/actionlint/cmd/actionlint",
        version="v1.7.12",
        version_variable="github.com/rhysd/actionlint.version",
    ),
    "gitleaks": Module(
        name="gitleaks",
        folder="gitleaks",
        package="github.com/zricethezav/gitleaks/v8",
        version="v8.30.1",
        version_variable="github.com/zricethezav/gitleaks/v8/version.Version",
    ),
}

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

TERRAFORM_PROVIDER = Module(
    name="terraform-provider-google-beta",
    folder="provider",
    package="github.com/hashicorp/terraform-provider-google-beta",
    version="6.39.0",
    version_variable="github.com/hashicorp/terraform-provider-google-beta/version.ProviderVersion",
)
"""What our provider bridges, for Terraform itself; a test builds it."""

# For programs that are not in Python; built only where they are asked for.
LANGUAGES = {
    "nodejs": Module(
        name="pulumi-language-nodejs",
        folder="language-nodejs",
        package="github.com/pulumi/pulumi/sdk/nodejs/cmd/pulumi-language-nodejs/v3",
        version=f"v{HOST_VERSION}",
        version_variable="github.com/pulumi/pulumi/sdk/v3/go/common/version.Version",
    ),
    "yaml": Module(
        name="pulumi-language-yaml",
        folder="language-yaml",
        package="github.com/pulumi/pulumi-yaml/cmd/pulumi-language-yaml",
        version="v1.25.0",
        version_variable="github.com/pulumi/pulumi-yaml/pkg/version.Version",
    ),
}


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Read the first x.y.z (or x.y, as Go says) in a program's answer."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def engine_suits(version: tuple[int, int, int] | None) -> bool:
    """Tell whether an engine that was found can run this project."""
    return version is not None and ENGINE_OLDEST <= version < ENGINE_BELOW


def pinned() -> Mapping[str, str]:
    """Return the digests by the names of their files."""
    lines = DIGESTS.read_text(encoding="utf-8").splitlines()
    entries = (line.split() for line in lines if line and not line.startswith("#"))
    return {name: digest for digest, name in entries}


def pinned_of(archive: str) -> str:
    """Return the digest of an archive. Raises ToolchainError if the repository has none."""
    try:
        return pinned()[archive]
    except KeyError:
        raise ToolchainError(f"{DIGESTS.name} has no digest of {archive}") from None


def may_run(program: Path) -> bool:
    """Tell whether a program that was found may be run: in CI, only one with a pinned digest.

    A runner's image has whatever engine its makers put there that week; who works on a machine has
    chosen the programs on it.
    """
    return not in_ci() or digest_of(program) in pinned().values()


def in_ci() -> bool:
    """Tell whether this is a job of a pipeline; GitHub and GitLab both say so."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class ToolchainError(Exception):
    """A failure with a message that says what to do about it."""


def without_hosts(text: str) -> str:
    """Take the names of package indexes and module proxies out of a tool's output.

    They are often private, and what is printed here ends up in public pipeline logs.
    """
    hosts = set(re.findall(r"https?://(?:[^/\s@]*@)?([^/\s:\"']+)", text))
    text = re.sub(r"https?://[^/\s\"']+", "<host>", text)
    for host in hosts:
        text = text.replace(host, "<host>")
    return text
