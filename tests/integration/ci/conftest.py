"""A checkout of this project, its remote repository, and the pipeline's command in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.wheels import UNFINISHED
from tpustack.project import root

ROOMS = ("agent", "bootstrap", "core", "infra", "policy", "stacks", "tools", "tpustack", "training")
FILES = (".gitignore", "Pulumi.yaml", "pyproject.toml", "requirements-deploy.txt")
DEFINITIONS = ("Pulumi.yaml", "bootstrap/Pulumi.yaml", "policy/PulumiPolicy.yaml")
OUTPUT = Path("build/ci")
REQUESTS = "tpu-stack-requests"
"""The project of requests' stacks."""

# Stands in for infra/ where a test is about the pipeline: a few resources that are made quickly.
SMALL = """
import pulumi

class Bucket(pulumi.CustomResource):
    name: pulumi.Output[str]

labels = pulumi.Config("tpu-stack").get_object("labels") or {}
project, stack = pulumi.Config("gcp").require("project"), pulumi.get_stack()
for number in range(int(labels.get("buckets", "2"))):
    properties = {
        "project": project,
        "name": f"{stack}-{labels.get('name', 'data')}-{number}",
        "location": "US-CENTRAL1",
        "uniformBucketLevelAccess": True,
        "forceDestroy": True,
        "labels": labels,
    }
    bucket = Bucket("gcp:storage/bucket:Bucket", f"bucket-{number}", properties)
    properties = {"bucket": bucket.name, "name": "object", "content": stack}
    pulumi.CustomResource("gcp:storage/bucketObject:BucketObject", f"object-{number}", properties)
"""


@dataclass(frozen=True)
class Ended:
    """How `tpustack ci` ended."""

    code: int
    said: str


@dataclass(frozen=True)
class Checkout:
    """A clone of a repository with this project, and `tpustack ci` in it."""

    path: Path
    environment: Mapping[str, str]
    python: Path
    """Runs commands that are not killed, quickly."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of commands in it."""
        return {**os.environ, **self.environment}

    def start(
        self, *arguments: str, python: str | Path = sys.executable, **variables: str
    ) -> subprocess.Popen[str]:
        """Start `tpustack ci`, in a process group of its own."""
        return subprocess.Popen(
            [python, "-m", "tpustack", "ci", *arguments],
            cwd=self.path,
            env={**self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ci(self, *arguments: str, **variables: str) -> Ended:
        """Run `tpustack ci`."""
        process = self.start(*arguments, python=self.python, **variables)
        said, _ = process.communicate(timeout=240)
        return Ended(process.returncode, said)

    def text(self, stack: str) -> str:
        """What the last run wrote about a stack."""
        return (self.path / OUTPUT / f"{stack}.md").read_text(encoding="utf-8")

    def result(self) -> dict[str, Any]:
        """What the last run wrote for programs."""
        loaded: dict[str, Any] = json.loads((self.path / OUTPUT / "result.json").read_text())
        return loaded

    def git(self, *arguments: str) -> str:
        """Run git; the answer is what it says."""
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        done = subprocess.run(
            ["git", *identity, *arguments],
            cwd=self.path,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def settings(self, stack: str, **changes: Any) -> None:
        """Change settings in a stack's file."""
        path = self.path / "stacks" / f"Pulumi.{stack}.yaml"
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        document["config"] |= {f"tpu-stack:{name}": value for name, value in changes.items()}
        path.write_text(yaml.safe_dump(document), encoding="utf-8")


MakeCheckout = Callable[..., Checkout]


@pytest.fixture
def checkout(
    tmp_path: Path,
    environment: dict[str, str],
    trainer: Path,
    quick_python: Path,
    google: requests.Session,
) -> MakeCheckout:
    """Makes a clone whose `stacks` are all like dev, on the local cloud."""

    def make(*stacks: str, small: bool = False) -> Checkout:
        # With what Python has compiled, which a clone would compile again.
        source = tmp_path / "clone"
        for room in ROOMS:
            shutil.copytree(root() / room, source / room, ignore=UNFINISHED)
        for file in FILES:
            shutil.copy(root() / file, source / file)
        for file in DEFINITIONS:
            definition = yaml.safe_load((source / file).read_text(encoding="utf-8"))
            definition["runtime"]["options"]["virtualenv"] = str(quick_python)
            if small and file == "Pulumi.yaml":
                definition["main"] = "small"
            (source / file).write_text(yaml.safe_dump(definition), encoding="utf-8")
        if small:
            (source / "small").mkdir()
            (source / "small" / "__main__.py").write_text(SMALL, encoding="utf-8")
            shutil.rmtree(source / "policy")
        _write_stacks(source, stacks, trainer)
        make_project(google, REQUESTS)
        _publish(source, tmp_path / "remote.git")
        return Checkout(source, environment, quick_python / "bin" / "python")

    return make


def make_project(google: requests.Session, project: str) -> None:
    """Makes a project of the developer's own, with the APIs that gcloud enables in it."""
    url = "https://cloudresourcemanager.googleapis.com/v1/projects"
    google.post(url, json={"projectId": project}).raise_for_status()
    services = f"https://serviceusage.googleapis.com/v1/projects/{project}/services"
    google.post(f"{services}/cloudapis.googleapis.com:enable", json={}).raise_for_status()


def _write_stacks(source: Path, stacks: tuple[str, ...], trainer: Path) -> None:
    document = yaml.safe_load((source / "stacks/Pulumi.dev.yaml").read_text(encoding="utf-8"))
    document["config"] |= {
        "gcp:project": "tpu-stack-local",
        "tpu-stack:training": {"wheel": str(trainer)},
    }
    for file in (source / "stacks").glob("Pulumi.*.yaml"):
        file.unlink()
    for stack in stacks:
        path = source / "stacks" / f"Pulumi.{stack}.yaml"
        path.write_text(yaml.safe_dump(document), encoding="utf-8")
    like = {"like": stacks[0], "project": REQUESTS, "hours": 1}
    pipeline = {"stacks": list(stacks), "pullRequests": like}
    (source / "stacks/pipeline.yaml").write_text(yaml.safe_dump(pipeline), encoding="utf-8")


def _publish(source: Path, remote: Path) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    for command in (
        ["git", "init", "--quiet", "--initial-branch=main", str(source)],
        ["git", "-C", str(source), "add", "--all"],
        # Stack files of a team's own are committed although git ignores those of a person's.
        ["git", "-C", str(source), "add", "--force", "stacks"],
        ["git", *identity, "-C", str(source), "commit", "--quiet", "--message=first"],
        ["git", "clone", "--quiet", "--bare", str(source), str(remote)],
        ["git", "-C", str(source), "remote", "add", "origin", str(remote)],
        ["git", "-C", str(source), "fetch", "--quiet", "origin"],
    ):
        subprocess.run(command, check=True, capture_output=True)
