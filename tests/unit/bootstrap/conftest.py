"""The bootstrap program on an engine that is only a record of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulumi
import pytest
from pulumi.runtime import mocks as pulumi_mocks

from bootstrap.program import declare
from bootstrap.settings import parse

BASE: dict[str, object] = {
    "gcp:project": "some-project",
    "tpu-stack-bootstrap:region": "us-central1",
    "tpu-stack-bootstrap:repository": "me/mine",
}
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


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Resources]:
    # Hooks need an engine that calls back.
    monkeypatch.setattr("infra.components.services.until_they_answer", lambda: None)

    def run(**settings: object) -> Resources:
        engine = Engine()
        pulumi_mocks.set_mocks(engine, project="tpu-stack-bootstrap", stack="pipeline")
        config = {f"tpu-stack-bootstrap:{name}": value for name, value in settings.items()}

        @pulumi.runtime.test  # type: ignore[untyped-decorator]
        def body() -> pulumi.Output[list[object]]:
            return pulumi.Output.all(*declare(parse({**BASE, **config}, "pipeline")).values())

        body()
        return engine.resources

    return run


def of(resources: Resources, kind: str) -> dict[str, dict[str, Any]]:
    return {name: inputs for type_, name, inputs in resources if type_.endswith(f":{kind}")}
