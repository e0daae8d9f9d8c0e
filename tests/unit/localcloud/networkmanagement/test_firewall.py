"""Which rule decides: priority, deny before allow, direction, targets, sources, ports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from localcloud.core.call import Json
from localcloud.testing import Client
from tests.unit.localcloud.networkmanagement.conftest import COMPUTE, NET, Ask, Make

Rule = Callable[..., None]


def decided(answer: Json, direction: str = "INGRESS") -> tuple[str, str]:
    """(ALLOW or DENY, the rule's name; empty for an implied rule)."""
    steps = answer["reachabilityDetails"]["traces"][0]["steps"]
    (rule,) = (
        step["firewall"] for step in steps if step.get("firewall", {}).get("direction") == direction
    )
    return rule["action"], rule["displayName"] if "uri" in rule else ""


@pytest.fixture
def forget(google: Client) -> Callable[..., None]:
    """Deletes rules."""

    def delete(*names: str) -> None:
        for name in names:
            google.delete(f"{COMPUTE}/global/firewalls/{name}")

    return delete


@pytest.fixture(autouse=True)
def two(vm: Make) -> None:
    """Two VMs that run as the default account."""
    vm("a", "blue")
    vm("b", "red")


def test_what_no_rule_allows_does_not_come_in_and_everything_goes_out(reach: Ask) -> None:
    answer = reach("a", "b:80")
    assert decided(answer, "EGRESS") == ("ALLOW", "")
    assert decided(answer) == ("DENY", "")
    details = answer["reachabilityDetails"]
    assert details["result"] == "UNREACHABLE"
    assert details["traces"][0]["steps"][-1]["drop"] == {"cause": "FIREWALL_RULE"}


def test_the_lowest_number_decides_and_a_denial_wins_a_tie(
    reach: Ask, rule: Rule, forget: Callable[..., None]
) -> None:
    cases = [(1000, 999, "deny"), (999, 1000, "allow"), (1000, 1000, "deny"), (0, 65535, "allow")]
    for allowed, denied, who in cases:
        rule("allow", "80", priority=allowed)
        rule("deny", "80", deny=True, priority=denied)
        assert decided(reach("a", "b:80")) == (who.upper(), who), (allowed, denied)
        forget("allow", "deny")


OPEN: list[Json] = [
    {"sourceRanges": ["10.0.0.0/24"]},
    {"sourceTags": ["blue"]},
    {"sourceTags": ["red"], "sourceRanges": ["10.0.0.0/8"]},
    {"targetTags": ["red"]},
    {"destinationRanges": ["10.0.0.3/32"]},
    {"protocol": "all"},
    {"protocol": "6"},
    {"ports": ["80"]},
    {"ports": ["22", "70-90"]},
]
SHUT: list[Json] = [
    {"sourceRanges": ["10.0.1.0/24"]},
    {"sourceTags": ["red"]},
    {"targetTags": ["blue"]},
    {"destinationRanges": ["10.0.0.9/32"]},
    {"disabled": True},
    {"protocol": "udp"},
    {"ports": ["81-90", "22"]},
]


def test_a_rule_is_for_its_sources_targets_and_ports_alone(
    reach: Ask, rule: Rule, forget: Callable[..., None]
) -> None:
    for fields in [*OPEN, *SHUT]:
        rule("r", *fields.get("ports", ()), **{k: v for k, v in fields.items() if k != "ports"})
        expected = ("ALLOW", "r") if fields in OPEN else ("DENY", "")
        assert decided(reach("a", "b:80")) == expected, fields
        forget("r")


def test_a_rule_of_accounts_is_for_machines_that_run_as_them(
    reach: Ask, rule: Rule, vm: Make, account: Make
) -> None:
    mine, other = account("mine-account"), account("other-account")
    vm("c", account=mine)
    vm("d", account=mine)
    vm("e", account=other)
    both = {"sourceServiceAccounts": [mine], "targetServiceAccounts": [mine]}
    rule("machines", protocol="all", **both)
    assert decided(reach("c", "d:8471")) == ("ALLOW", "machines")
    assert decided(reach("c", "d", "icmp")) == ("ALLOW", "machines")
    assert decided(reach("e", "d:8471")) == ("DENY", "")
    assert decided(reach("c", "e:8471")) == ("DENY", "")
    # An address of the network without a machine has no account.
    assert decided(reach("10.0.0.200", "d:8471")) == ("DENY", "")


def test_a_rule_for_what_goes_out_stops_it_at_the_source(reach: Ask, rule: Rule) -> None:
    rule("in")
    rule("out", deny=True, direction="EGRESS", destinationRanges=["10.0.0.3/32"])
    steps = reach("a", "b:80")["reachabilityDetails"]["traces"][0]["steps"]
    assert [step["state"] for step in steps][1:] == ["APPLY_EGRESS_FIREWALL_RULE", "DROP"]
    assert reach("b", "a:80")["reachabilityDetails"]["result"] == "REACHABLE"


def test_rules_of_another_network_do_not_count(reach: Ask, google: Client) -> None:
    body = {"name": "r", "network": f"{NET}2", "allowed": [{"IPProtocol": "tcp"}]}
    google.post(f"{COMPUTE}/global/networks", {"name": "net2"})
    google.post(f"{COMPUTE}/global/firewalls", body)
    assert decided(reach("a", "b:80")) == ("DENY", "")


def test_google_refuses_rules_that_mix_tags_with_accounts(google: Client) -> None:
    cases: list[tuple[Json, str]] = [
        ({"sourceTags": ["x"], "targetServiceAccounts": ["a@b.c"]}, "service accounts"),
        ({"sourceServiceAccounts": ["a@b.c"], "targetTags": ["x"]}, "service accounts"),
        ({"targetServiceAccounts": ["somebody"]}, "somebody"),
        ({"direction": "EGRESS", "sourceTags": ["x"]}, "sourceTags"),
    ]
    for fields, said in cases:
        body = {"name": "r", "network": NET, "allowed": [{"IPProtocol": "tcp"}], **fields}
        answer = google.post(f"{COMPUTE}/global/firewalls", body, status=400)
        assert said in answer["error"]["message"]
