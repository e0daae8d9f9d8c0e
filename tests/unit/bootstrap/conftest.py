"""The bootstrap program on an engine that is only a record of calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml
from pulumi.runtime import mocks as pulumi_mocks

from tpu_bootstrap.program import declare
from tpu_bootstrap.settings import parse

BASE: dict[str, object] = {
    "gcp:project": "some-project",
    "tpu-stack-bootstrap:region": "us-central1",
    "tpu-stack-bootstrap:repository": "me/mine",
    "tpu-stack-bootstrap:repositoryId": "74",
    "tpu-stack-bootstrap:ownerId": "65",
    "tpu-stack-bootstrap:environments": {
        "dev": {"project": "project-dev", "previewsRequests": True},
        "prod": {"project": "project-prod"},
        "requests": {"project": "project-requests", "like": "dev"},
    },
}
TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
Resources = list[tuple[str, str, dict[str, Any]]]


class Engine(pulumi_mocks.Mocks):
    def __init__(self) -> None:
        self.resources: Resources = []

    def new_resource(
        self, args: pulumi_mocks.MockResourceArgs
    ) -> tuple[str | None, dict[str, Any]]:
        self.resources.append((args.typ, args.name, dict(args.inputs)))
        computed = {
            "email": f"{args.inputs.get('accountId')}@some-project.iam.gserviceaccount.com",
            "name": args.inputs.get("name", f"names/{args.name}"),
        }
        return f"{args.name}-id", {**args.inputs, **computed}

    def call(
        self, args: pulumi_mocks.MockCallArgs
    ) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        return {"number": "123"}, []


def write_stack(root: Path, name: str, **settings: object) -> None:
    """Writes a stack's file below `root`, in the project of its name."""
    file = root / "stacks" / f"Pulumi.{name}.yaml"
    file.parent.mkdir(exist_ok=True)
    own = {"zone": "us-central1-b", "tpu": TPU, **settings}
    config = {"gcp:project": f"project-{name}", **{f"tpu-stack:{k}": v for k, v in own.items()}}
    file.write_text(yaml.safe_dump({"config": config}), encoding="utf-8")


@pytest.fixture
def stacks(tmp_path: Path) -> Path:
    """A folder with stacks' files."""
    write_stack(tmp_path, "dev", limits={"idleMinutes": 30, "role": "tpu_stack_limits"})
    write_stack(tmp_path, "prod", tpu={**TPU, "capacity": "spot"}, bucket={"encryption": {}})
    return tmp_path


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch, stacks: Path) -> Callable[..., Resources]:
    # Hooks need an engine that calls back.
    monkeypatch.setattr("tpu_infra.components.services.until_they_answer", lambda: None)

    def run(**settings: object) -> Resources:
        engine = Engine()
        pulumi_mocks.set_mocks(engine, project="tpu-stack-bootstrap", stack="pipeline")
        config = {f"tpu-stack-bootstrap:{name}": value for name, value in settings.items()}

        @pulumi.runtime.test  # type: ignore[untyped-decorator]
        def body() -> pulumi.Output[list[object]]:
            outputs = declare(parse({**BASE, **config}, "pipeline"), stacks)
            return pulumi.Output.all(*outputs.values())

        body()
        return engine.resources

    return run


def of(resources: Resources, kind: str) -> dict[str, dict[str, Any]]:
    return {name: inputs for type_, name, inputs in resources if type_.endswith(f":{kind}")}
