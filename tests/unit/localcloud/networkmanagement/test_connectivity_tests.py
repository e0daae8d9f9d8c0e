"""Connectivity Tests as Google's clients use them."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.call import Json
from localcloud.testing import Client
from tests.unit.localcloud.networkmanagement.conftest import NET, PROJECT, TESTS, Ask, Make

Rule = Callable[..., None]


def test_a_trace_tells_the_whole_way(ask: Ask, vm: Make, rule: Rule) -> None:
    rule("web", "80", priority=7)
    a, b = vm("a"), vm("b")
    details = ask({"instance": a}, {"instance": b, "port": 80})
    assert details["result"] == "REACHABLE"
    (trace,) = details["traces"]
    assert [step["state"] for step in trace["steps"]] == [
        "START_FROM_INSTANCE",
        "APPLY_EGRESS_FIREWALL_RULE",
        "APPLY_ROUTE",
        "APPLY_INGRESS_FIREWALL_RULE",
        "ARRIVE_AT_INSTANCE",
        "DELIVER",
    ]
    decided = trace["steps"][3]["firewall"]
    assert decided["uri"] == f"{PROJECT}/global/firewalls/web"
    assert (decided["priority"], decided["action"]) == (7, "ALLOW")
    assert trace["steps"][2]["route"]["destIpRange"] == "10.0.0.0/24"
    assert trace["endpointInfo"]["destinationPort"] == 80


def test_an_address_in_a_network_is_an_end_too(ask: Ask, vm: Make, rule: Rule) -> None:
    rule("web", "80", sourceRanges=["10.0.0.77/32"])
    b = vm("b")
    stranger = {"ipAddress": "10.0.0.77", "network": NET, "networkType": "GCP_NETWORK"}
    assert ask(stranger, {"instance": b, "port": 80})["result"] == "REACHABLE"
    assert ask(stranger, {"ipAddress": "10.0.0.2", "port": 80})["result"] == "REACHABLE"
    missing = ask(stranger, {"ipAddress": "10.0.0.99", "port": 80})
    assert missing["result"] == "UNDETERMINED"
    abort = missing["traces"][0]["steps"][-1]["abort"]
    assert abort == {"cause": "UNKNOWN_IP", "resourceUri": NET, "ipAddress": "10.0.0.99"}


def test_an_internal_source_begins_in_the_network_whose_subnet_it_is_of(ask: Ask) -> None:
    details = ask({"ipAddress": "10.0.0.77"}, {"ipAddress": "10.0.0.99"})
    assert details["result"] == "UNDETERMINED"
    (trace,) = details["traces"]
    assert [step["state"] for step in trace["steps"]] == [
        "START_FROM_PRIVATE_NETWORK",
        "APPLY_EGRESS_FIREWALL_RULE",
        "APPLY_ROUTE",
        "ABORT",
    ]
    assert trace["steps"][0]["network"]["matchedIpRange"] == "10.0.0.0/24"
    assert trace["steps"][1]["firewall"]["displayName"] == "default-allow-egress"
    assert {step["projectId"] for step in trace["steps"]} == {"tpu-stack-local"}
    # Google takes TCP without a port: it asks about 80.
    assert trace["endpointInfo"]["destinationPort"] == 80
    nowhere = ask({"ipAddress": "10.99.0.1"}, {"ipAddress": "10.0.0.99"})
    assert nowhere["traces"][0]["steps"][-1]["abort"]["cause"] == "NO_SOURCE_LOCATION"
    outside = ask({"ipAddress": "8.8.8.8"}, {"ipAddress": "10.99.0.1"})
    assert outside["result"] == "UNREACHABLE"


def test_a_test_is_shown_without_what_was_not_set(google: Client, ask: Ask, vm: Make) -> None:
    name = "t" * 47
    body = {"source": {"instance": vm("a")}, "destination": {"ipAddress": "8.8.8.8"}}
    google.post(TESTS, body | {"bypassFirewallChecks": False}, testId=name)
    shown = google.get(f"{TESTS}/{name}")
    assert not {"bypassFirewallChecks", "displayName", "protocol"} & set(shown)
    assert "port" not in shown["destination"]
    changed = google.patch(f"{TESTS}/{name}", {"description": "d"}, updateMask="description")
    assert changed["response"]["protocol"] == "TCP"
    answer = google.post(TESTS, body | {"roundTrip": True}, testId="r", status=501)
    assert "roundTrip" in answer["error"]["message"]


def test_a_missing_machine_leaves_the_question_open(ask: Ask, vm: Make) -> None:
    a = vm("a")
    details = ask({"instance": a}, {"instance": f"{a}-gone", "port": 80})
    assert details["result"] == "UNDETERMINED"
    abort = details["traces"][0]["steps"][-1]["abort"]
    assert abort["cause"] == "VM_INSTANCE_CONFIG_NOT_FOUND"


def test_a_rerun_answers_anew(google: Client, ask: Ask, vm: Make, rule: Rule) -> None:
    a, b = vm("a"), vm("b")
    assert ask({"instance": a}, {"instance": b, "port": 80})["result"] == "UNREACHABLE"
    rule("web", "80")
    assert google.get(f"{TESTS}/t0")["reachabilityDetails"]["result"] == "UNREACHABLE"
    operation = google.post(f"{TESTS}/t0:rerun", {})
    assert operation["metadata"]["verb"] == "rerun"
    assert google.get(f"{TESTS}/t0")["reachabilityDetails"]["result"] == "REACHABLE"
    polled = google.get(f"networkmanagement.googleapis.com/v1/{operation['name']}")
    assert polled == operation


def test_a_patch_asks_another_question(google: Client, ask: Ask, vm: Make, rule: Rule) -> None:
    rule("web", "80")
    a, b = vm("a"), vm("b")
    ask({"instance": a}, {"instance": b, "port": 81})
    changed = {"destination": {"instance": b, "port": 80}}
    google.patch(f"{TESTS}/t0", changed, updateMask="destination")
    assert google.get(f"{TESTS}/t0")["reachabilityDetails"]["result"] == "REACHABLE"
    google.patch(f"{TESTS}/t0", {"name": "x"}, updateMask="name", status=400)


def test_the_firewall_can_be_left_out(ask: Ask, vm: Make) -> None:
    ends = {"instance": vm("a")}, {"instance": vm("b"), "port": 80}
    assert ask(*ends, bypassFirewallChecks=True)["result"] == "REACHABLE"


def test_tests_are_listed_and_deleted_by_who_may(google: Client, ask: Ask, vm: Make) -> None:
    a = vm("a")
    ask({"instance": a}, {"instance": a, "port": 80})
    assert [test["name"][-3:] for test in google.get(TESTS)["resources"]] == ["/t0"]
    stranger = google.as_member("user:stranger@example.com")
    stranger.get(TESTS, status=403)
    stranger.delete(f"{TESTS}/t0", status=403)
    google.delete(f"{TESTS}/t0")
    google.get(f"{TESTS}/t0", status=404)
    assert google.get(TESTS) == {}


def test_a_malformed_question_is_refused(google: Client) -> None:
    a, b = {"ipAddress": "10.0.0.2"}, {"ipAddress": "10.0.0.3", "port": 1}
    cases: list[tuple[str, Json, Json, str, str]] = [
        ("T", a, b, "TCP", "test_id"),
        ("t", {}, b, "TCP", "source: one of instance"),
        ("t", {"ipAddress": "x"}, b, "TCP", "'x' is no IPv4"),
        ("t", {"instance": "vm"}, b, "TCP", "no URI"),
        ("t", a, {"ipAddress": "10.0.0.3", "port": 65536}, "TCP", "65536 is not between"),
        ("t", a, {"ipAddress": "10.0.0.3"}, "IPX", "'IPX' is none"),
    ]
    for name, source, destination, protocol, said in cases:
        body = {"source": source, "destination": destination, "protocol": protocol}
        answer = google.post(TESTS, body, testId=name, status=400)
        assert said in answer["error"]["message"]
    assert google.get(TESTS) == {}
