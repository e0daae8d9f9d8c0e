"""What speaks gRPC here: which methods, and what answers for those that do not."""

from __future__ import annotations

import struct
import sys

import grpc  # type: ignore[import-untyped]
import pytest
from google.cloud.kms_v1 import GenerateRandomBytesRequest
from google.cloud.tpu_v2 import ListNodesRequest

from localcloud import data
from localcloud.app import LocalCloud
from localcloud.core.call import Response
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError
from localcloud.server import grpc as calls, grpc as methods
from tests.unit.localcloud.grpc.conftest import Channel

TPU = "tpu.googleapis.com"
PLACE = "projects/tpu-stack-local/locations/us-central1"
LIST = "/google.cloud.tpu.v2.Tpu/ListNodes"
SERVICES = data.load("grpc")["services"]


def called(channel: grpc.Channel, path: str, sent: bytes = b"") -> grpc.RpcError:
    """The error that a call ends in."""
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(path)(sent, timeout=60)
    return refused.value


@pytest.mark.parametrize("service", SERVICES)
def test_every_rule_leads_to_a_method_of_the_discovery_document(service: str) -> None:
    host, version = SERVICES[service]["host"], service.split(".")[-2]
    known = document(host.partition(".")[0], version)
    found = methods.methods(service)
    assert len(found) > 20
    lost = [
        (name, rule["uri"])
        for name, rpc in found.items()
        for rule in rpc.rules
        if not known.match(rule["method"].upper(), example(rule["uri"]))
    ]
    assert lost == []


def example(template: str) -> str:
    """A path that fits a template."""
    plain = template.replace("{", "").replace("}", "")
    return "/".join(part.partition("=")[2] or part for part in plain.split("/")).replace("*", "x")


def test_a_version_without_rules_of_its_own_has_as_many_methods_as_its_client() -> None:
    from google.cloud.tpu_v2alpha1.services.tpu.transports import TpuGrpcTransport

    stubs = {name for name, member in vars(TpuGrpcTransport).items() if methods._types(member)}
    assert len(methods.methods("google.cloud.tpu.v2alpha1.Tpu")) == len(stubs)


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (TPU, "/google.cloud.tpu.v9.Tpu/ListNodes"),
        (TPU, "/google.cloud.tpu.v2.Tpu/Nonsense"),
        (TPU, "/google.cloud.tpu.v2.Tpu/GetOperation"),
        (TPU, "/nonsense"),
        ("storage.googleapis.com", "/google.storage.v2.Storage/GetBucket"),
    ],
)
def test_an_unknown_grpc_method_is_unimplemented_and_counted(
    channel: Channel, local_cloud: LocalCloud, host: str, path: str
) -> None:
    error = called(channel(host), path)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.details() == f"the local cloud speaks no gRPC at {host}{path}"
    assert local_cloud.dispatcher.problems == 1


def test_a_method_that_rest_does_not_implement_either_says_so(channel: Channel) -> None:
    sent = GenerateRandomBytesRequest(location=PLACE, length_bytes=8)
    path = "/google.cloud.kms.v1.KeyManagementService/GenerateRandomBytes"
    error = called(
        channel("cloudkms.googleapis.com"), path, GenerateRandomBytesRequest.serialize(sent)
    )
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "does not implement it" in error.details()


def test_bytes_that_are_no_such_message_are_refused(channel: Channel) -> None:
    error = called(channel(TPU), LIST, b"\xff\xff")
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_an_answer_that_grpc_has_no_form_for_is_an_internal_error() -> None:
    headers = {"content-type": "application/grpc", ":path": LIST}
    details = [{"@type": "type.googleapis.com/no.such.Message"}]
    error = Response.of_json(ApiError(400, "odd", details=details).body(), 400)
    sent = ListNodesRequest.serialize(ListNodesRequest(parent=PLACE))
    reply = calls.answer(TPU, headers, struct.pack(">?I", False, len(sent)) + sent, lambda _: error)
    assert dict(reply.trailers)["grpc-status"] == "13"
    assert "no.such.Message" in dict(reply.trailers)["grpc-message"]


def test_without_googles_clients_the_answer_names_the_extra(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods.methods.cache_clear()
    monkeypatch.setitem(sys.modules, "google.cloud.common", None)
    error = called(channel(TPU), LIST)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "pip install 'tpu-stack-localcloud[grpc]'" in error.details()


def test_a_call_without_a_token_is_unauthenticated(channel: Channel) -> None:
    sent = ListNodesRequest.serialize(ListNodesRequest(parent=PLACE))
    error = called(channel(TPU, member=""), LIST, sent)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
