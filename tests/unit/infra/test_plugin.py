"""The components' schema, and what the plugin makes of arguments, without an engine."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pulumi
import pytest
from google.protobuf.struct_pb2 import Struct, Value
from pulumi import dynamic
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.provider.experimental.provider import ConstructRequest
from pulumi.runtime import mocks, settings
from pulumi.runtime.config import set_all_config
from pulumi.runtime.proto import provider_pb2 as messages

from tests.patience import PATIENCE
from tpu_infra import advice, checks, plugin, program, rest
from tpu_infra.credentials import of_program
from tpu_infra.resources.provider import PROVIDERS
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import SettingsError

from .conftest import Engine

ARGUMENTS: dict[str, Any] = {
    "project": "tpu-stack-local",
    "zone": "us-central1-b",
    "tpu": {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pjrt"},
    "training": {"runOn": "tpu"},
}
PROJECT = "gcp:billingProject"
BUCKET = {"bucketName", "bucketUrl", "bucketKey", "project", "region"}
SCHEMA = plugin.schema()
TYPES: dict[str, Any] = SCHEMA["types"]
COMPONENTS: dict[str, Any] = SCHEMA["resources"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a training wheel."""
    (tmp_path / "dist").mkdir()
    wheel = tmp_path / "dist" / "tpu_stack_training-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    return tmp_path


@pytest.fixture
def no_config() -> Iterator[None]:
    """Leaves no configuration to other tests of this process."""
    yield
    set_all_config({})


def problems(root: Path, kind: str = "TpuTraining", **changes: Any) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        plugin.checked(kind, "mnist", {**ARGUMENTS, **changes}, root)
    return [problem.setting for problem in refused.value.problems]


def test_everything_in_the_schema_has_a_description_in_one_line() -> None:
    described = [*TYPES.values(), *COMPONENTS.values()]
    for each in [*described]:
        described += each.get("inputProperties", {}).values()
        described += each.get("properties", {}).values()
    for each in described:
        assert re.fullmatch(r"\S.*\S", each["description"]), each


def test_every_type_that_the_schema_refers_to_is_in_it() -> None:
    referred = set(re.findall(r"#/types/([\w:-]+)", repr(SCHEMA)))
    assert referred == {*TYPES}


def test_every_setting_is_an_argument_except_those_that_a_component_settles() -> None:
    settings = set(StackSettings.model_json_schema()["properties"])
    left_out = {name: settings - set(each["inputProperties"]) for name, each in named().items()}
    assert left_out == {
        "TpuTraining": {"jobs"},
        "TpuQueue": set(),
        "TpuMachine": {"jobs", "architecture", "vm", "recovery"},
        "TpuBucket": settings - {"project", "zone", "bucket", "labels", "grantRoles", "enableApis"},
    }


def test_a_component_has_every_output_of_a_stack() -> None:
    for name, component in named().items():
        assert len(component["properties"]) == len(
            program.OUTPUTS if name != "TpuBucket" else BUCKET
        )
    assert set(named()["TpuBucket"]["properties"]) == BUCKET


def test_an_argument_that_may_come_from_another_stack_takes_outputs_and_no_other_does() -> None:
    for component in COMPONENTS.values():
        plain = {name for name, each in component["inputProperties"].items() if "plain" in each}
        taken = component["inputProperties"].keys() - plain
        assert taken == {"project", "zone", "network", "bucket", "labels"} & taken | {"bucket"}
    of_bucket = TYPES["tpu-stack:index:EncryptionSettings"]["properties"]
    assert not any("plain" in each for each in of_bucket.values())


def test_names_and_wheel_of_a_component_are_its_own(root: Path) -> None:
    one = plugin.checked("TpuTraining", "one", ARGUMENTS, root)
    two = plugin.checked("TpuTraining", "two", ARGUMENTS, root)
    stack = f"tpu-stack-{pulumi.get_stack()}"
    assert (one.names.tpu, two.names.tpu) == (f"{stack}-one-tpu", f"{stack}-two-tpu")
    assert isinstance(one, checks.CheckedStack)
    assert one.wheel.parent == root / "dist"


def test_a_queue_runs_jobs_as_an_account_of_their_own(root: Path) -> None:
    assert plugin.checked("TpuQueue", "mnist", ARGUMENTS, root).settings.jobs.apart


