"""Which rule decides: priority, deny before allow, direction, targets, sources, ports."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from localcloud.core.call import Json
from localcloud.testing import Client
from tests.unit.localcloud.reach.conftest import COMPUTE, NET, Ask, Make

Rule = Callable[..., None]


def decided(answer: Json, direction: str = "ingress") -> tuple[str, str]:
    """(allowed or denied, the rule's name; empty for the implied rule)."""
    pattern = re.compile(rf"{direction} +(allowed|denied) by (?:rule (\S+)|the implied rule), .*")
    (found,) = filter(None, map(pattern.fullmatch, answer["steps"]))
    return found[1], found[2] or ""


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


def test_without_rules_ingress_is_denied_and_egress_allowed(reach: Ask) -> None:
    answer = reach("a", "b:80")
    assert decided(answer, "egress") == ("allowed", "")
    assert decided(answer) == ("denied", "")
    assert answer["reached"] is False
    assert answer["steps"] == [
        "egress  allowed by the implied rule, priority 65535",
        "route   subnetwork sub, 10.0.0.0/24",
        "ingress denied by the implied rule, priority 65535",
    ]


def test_the_lowest_number_decides_and_a_denial_wins_a_tie(
    reach: Ask, rule: Rule, forget: Callable[..., None]
) -> None:
    cases = [(1000, 999, "denied"), (999, 1000, "allowed")]
    cases += [(1000, 1000, "denied"), (0, 65535, "allowed")]
    for allowed, denied, winner in cases:
        rule("allowed", "80", priority=allowed)
        rule("denied", "80", deny=True, priority=denied)
        assert decided(reach("a", "b:80")) == (winner, winner), (allowed, denied)
        forget("allowed", "denied")


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
        expected = ("allowed", "r") if fields in OPEN else ("denied", "")
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
    assert decided(reach("c", "d:8471")) == ("allowed", "machines")
    assert decided(reach("e", "d:8471")) == ("denied", "")
    assert decided(reach("c", "e:8471")) == ("denied", "")
    # An address of the network without a machine has no account.
    assert decided(reach("10.0.0.200", "d:8471")) == ("denied", "")


def test_a_rule_for_what_goes_out_stops_it_at_the_source(reach: Ask, rule: Rule) -> None:
    rule("in")
    rule("out", deny=True, direction="EGRESS", destinationRanges=["10.0.0.3/32"])
    assert reach("a", "b:80")["steps"] == ["egress  denied by rule out, priority 1000"]
    assert reach("b", "a:80")["reached"]


def test_rules_of_another_network_do_not_count(reach: Ask, google: Client) -> None:
    body = {"name": "r", "network": f"{NET}2", "allowed": [{"IPProtocol": "tcp"}]}
    google.post(f"{COMPUTE}/global/networks", {"name": "net2"})
    google.post(f"{COMPUTE}/global/firewalls", body)
    assert decided(reach("a", "b:80")) == ("denied", "")


def test_google_refuses_rules_that_mix_tags_with_accounts(google: Client) -> None:
    cases: list[tuple[Json, str]] = [
        ({"sourceTags": ["x"], "targetServiceAccounts": ["a@b.c"]}, "service accounts"),
        ({"sourceServiceAccounts": ["a@b.c"], "targetTags": ["x"]}, "service accounts"),
    ]
    for fields, said in cases:
        body = {"name": "r", "network": NET, "allowed": [{"IPProtocol": "tcp"}], **fields}
        answer = google.post(f"{COMPUTE}/global/firewalls", body, status=400)
        assert said in answer["error"]["message"]
