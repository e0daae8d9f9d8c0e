from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import call
from localcloud.testing import Client

PROJECT = "cloudresourcemanager.googleapis.com/v1/projects/tpu-stack-local"
BUCKETS = "storage.googleapis.com/storage/v1/b"


def message(answer: dict[str, dict[str, str]]) -> str:
    return answer["error"]["message"]


def test_a_path_that_google_does_not_have_is_a_counted_error(
    api: Client, local_cloud: LocalCloud, caplog: pytest.LogCaptureFixture
) -> None:
    before = local_cloud.dispatcher.problems
    assert "knows no method" in message(api.get("tpu.googleapis.com/v9/nothing", status=404))
    assert "knows no method" in message(api.get("vision.googleapis.com/v1/images", status=404))
    assert local_cloud.dispatcher.problems == before + 2
    assert "/v9/nothing" in caplog.text


def test_a_method_that_is_not_emulated_says_so(api: Client) -> None:
    answer = api.delete(PROJECT, status=501)
    assert "cloudresourcemanager.projects.delete" in message(answer)


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("compute.ssh", "by ssh"),
        ("beta.compute.scp", "by scp"),
        ("compute.tpus.tpu-vm.ssh", "by ssh"),
        ("compute.start-iap-tunnel", "by start-iap-tunnel"),
        ("compute.connect-to-serial-port", "by connect-to-serial-port"),
        ("compute.config-ssh", None),
        ("compute.instances.create", None),
    ],
)
def test_gcloud_ssh_is_refused_at_once(api: Client, command: str, refused: str | None) -> None:
    """As gcloud 528 names itself (googlecloudsdk/core/transport.py)."""
    agent = f"gcloud/528.0.0 command/gcloud.{command} invocation-id/1a environment/None"
    answer = api.session.get(f"https://{PROJECT}", headers={"User-Agent": agent}, timeout=20)
    assert answer.status_code == (400 if refused else 200)
    if refused:
        assert refused in message(answer.json())


def test_an_unknown_field_or_parameter_is_refused_with_its_name(
    api: Client, local_cloud: LocalCloud
) -> None:
    before = local_cloud.dispatcher.problems
    body = {"name": "a-bucket", "colour": "red", "lifecycle": {"rule": [{"act": 1}]}}
    said = message(api.post(BUCKETS, body, project="tpu-stack-local", status=400))
    assert '"colour"' in said
    assert "lifecycle.rule[0]" in said
    said = message(api.get(BUCKETS, project="tpu-stack-local", colour="red", status=400))
    assert '"colour"' in said
    assert local_cloud.dispatcher.problems == before + 2


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b'"text"', b"\xff", pytest.param(b"[" * 100_000, id="deep")]
)
def test_a_body_that_is_not_a_json_object_is_refused(api: Client, body: bytes) -> None:
    answer = api.session.post(
        f"https://{BUCKETS}?project=tpu-stack-local",
        data=body,
        headers={"Content-Type": "application/json"},
        timeout=20,
    )
    assert answer.status_code == 400
    assert "Invalid JSON payload" in message(answer.json())


def test_a_token_without_the_scope_is_refused_before_roles_count(api: Client) -> None:
    narrow = api.as_member(
        "user:developer@tpu-stack.local", "https://www.googleapis.com/auth/devstorage.read_only"
    )
    narrow.get(BUCKETS, project="tpu-stack-local")
    error = narrow.post(BUCKETS, {"name": "b"}, project="tpu-stack-local", status=403)["error"]
    assert error["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"
    narrow.get(PROJECT, status=403)


def test_a_partial_response_has_only_the_fields_asked_for(api: Client) -> None:
    assert api.get(PROJECT, fields="projectId") == {"projectId": "tpu-stack-local"}
    api.get(PROJECT, fields="projectId(", status=400)


@pytest.mark.parametrize(
    ("mask", "shown"),
    [
        ("a", {"a": 1}),
        ("a,b/c", {"a": 1, "b": [{"c": 2}, {"c": 4}]}),
        ("b(c,d)", {"b": [{"c": 2, "d": 3}, {"c": 4}]}),
        ("*", {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}]}),
        ("b/*", {"b": [{"c": 2, "d": 3}, {"c": 4}]}),
        ("x", {}),
    ],
)
def test_masks_reach_into_lists_and_objects(mask: str, shown: dict[str, object]) -> None:
    value = {"a": 1, "b": [{"c": 2, "d": 3}, {"c": 4}]}
    assert call.apply_mask(call.parse_mask(mask), value) == shown


@pytest.mark.parametrize("mask", ["a(", "a)", "a,,b", "/a", "a/", "a),b(c", "a(b)c"])
def test_a_malformed_mask_is_an_error(mask: str) -> None:
    with pytest.raises(ValueError, match="Invalid field selection"):
        call.parse_mask(mask)