def test_a_bucket_alone_is_checked_as_one_of_a_stack_and_needs_no_wheel(tmp_path: Path) -> None:
    own: dict[str, Any] = {"project": "some-project", "zone": "us-east5-a"}
    made = plugin.checked("TpuBucket", "data", own, tmp_path)
    assert made.names.bucket == f"some-project-tpu-stack-{pulumi.get_stack()}-data"
    # A long name, since no account is made.
    plugin.checked("TpuBucket", "checkpoints-of-a-model", own, tmp_path)
    wrong = {"create": False, "name": "X", "softDeleteDays": 1, "protect": True, "forceDestroy": 1}
    with pytest.raises(SettingsError) as refused:
        plugin.checked("TpuBucket", "data", {"zone": "us-east9-a", "bucket": wrong}, tmp_path)
    told = [(each.setting, each.why) for each in refused.value.problems]
    assert {setting for setting, _ in told} >= {
        "bucket.forceDestroy",
        "zone",
        "bucket.softDeleteDays",
    }
    with pytest.raises(SettingsError) as refused:
        plugin.checked("TpuBucket", "data", own | {"bucket": {"create": False}}, tmp_path)
    assert {each.setting for each in refused.value.problems} == {"bucket.create", "bucket.name"}


def test_a_component_is_refused_with_every_problem_at_once(root: Path) -> None:
    wrong = {"runOn": "tpu", "job": "a b"}
    found = problems(root, zone="us-central1-x", training=wrong, labels={"A": ""})
    assert {"labels", "zone", "training.job"} <= {*found}


def test_no_secret_of_the_configuration_is_taken_for_what_must_be_deleted_without_it(
    root: Path, no_config: None
) -> None:
    set_all_config({"gcp:accessToken": "a token", "gcp:credentials": "a key"})
    spot = {**ARGUMENTS["tpu"], "capacity": "spot"}
    secrets = ["gcp:accessToken", "gcp:credentials"]
    assert problems(root, tpu=spot) == secrets
    assert problems(root, "TpuQueue", jobs={"vertex": {}}) == secrets
    plugin.checked("TpuTraining", "mnist", ARGUMENTS, root)
    set_all_config({"gcp:impersonateServiceAccount": "me@p-123456.iam.gserviceaccount.com"})
    plugin.checked("TpuTraining", "mnist", {**ARGUMENTS, "tpu": spot}, root)


def test_a_machine_of_compute_engine_waits_for_capacity_without_a_queue_of_ours(root: Path) -> None:
    tpu = {"acceleratorType": "ct6e-standard-4t", "capacity": "flex-start"}
    training = {"tensorflowVersion": "2.19.1"}
    own = {"project": "some-project", "zone": "us-central1-b", "training": training}
    flexible = {**tpu, "queued": {"runHours": 24}}
    plugin.checked("TpuMachine", "mnist", {**own, "tpu": flexible}, root)


def test_a_queue_takes_an_existing_account_for_jobs_and_is_refused_without_jobs(
    root: Path,
) -> None:
    email = "jobs@hub-project.iam.gserviceaccount.com"
    given = {**ARGUMENTS, "jobs": {"serviceAccount": email}}
    assert plugin.checked("TpuQueue", "mnist", given, root).names.jobs_email == email
    assert problems(root, "TpuQueue", jobs={"enabled": False}) == ["jobs.enabled"]


def test_a_secret_argument_is_refused(root: Path) -> None:
    told = plugin.told(PropertyValue("v2-8", is_secret=True))
    assert problems(root, owner=told) == ["owner"]


def test_whole_numbers_stay_whole_and_nothing_is_left_out_of_a_list() -> None:
    numbers = PropertyValue([PropertyValue(90.0), PropertyValue(0.5)])
    nothing = PropertyValue(None)
    assert plugin.told(PropertyValue({"a": numbers, "b": nothing})) == {"a": [90, 0.5]}


def test_an_argument_that_no_preview_knows_is_told_from_one_that_is_not_set() -> None:
    with pytest.raises(plugin.UnknownError):
        plugin.told(output())
    with pytest.raises(plugin.UnknownError):
        plugin.told(PropertyValue({"name": output()}))


def output(**said: Any) -> PropertyValue:
    """An output as the engine has it, which leaves out what is empty or false."""
    value = Value()
    value.struct_value.update({SIGNATURE: OUTPUT, **said})
    whole = Struct(fields={"network": Value(struct_value=Struct(fields={"name": value}))})
    plugin.completed(whole.fields["network"])
    network: Any = PropertyValue.unmarshal_map(whole)["network"].value
    name: PropertyValue = network["name"]
    return name


