from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tpu_bootstrap.settings import BootstrapError, parse, rights_of
from tpustack import bootstrap
from tpustack.errors import UsageError
from tpustack.project import root

from .conftest import write_stack

RIGHT: dict[str, object] = {
    "gcp:project": "some-project",
    "tpu-stack-bootstrap:region": "us-central1",
    "tpu-stack-bootstrap:repository": "me/mine",
    "tpu-stack-bootstrap:repositoryId": "74",
    "tpu-stack-bootstrap:ownerId": 65,
    "tpu-stack-bootstrap:environments": {"dev": {"project": "project-dev"}},
}

HOST = {"acceleratorType": "ct6e-standard-4t", "capacity": "spot"}


def test_two_settings_are_enough() -> None:
    settings = parse(RIGHT, "pipeline")
    assert settings.bucket == "some-project-tpu-stack-ci-state"
    assert settings.bucket_of("dev") == "some-project-tpu-stack-ci-state-dev"
    assert settings.account_of("requests", "preview") == "tpu-stack-ci-requests-preview"
    assert settings.all_projects == ("project-dev",)
    assert settings.branch == "main"


@pytest.mark.parametrize(
    ("more", "limited"),
    [
        ({}, False),
        # Compute Engine ends it, so that no machine needs a role; `ci limits` counts its lives.
        ({"limits": {"timeToLiveHours": 8}}, True),
        ({"tpu": {**HOST, "topology": "4x4"}}, True),
    ],
)
def test_limits_run_for_compute_engine_by_hours_or_for_a_slice_and_need_no_role(
    tmp_path: Path, more: dict[str, object], limited: bool
) -> None:
    compute = {"architecture": "compute", "training": {"runOn": "tpu"}, "zone": "us-east5-a"}
    write_stack(tmp_path, "dev", **{**compute, "tpu": HOST, **more})
    assert rights_of(parse(RIGHT, "pipeline"), tmp_path)["dev"].limited == limited


def test_the_settings_file_of_this_repository_is_right_but_for_the_names_to_fill_in() -> None:
    document = yaml.safe_load((root() / "bootstrap/Pulumi.pipeline.yaml").read_text())
    assert set(document) == {"config"}
    with pytest.raises(UsageError) as refusal:
        bootstrap.load("pipeline", root())
    said = str(refusal.value).splitlines()
    assert said[0] == "8 problems in Pulumi.pipeline.yaml:"
    assert [line.partition(": ")[0] for line in said[1:-1]] == [
        "  - gcp:project",
        "  - repository",
        *(f"  - environments.{name}.project" for name in ("dev", "staging", "prod", "requests")),
        "  - repositoryId",
        "  - ownerId",
    ]
    assert {"is the example's placeholder" in line for line in said[1:-1]} == {True}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("region", "Europe", 'region: "Europe" isn\'t a region'),
        ("repository", "mine", 'repository: "mine" isn\'t a repository'),
        ("repositoryId", "me/mine", "repositoryId:"),
        (
            "region",
            {"secure": "v1:x"},
            'region: "[secret]" is a secret, but settings are stored unencrypted',
        ),
        ("environments", {}, "environments: {} has too few. Use at least 1"),
        ("environments", {"dev": {"project": "123"}}, '.dev.project: "123" isn\'t a project id'),
        (
            "environments",
            {"dev": {"project": "project-dev", "deployerRoles": ["owner"]}},
            'environments.dev.deployerRoles[0]: "owner" isn\'t a role',
        ),
        (
            "environments",
            {"dev": {"project": "some-project"}},
            'environments.dev.project: "some-project" has the pipeline\'s accounts',
        ),
        (
            "environments",
            {"dev": {"project": "project-dev"}, "prod": {"project": "project-dev"}},
            'environments.prod.project: "project-dev" is also another environment\'s',
        ),
        (
            "environments",
            {"Dev": {"project": "project-dev"}},
            'environments.Dev: "Dev" isn\'t valid',
        ),
        (
            "environments",
            {"production-eu": {"project": "project-dev"}},
            "makes an account's name 34 characters long",
        ),
        ("namePrefix", "x", 'namePrefix: "x" isn\'t a prefix of 3 to 19'),
        ("namePrefix", "gcp-ci", "(gcp- is Google's own). Use one like tpu-ci"),
        ("stateBucket", "A", 'stateBucket: "A" isn\'t a bucket name'),
        ("forge", "bitbucket", "forge: \"bitbucket\" is unknown. Use 'github' or 'gitlab'"),
        ("nosuch", 1, "nosuch: 1 is not a setting. Choose from: branch, environments"),
        ("repositoryid", 1, "is not a setting. Did you mean repositoryId?"),
        ("ownerId", 0, "ownerId: 0 is too small. Use at least 1"),
        ("environments", 3, "environments: 3 is not a map of names and values"),
        ("environments", {"dev": 3}, "environments.dev: 3 is not a map of settings. Set below it"),
        (
            "environments",
            {"dev": {"project": "project-dev", "previewRequests": True}},
            "previewRequests: true is not a setting. Did you mean "
            "environments.dev.previewsRequests?",
        ),
        (
            "environments",
            {"dev": {}},
            "environments.dev.project is required. Set it: Project of its stack",
        ),
    ],
)
def test_wrong_settings_are_named(name: str, value: object, said: str) -> None:
    with pytest.raises(BootstrapError) as error:
        parse({**RIGHT, f"tpu-stack-bootstrap:{name}": value}, "pipeline")
    assert said in str(error.value)
    assert "Nothing was created or changed." in str(error.value)


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(BootstrapError, match=r"6 problems in Pulumi\.pipeline\.yaml"):
        parse({}, "pipeline")


def test_a_stack_without_a_file_is_wrong_input() -> None:
    with pytest.raises(UsageError, match=r"no Pulumi\.nosuch\.yaml\. Available: pipeline"):
        bootstrap.load("nosuch", root())


@pytest.mark.parametrize("content", ["config: 3", "config: [1]", "config: {1: x}", "[1]", "text"])
def test_a_file_that_is_no_map_of_settings_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "bootstrap").mkdir()
    (tmp_path / "bootstrap" / "Pulumi.pipeline.yaml").write_text(content)
    with pytest.raises(UsageError, match=r"bootstrap/Pulumi\.pipeline\.yaml: its settings are not"):
        bootstrap.load("pipeline", tmp_path)
