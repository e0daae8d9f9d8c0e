"""The rooms of the design know each other only as far as the design allows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.structure.modules import ROOT, folder, import_statements, sources

OURS = {
    "tpu_agent",
    "tpu_core",
    "tpu_infra",
    "tpu_training",
    "localcloud",
    "tpustack",
    "tpu_policy",
    "tpu_bootstrap",
    "tools",
    "bench",
    "tests",
}
# What a room may import of the others, and which libraries are not for it.
MAY_IMPORT: dict[str, set[str]] = {
    "tpu_core": set(),
    "tpu_agent": {"tpu_core"},
    # The bundle is all that it knows of the agent: bytes for the machines.
    "tpu_infra": {"tpu_core", "tpu_agent.bundle"},
    "tpu_training": {"tpu_core"},
    "localcloud": set(),
    "tpu_policy": {"tpu_infra.catalog", "tpu_infra.cost", "tpu_core.words"},
    "tpu_bootstrap": {
        "tpu_core.words",
        "tpu_infra.components.alerts",
        "tpu_infra.components.identity",
        "tpu_infra.components.services",
        "tpu_infra.deployer",
        "tpu_infra.settings",
    },
    "tpustack": {
        "tpu_core",
        "tpu_bootstrap.settings",
        "tpu_infra.settings",
        "tpu_infra.apis",
        "tpu_infra.catalog",
        "tpu_infra.checks",
        "tpu_infra.cost",
        "tpu_infra.credentials",
        "tpu_infra.deployer",
        # What a landing zone's administrator is to grant.
        "tpu_infra.grants",
        # The address of Vertex AI, and the custom jobs that are a stack's and have not ended.
        "tpu_infra.rest",
        "tpu_infra.resources.vertex",
        "tpu_infra.names",
        "tpu_infra.resources.provider",
        # What Vertex AI's containers run.
        "tpu_agent.bundle",
        # The pipeline enforces limits with the agent's own code.
        "tpu_agent.limits",
        # The job records.
        "tpu_agent.jobs",
        "tpu_training.compile",
        "tpu_training.errors",
        "tpu_training.goodput",
    },
}
NOT_FOR = {
    # The standard library alone.
    "tpu_agent": {"google", "googleapiclient", "pulumi", "requests", "tensorflow", "yaml"},
    "tpu_core": {"google", "googleapiclient", "pulumi", "requests", "tensorflow", "yaml"},
    "tpu_infra": {"tensorflow", "google", "googleapiclient"},
    "tpu_training": {"pulumi", "pulumi_gcp"},
    "localcloud": {"pulumi", "pulumi_gcp"},
    "tpu_bootstrap": {"tensorflow", "google", "googleapiclient"},
    # It looks at any program's resources, by the names that the engine has for them.
    "tpu_policy": {"tensorflow", "google", "googleapiclient", "pulumi_gcp"},
    "tpustack": {"tensorflow"},
}
# Who may use Google's credentials, though nothing else of Google's.
GOOGLES_IDENTITY = {"tpu_infra", "tpustack"}
LONGEST_FILE = 700
ROOMS = sorted(MAY_IMPORT)


def imports(path: Path) -> Iterator[str]:
    for node in import_statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_sources(room: str) -> None:
    assert sources(room)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_the_design_allows(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(room)
        for name in imports(path)
        if name.split(".")[0] in OURS - {room}
        and not any(f"{name}.".startswith(f"{allowed}.") for allowed in MAY_IMPORT[room])
        and name not in {allowed.split(".")[0] for allowed in MAY_IMPORT[room]}
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_no_library_that_is_not_for_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(room)
        for name in imports(path)
        if name.split(".")[0] in NOT_FOR[room]
        and not (room in GOOGLES_IDENTITY and name.startswith(("google.auth", "google.oauth2")))
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["tpu_infra", "tpu_training"])
def test_what_runs_on_google_does_not_know_the_local_cloud(room: str) -> None:
    words = ("localcloud", "local cloud", "127.0.0.1", "localhost")
    wrong = [
        f"{path.relative_to(ROOT)} says {word}"
        for path in [*sources(room), *folder(room).rglob("*.sh")]
        for word in words
        if word in path.read_text(encoding="utf-8").lower()
    ]
    assert wrong == []


@pytest.mark.parametrize("room", [*ROOMS, "tools", "bench"])
def test_no_file_is_longer_than_a_sitting(room: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources(room)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST_FILE
    }
    assert long == {}


@pytest.mark.parametrize(
    "name",
    [
        "requirements.txt",
        "requirements-deploy.txt",
        "infra/tpu_infra/template/requirements.txt",
        "infra/tpu_infra/locks/pulumi-gcp-8.txt",
    ],
)
def test_a_lock_names_no_package_index_and_has_hashes_for_everything(name: str) -> None:
    lock = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in lock
    entries = [block for block in lock.split("\n\n") if "==" in block]
    packages = [line for line in lock.splitlines() if "==" in line and not line.startswith(" ")]
    assert entries
    assert all(line.rstrip().endswith("\\") for line in packages)