def test_an_output_is_read_whatever_the_engine_leaves_out_of_it() -> None:
    assert plugin.told(output(value="own")) == "own"
    assert output(value="own", dependencies=[NETWORK]).dependencies == {NETWORK}
    assert plugin.told(output(value="own", secret=True)) == {"secure": ""}


SIGNATURE = "4dabf18193072939515e22adb298388d"
OUTPUT = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
NETWORK = "urn:pulumi:test::a-program::gcp:compute/network:Network::own"
Construct = Callable[..., dict[str, Any]]


class Monitor(mocks.MockMonitor):
    """Keeps what it is told of resources, by their names, and has a place for hooks."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.told: dict[str, Any] = {}

    def RegisterResource(self, request: Any) -> Any:
        self.told[request.name] = request
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]

    def RegisterResourceHook(self, request: Any) -> None:
        """Keep none."""

    RegisterErrorHook = RegisterResourceHook


@pytest.fixture
def construct(root: Path, monkeypatch: pytest.MonkeyPatch) -> Construct:
    """Has the plugin make a component; returns what the engine was told of each resource."""
    monkeypatch.setenv("PULUMI_CONFIG", "{}")
    monkeypatch.setattr("tpu_infra.components.services.until_they_answer", lambda: None)
    # An engine that only records calls no hooks.
    monkeypatch.setattr(advice, "watch_errors", lambda stack: None)

    def of(preview: bool = False, kind: str = "TpuTraining", **configured: str) -> dict[str, Any]:
        monitor = Monitor(Engine(preview=preview))
        network = {"create": PropertyValue(False), "name": PropertyValue("own")}
        inputs = plain(ARGUMENTS).value | {
            "network": PropertyValue(network, dependencies={NETWORK})
        }
        if kind == "TpuQueue":
            tpu = {**ARGUMENTS["tpu"], "capacity": "spot"}
            inputs |= plain({"tpu": tpu, "jobs": {"vertex": {}}}).value
        if kind == "TpuBucket":
            inputs = plain(
                {"project": "p-123456", "zone": "us-east5-a", "bucket": {"encryption": {}}}
            )
            inputs = inputs.value
        request = ConstructRequest(f"t:index:{kind}", "mnist", inputs, pulumi.ResourceOptions())

        async def whole() -> None:
            mocks.set_mocks(monitor.mocks, stack="test", preview=preview, monitor=monitor)
            # A plugin has no stack.
            settings.ROOT.set(None)
            set_all_config(configured)
            await plugin.Plugin(root).construct(request)

        asyncio.run(whole())
        # It leaves none, which other tests of this process want.
        asyncio.set_event_loop(asyncio.new_event_loop())
        return monitor.told

    return of


def plain(value: Any) -> Any:
    """An argument as the engine has it."""
    if isinstance(value, dict):
        return PropertyValue({key: plain(each) for key, each in value.items()})
    return PropertyValue(value)


def test_what_an_argument_comes_from_is_deleted_after_the_component(construct: Construct) -> None:
    assert construct()["mnist"].dependencies == [NETWORK]


def test_a_bucket_alone_is_private_and_encrypted_and_stays(construct: Construct) -> None:
    told = construct(kind="TpuBucket")
    made = told["mnist-bucket"]
    assert {request.type for request in told.values()} >= {"gcp:kms/cryptoKey:CryptoKey"}
    assert not any(request.type.endswith(("Account", "BucketObject")) for request in told.values())
    assert made.object["uniformBucketLevelAccess"]
    assert made.object["publicAccessPrevention"] == "enforced"
    assert made.object["labels"]["managed-by"] == "pulumi"
    assert made.retainOnDelete


def test_a_component_asks_google_with_the_credentials_of_its_program(construct: Construct) -> None:
    construct(**{"gcp:accessToken": "a token"})
    assert of_program().token == "a token"


def test_what_a_component_declares_for_itself_is_of_its_package_and_has_no_pickle(
    construct: Construct,
) -> None:
    account = {"gcp:impersonateServiceAccount": "me@p-123456.iam.gserviceaccount.com"}
    told = construct(kind="TpuQueue", **account, **{"gcp:zone": "a"})
    own = {each.type: each for each in told.values() if each.type.startswith("tpu-stack:")}
    kinds = {f"tpu-stack:{name}" for name in PROVIDERS}
    assert kinds <= own.keys()
    for each in (own[kind] for kind in kinds):
        assert "__provider" not in each.object
        assert dict(each.object["credentials"]) == account
        assert each.version == plugin.VERSION


class Context:
    """Ends a call of the engine's, as gRPC does."""

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise AbortedError(text)


