"""The manifests for the Kubernetes operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tpustack.ci.pipeline import load_pipeline
from tpustack.project import root

FOLDER = root() / "operator"
SCHEMA = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))


def objects(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def wrong(manifest: dict[str, Any]) -> list[str]:
    return [
        error.message for error in jsonschema.Draft202012Validator(SCHEMA).iter_errors(manifest)
    ]


@pytest.mark.parametrize("name", ["stacks.yaml", "program.yaml"])
def test_manifests_keep_to_the_schema(name: str) -> None:
    for manifest in objects(name):
        assert wrong(manifest) == []


def test_the_schema_names_the_version_that_it_was_read_from() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert "v2.9.0" in SCHEMA["description"]


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(resyncFrequencySeconds=59),
        lambda spec: spec.update(expectNoRefreshChanges=True),
        lambda spec: spec.update(backend="file:///state"),
        lambda spec: spec.update(envRefs={"A": {"type": "Env", "env": {"name": "A"}}}),
        lambda spec: spec.update(programRef={"name": "metrics"}),
        lambda spec: spec.pop("secretsProvider"),
        lambda spec: spec.pop("branch"),
        lambda spec: spec.pop("serviceAccountName"),
        # The operator's own image goes by its latest tag.
        lambda spec: spec.pop("workspaceTemplate"),
        lambda spec: spec["workspaceTemplate"]["spec"].pop("image"),
        lambda spec: spec["workspaceTemplate"]["spec"].update(image="pulumi/pulumi:3.259.0"),
        lambda spec: spec["workspaceTemplate"]["spec"].update(image="pulumi/pulumi@sha256:0"),
    ],
)
def test_what_the_operator_ignores_or_refuses_is_no_manifest(change: Change) -> None:
    manifest = deepcopy(objects("stacks.yaml")[0])
    assert wrong(manifest) == []
    change(manifest["spec"])
    assert wrong(manifest)


def test_each_stack_of_the_pipeline_waits_for_the_one_before_and_is_synced_again() -> None:
    stacks = objects("stacks.yaml")
    order = list(load_pipeline(root()).stacks)
    assert [each["spec"]["stack"] for each in stacks] == order
    for number, each in enumerate(stacks):
        spec = each["spec"]
        names = [before["name"] for before in spec.get("prerequisites", [])]
        assert names == order[max(0, number - 1) : number]
        assert spec["continueResyncOnCommitMatch"]
        assert not spec["destroyOnFinalize"]


def test_pods_act_as_the_deployer_by_workload_identity_without_a_key() -> None:
    accounts = {
        each["metadata"]["name"]: each
        for each in objects("prerequisites.yaml")
        if each["kind"] == "ServiceAccount"
    }
    manifests = [*objects("stacks.yaml"), *objects("program.yaml")]
    for spec in (each["spec"] for each in manifests if each["kind"] == "Stack"):
        account = accounts[spec["serviceAccountName"]]
        assert account["metadata"]["annotations"]["iam.gke.io/gcp-service-account"]
    text = "".join(path.read_text(encoding="utf-8") for path in Path(FOLDER).glob("*.yaml"))
    assert "GOOGLE_CREDENTIALS" not in text
