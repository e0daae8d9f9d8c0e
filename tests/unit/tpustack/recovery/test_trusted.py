"""A state that would run something else, or send tokens elsewhere, is refused."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tpu_infra.resources.provider import known
from tpustack.errors import TpustackError
from tpustack.recovery.state import require_trusted

STATES = Path(__file__).parent / "states"
GCP = "pulumi:providers:gcp"
QUEUED = "pulumi-python:dynamic/tpu:QueuedResource"
OURS = sorted(known())[0]


def resource(kind: str, name: str = "x", **properties: Any) -> dict[str, Any]:
    urn = f"urn:pulumi:dev::tpu-stack::tpu-stack:infra:Tpu${kind}::{name}"
    return {"urn": urn, "type": kind, **properties}


def state(*resources: Mapping[str, Any], **deployment: Any) -> dict[str, Any]:
    return {"version": 3, "deployment": {"resources": list(resources), **deployment}}


def refusal(of: Mapping[str, Any]) -> str:
    with pytest.raises(TpustackError) as refused:
        require_trusted("dev", of)
    return str(refused.value)


@pytest.mark.parametrize("form", ["node", "own-grpc", "queued"])
def test_a_state_written_by_the_engine_is_trusted(form: str) -> None:
    require_trusted("dev", json.loads(gzip.decompress((STATES / f"{form}.json.gz").read_bytes())))


@pytest.mark.parametrize("empty", [{}, {"deployment": None}, {"deployment": {"resources": None}}])
def test_a_stack_without_resources_is_trusted(empty: dict[str, Any]) -> None:
    require_trusted("dev", empty)


@pytest.mark.parametrize(
    "properties",
    [
        {"inputs": {"__provider": "Z0FTVg=="}},
        {"inputs": {"__provider": OURS}, "outputs": {"__provider": OURS + "AA"}},
        {"inputs": {"__provider": {"4dabf18193072939515e22adb298388d": "secret"}}},
        {"inputs": {}},
        {},
    ],
)
def test_a_dynamic_provider_of_no_checkout_is_refused(properties: dict[str, Any]) -> None:
    problem = "'x': its dynamic provider is not one of this checkout, byte for byte"
    assert problem in refusal(state(resource(QUEUED, **properties)))


def test_a_dynamic_provider_behind_another_type_is_refused() -> None:
    pickle: dict[str, Any] = {"inputs": {"__provider": "Z0FTVg=="}}
    hidden = resource("gcp:storage/bucket:Bucket", **pickle)
    assert "byte for byte" in refusal(state(hidden))
    assert "byte for byte" in refusal(state({**resource(QUEUED), "type": "gcp:x:X"}))


def test_a_dynamic_provider_in_a_pending_operation_is_refused() -> None:
    begun = {"type": "creating", "resource": resource(QUEUED, inputs={"__provider": "Z0FTVg=="})}
    assert "byte for byte" in refusal(state(pending_operations=[begun]))


@pytest.mark.parametrize("package", ["command", "pulumi-nodejs", "gcp-native", "random"])
def test_a_plugin_that_this_project_does_not_use_is_refused(package: str) -> None:
    said = refusal(state(resource(f"pulumi:providers:{package}")))
    assert f"the plugin '{package}' would be run; this project uses gcp and pulumi-python" in said


@pytest.mark.parametrize(
    "inputs",
    [
        {"pluginDownloadURL": "https://example.com"},
        {"__internal": {"pluginDownloadURL": "https://example.com"}},
        {"__internal": {"name": "command"}},
        {"name": "command"},
        {"parameterization": "eA=="},
        {"__internal": {"envVarMappings": {"A": "LD_PRELOAD"}}},
    ],
)
def test_another_plugin_by_a_known_name_is_refused(inputs: dict[str, Any]) -> None:
    assert "says which plugin to run" in refusal(state(resource(GCP, inputs=inputs)))


@pytest.mark.parametrize(
    ("inputs", "trusted"),
    [
        ({"storageCustomEndpoint": "https://storage.example.com/"}, False),
        ({"storageCustomEndpoint": "https://storage.googleapis.com.example.com/"}, False),
        ({"storageCustomEndpoint": "https://x@example.com/.googleapis.com"}, False),
        ({"tpuV2CustomEndpoint": "http://tpu.googleapis.com/"}, False),
        ({"universeDomain": "example.com"}, False),
        ({"storageCustomEndpoint": "https://storage-team.p.googleapis.com/storage/v1/"}, True),
        ({"project": "p", "version": "8.34.0", "__internal": {}}, True),
    ],
)
def test_tokens_go_to_google_alone(inputs: dict[str, Any], trusted: bool) -> None:
    made = state(resource(GCP, inputs=inputs))
    if trusted:
        require_trusted("dev", made)
    else:
        assert "would send Google's token to" in refusal(made)


def test_all_problems_of_a_state_are_listed_at_once_one_a_line() -> None:
    first = resource("pulumi:providers:command", "x\n  - harmless")
    said = refusal(state(first, resource(QUEUED, "y")))
    assert len([line for line in said.splitlines() if line.startswith("  - ")]) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["urn", "type", "inputs", "outputs", "resource", "x"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.fixed_dictionaries({"resources": JSON, "pending_operations": JSON}) | JSON)
def test_a_state_of_any_form_is_trusted_or_refused_in_words(deployment: Any) -> None:
    with contextlib.suppress(TpustackError):
        require_trusted("dev", {"deployment": deployment})


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda made: made.hex()))
def test_no_other_text_passes_for_a_provider(text: str) -> None:
    if text not in known():
        assert "byte for byte" in refusal(state(resource(QUEUED, inputs={"__provider": text})))
