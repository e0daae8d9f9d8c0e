"""A project root with files to upload, and a Pulumi engine that is only a record of calls."""

from __future__ import annotations

import asyncio
import contextvars
import shutil
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp
import pytest
from pulumi.runtime import mocks as pulumi_mocks
from pulumi.runtime.proto import source_pb2

from tpu_infra.catalog import Catalog
from tpu_infra.checks import ensure_valid
from tpu_infra.checks.context import Context
from tpu_infra.names import names_of
from tpu_infra.program import declare
from tpu_infra.settings import StackSettings
from tpu_infra.settings.parse import parse

REPOSITORY = Path(__file__).parents[3]
NEEDS_NODES = pytest.mark.skipif(
    not hasattr(gcp.tpu, "Node"), reason="this generation of the provider has no classic nodes"
)

# Pulumi's plugins have a copy of Google's messages, of which a process takes one alone. Other tests
# of this process use Google's clients.
with suppress(ImportError):
    from google.rpc import status_pb2

    sys.modules.setdefault("pulumi.runtime.proto.status_pb2", status_pb2)

# Read once: some tests judge hundreds of stacks.
CATALOG = Catalog()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trainer as a wheel has it, which says what it would refuse: also where it is not
    installed.
    """
    path = tmp_path_factory.mktemp("dist") / "trainer.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for package in (REPOSITORY / "training" / "tpu_training", REPOSITORY / "core" / "tpu_core"):
            for file in sorted(package.rglob("*")):
                if file.suffix in (".py", ".json"):
                    archive.write(file, file.relative_to(package.parent))
    return path


@pytest.fixture
def root(tmp_path: Path, wheel: Path) -> Path:
    (tmp_path / "dist").mkdir()
    shutil.copy(wheel, tmp_path / "dist" / "tpu_stack_training-0.1.0-py3-none-any.whl")
    data = tmp_path / ".demo" / "data"
    data.mkdir(parents=True)
    (data / "manifest.json").write_text("{}")
    (data / "mnist-train-00000-of-00001.tfrecord").write_bytes(b"records")
    return tmp_path


def config(**settings: object) -> dict[str, object]:
    """A stack file's configuration that is right, with some settings of a test's own."""
    base: dict[str, object] = {
        "zone": "us-central1-b",
        "tpu": {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"},
        **settings,
    }
    keys = {f"tpu-stack:{name}": value for name, value in base.items() if value is not None}
    return {"gcp:project": "some-project", **keys}


def context_of(settings: StackSettings, root: Path, stack: str = "test") -> Context:
    # Whichever generation of the provider runs the tests, the checks are those of the locked one.
    return Context(stack, root, CATALOG, names_of(settings, stack), provider="8.34.0")


# What Google says of the project, to programs that may ask: not in the preview of a new stack.
ANSWERS: dict[str, dict[Any, Any]] = {
    "gcp:organizations/getProject:getProject": {
        "number": "123456789012",
        "billingAccount": "0A1B2C-3D4E5F-607182",
    },
    "gcp:storage/getProjectServiceAccount:getProjectServiceAccount": {
        "emailAddress": "service-123456789012@gs-project-accounts.iam.gserviceaccount.com"
    },
}


@dataclass
class Declared:
    """One resource as the program declared it."""

    kind: str
    name: str
    inputs: dict[str, Any]


def whole(value: Any) -> Any:
    """With whole numbers as such: the engine's protocol has floating-point numbers alone."""
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass
class Engine(pulumi_mocks.Mocks):
    """Answers like Google would; in a preview it knows nothing that Google decides."""

    resources: list[Declared] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hosts: int = 1
    preview: bool = False

    def new_resource(
        self, args: pulumi_mocks.MockResourceArgs
    ) -> tuple[str | None, dict[str, Any]]:
        self.resources.append(Declared(args.typ, args.name, whole(dict(args.inputs))))
        if self.preview:
            return "", dict(args.inputs)
        computed: dict[str, Any] = {}
        if args.typ == "gcp:serviceaccount/account:Account":
            email = f"{args.inputs['accountId']}@some-project.iam.gserviceaccount.com"
            computed |= {"email": email, "name": f"projects/some-project/serviceAccounts/{email}"}
        if args.typ.endswith("tpu:QueuedNode"):
            computed["endpoints"] = [
                {"ipAddress": f"10.10.0.{host + 2}", "port": "8470"} for host in range(self.hosts)
            ]
        if args.typ in ("gcp:tpu/v2Vm:V2Vm", "gcp:tpu/node:Node"):
            computed["networkEndpoints"] = [
                {"ipAddress": f"10.10.0.{host + 2}", "port": 8470} for host in range(self.hosts)
            ]
            computed["serviceAccount"] = args.inputs.get("serviceAccount", "tpu@cloud-tpu.google")
        return f"{args.name}-id", {**args.inputs, **computed}

    def call(
        self, args: pulumi_mocks.MockCallArgs
    ) -> tuple[dict[Any, Any], list[tuple[str, str]] | None]:
        if self.preview or args.token not in ANSWERS:
            raise AssertionError(f"the program calls {args.token}, so a preview needs credentials")
        return ANSWERS[args.token], []

    def of(self, kind: str) -> list[Declared]:
        google = [resource for resource in self.resources if resource.kind.startswith("gcp:")]
        return [resource for resource in google if resource.kind.endswith(f":{kind}")]

    def dynamic(self, name: str) -> dict[str, Any]:
        """The inputs of the one resource of this project's own that is called so."""
        own = [one for one in self.resources if one.kind.startswith("pulumi-python:dynamic/")]
        (resource,) = (one for one in own if one.kind.endswith(f":{name}"))
        return resource.inputs

    def one(self, kind: str) -> dict[str, Any]:
        (resource,) = self.of(kind)
        return resource.inputs