class AbortedError(Exception):
    """What the engine is told of a failure."""


Delete = Callable[..., Awaitable[Any]]


@pytest.fixture
def delete(root: Path, monkeypatch: pytest.MonkeyPatch) -> Delete:
    """Has the plugin delete a resource; `deleted` stands for what its provider does.

    `deleted` gets the name, and the configuration with which Google would be asked.
    """
    monkeypatch.setattr(rest, "_client", lambda configured: configured)
    servicer = plugin._Servicer([], plugin.VERSION, plugin.Plugin(root), engine_address="")

    def of(name: str, deleted: Callable[..., None], created: str, now: str = "") -> Awaitable[Any]:
        class Deletes(dynamic.ResourceProvider):
            def delete(self, _id: str, _props: dict[str, Any]) -> None:
                deleted(_props["name"], lambda: dict(rest.Api("", "")._client))  # type: ignore

        kind = "tpu-stack:tpu:QueuedNode"
        monkeypatch.setitem(PROVIDERS, kind.removeprefix("tpu-stack:"), Deletes)
        request = messages.DeleteRequest(id="1", urn=f"urn:pulumi:s::p::a:b:c${kind}::its::name")
        request.properties.update({"name": name, "credentials": {PROJECT: created}})
        if now:
            request.old_inputs.update({"credentials": {PROJECT: now}})
        return servicer.Delete(request, Context())

    return of


def run(awaitable: Awaitable[Any]) -> None:
    with closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(awaitable)


def test_the_engine_is_told_what_google_refuses(delete: Delete) -> None:
    def refused(name: str, configured: Callable[[], Any]) -> None:
        raise RuntimeError(f"Google does not delete {name}")

    with pytest.raises(AbortedError, match="Google does not delete tpu"):
        run(delete("tpu", refused, "any"))


def test_each_resource_is_deleted_with_its_own_account_of_today(delete: Delete) -> None:
    together, asked = threading.Barrier(3), {}

    def deleted(name: str, configured: Callable[[], Any]) -> None:
        together.wait(PATIENCE)
        asked[name] = configured()

    async def three() -> None:
        await asyncio.gather(
            delete("one", deleted, "old", now="new"),
            delete("other", deleted, "old", now="another"),
            delete("of an older engine", deleted, "old"),
        )

    run(three())
    wanted = {"one": "new", "other": "another", "of an older engine": "old"}
    assert asked == {name: {PROJECT: project} for name, project in wanted.items()}


class Busy(ThreadPoolExecutor):
    """Threads that all wait for a resource, as the SDK's do for each that a component declares."""

    def submit(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a wait for ever")


def test_a_resource_is_made_while_the_sdk_waits_on_all_threads_of_the_loop(delete: Delete) -> None:
    asked = []

    async def busy() -> None:
        asyncio.get_running_loop().set_default_executor(Busy())
        await delete("tpu", lambda name, _: asked.append(name), "any")

    run(busy())
    assert asked == ["tpu"]


def test_a_component_replaces_a_tpu_that_google_has_taken(
    construct: Construct, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "tpu-stack-test-mnist-tpu"
    monkeypatch.setattr(advice, "look_for_preempted", lambda *_: lambda: {name: "It is PREEMPTED"})
    assert list(construct()["mnist-tpu"].replaceOnChanges)[-1] == "description"


def test_an_error_of_a_component_comes_with_its_cure(
    construct: Construct, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[str | None] = []
    monkeypatch.setattr(advice, "watch_errors", watched.append)
    construct(preview=True)
    assert watched == []
    construct()
    # Not of a stack whose file `tpustack` could read.
    assert watched == [None]


def test_a_preview_of_a_component_waits_for_what_google_says(
    construct: Construct, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def slow() -> str:
        time.sleep(0.5)
        return "said"

    monkeypatch.setattr(advice, "report", lambda *_: advice.look_up(slow, told.append))
    construct(preview=True)
    assert told == ["said"]


def named() -> dict[str, Any]:
    return {token.rpartition(":")[2]: each for token, each in COMPONENTS.items()}