Run = Callable[..., tuple[Engine, dict[str, Any]]]


def _at_once(
    loop: asyncio.AbstractEventLoop, _: object, function: Callable[..., Any], *arguments: object
) -> asyncio.Future[Any]:
    """Call a function without a thread for it: an engine that only records keeps nobody waiting.

    Pulumi's settings are variables of a context, of which a thread has one of its own.
    """
    future = loop.create_future()
    try:
        future.set_result(contextvars.Context().run(function, *arguments))
    except Exception as error:
        future.set_exception(error)
    return future


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the program warns of."""
    heard: list[str] = []
    monkeypatch.setattr(pulumi.log, "warn", heard.append)
    return heard


@pytest.fixture
def run(root: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the program; returns the engine and the outputs, awaited (None if unknown)."""

    def program(
        settings: dict[str, object],
        *,
        preview: bool = False,
        hosts: int = 1,
        stack: str = "test",
        taken: dict[str, str] | None = None,
        engine: Engine | None = None,
        provider: str | None = None,
    ) -> tuple[Engine, dict[str, Any]]:
        engine = engine or Engine(hosts=hosts, preview=preview)
        # An engine that only records calls no hooks.
        monkeypatch.setattr("tpu_infra.components.services.until_they_answer", lambda: None)
        # To say where each resource is declared takes a quarter of the time; it ignores that, too.
        monkeypatch.setattr("pulumi.runtime.resource._get_stack_trace", source_pb2.StackTrace)
        # Threads for its answers, and notes that nobody reads, take another quarter.
        monkeypatch.setattr("asyncio.BaseEventLoop.run_in_executor", _at_once)
        monkeypatch.setattr(pulumi.log, "debug", lambda *_, **__: None)
        monkeypatch.setattr(pulumi.log, "warn", engine.warnings.append)
        monkeypatch.setattr(pulumi.log, "info", lambda text, **_: engine.notes.append(text))
        pulumi_mocks.set_mocks(engine, project="tpu-stack", stack=stack, preview=preview)
        outputs: dict[str, Any] = {}

        async def await_all(exported: dict[str, pulumi.Input[object]]) -> None:
            for name, value in exported.items():
                outputs[name] = await pulumi.Output.from_input(value).future()

        @pulumi.runtime.test  # type: ignore[untyped-decorator]
        def body() -> pulumi.Output[None]:
            parsed = parse(settings, stack)
            context = context_of(parsed, root, stack)
            newer = provider or context.provider
            context = replace(context, preempted=lambda: taken or {}, provider=newer)
            exported = declare(ensure_valid(parsed, context))
            return pulumi.Output.from_input(await_all(exported))

        body()
        return engine, outputs

    return program
