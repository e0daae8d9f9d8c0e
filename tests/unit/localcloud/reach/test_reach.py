"""`reach`: the way of a packet, to machines, TPUs, the internet and from Google's services."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud import cli
from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.testing import Client
from tests.unit.localcloud.reach.conftest import COMPUTE, NET, PROJECT, ZONE, Ask, Make

Rule = Callable[..., None]
TPU = f"tpu.googleapis.com/v2/{PROJECT}/locations/{ZONE}"
V1 = f"tpu.googleapis.com/v1/{PROJECT}/locations/{ZONE}"
SLICE = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}


def last(answer: Json) -> str:
    return str(answer["steps"][-1])


def reached(answer: Json) -> bool:
    return bool(answer["reached"])


def in_net(external: bool = False) -> Json:
    config = {"network": NET, "subnetwork": "sub", "enableExternalIps": external}
    return SLICE | {"networkConfig": config}


def test_a_tpu_has_addresses_of_its_subnet_and_its_hosts_are_reached_by_name(
    google: Client, reach: Ask, vm: Make, rule: Rule
) -> None:
    vm("a")
    google.post(f"{TPU}/nodes", in_net(), nodeId="t")
    rule("machines", protocol="all", sourceRanges=["10.0.0.0/24"])
    answer = reach("a", "t:8470")
    assert (answer["source"], answer["destination"]) == ("a (10.0.0.2)", "t/0 (10.0.0.3)")
    assert reached(answer)
    assert reached(reach("t/0", "a:2222"))


def test_the_endpoint_that_the_api_reports_stands_for_the_standard_port(
    google: Client, reach: Ask, vm: Make, rule: Rule
) -> None:
    vm("a")
    google.post(f"{TPU}/nodes", in_net(), nodeId="t")
    rule("grpc", "8470")
    (endpoint,) = google.get(f"{TPU}/nodes/t")["networkEndpoints"]
    answer = reach("a", f"grpc://{endpoint['ipAddress']}:{endpoint['port']}")
    assert (answer["port"], reached(answer)) == (8470, True)


def test_a_deleted_tpus_addresses_are_free_again(google: Client, reach: Ask, vm: Make) -> None:
    google.post(f"{TPU}/nodes", in_net(), nodeId="t")
    google.delete(f"{TPU}/nodes/t")
    vm("a")
    assert reach("a", "10.0.0.9:80")["source"] == "a (10.0.0.2)"


def test_a_classic_node_is_reached_over_the_peering_whatever_the_rules_for_what_comes_in(
    google: Client, cloud: Cloud, reach: Ask, vm: Make, rule: Rule
) -> None:
    cloud.store.put("setting", "deny-tpu-nodes", {"on": False})
    vm("a")
    node = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1", "network": NET}
    google.post(f"{V1}/nodes", node, nodeId="t")
    answer = reach("a", "t:8470")
    assert (reached(answer), last(answer)) == (True, "forward into Google's own network")
    rule("out", deny=True, direction="EGRESS")
    assert not reached(reach("a", "t:8470"))


def test_a_machine_that_is_off_is_not_reached(
    google: Client, reach: Ask, vm: Make, rule: Rule
) -> None:
    rule("all")
    path = vm("a")
    vm("b")
    google.post(f"compute.googleapis.com/compute/v1/{path}/stop")
    assert last(reach("b", "a:80")) == "drop    a is not running"
    assert last(reach("a", "b:80")) == "drop    a is not running"


def test_the_internet_is_reached_with_an_external_address_or_by_nat(
    google: Client, reach: Ask, vm: Make
) -> None:
    vm("a")
    vm("p", public=True)
    assert last(reach("a", "151.101.0.1:443")) == "drop    no external address and no Cloud NAT"
    assert reached(reach("p", "151.101.0.1:443"))
    nat = {"name": "nat", "natIpAllocateOption": "AUTO_ONLY"}
    nat["sourceSubnetworkIpRangesToNat"] = "ALL_SUBNETWORKS_ALL_IP_RANGES"
    router = {"name": "r", "network": NET, "nats": [nat]}
    google.post(f"{COMPUTE}/regions/us-central1/routers", router)
    assert last(reach("a", "151.101.0.1:443")) == "nat     nat"
    assert reached(reach("a", "151.101.0.1:443"))
    assert last(reach("a", "10.9.9.9:443")) == "drop    the internet has no private addresses"
    assert last(reach("a", "10.0.0.99:443")) == "drop    no machine has the address 10.0.0.99"


def test_without_its_route_nothing_leaves_the_network(google: Client, reach: Ask, vm: Make) -> None:
    vm("p", public=True)
    (route,) = (
        r for r in google.get(f"{COMPUTE}/global/routes")["items"] if r["network"].endswith("/net")
    )
    google.delete(f"{COMPUTE}/global/routes/{route['name']}")
    assert last(reach("p", "151.101.0.1:443")) == "drop    no route"


def test_the_internet_reaches_external_addresses_alone_and_googles_services_all(
    google: Client, reach: Ask, vm: Make, rule: Rule
) -> None:
    vm("a")
    vm("p", public=True)
    rule("ssh", "22")
    assert last(reach("203.0.113.7", "a:22")) == "drop    a has no external address"
    assert reached(reach("203.0.113.7", "p:22"))
    assert not reached(reach("203.0.113.7", "p:80"))
    public = google.get(f"{COMPUTE}/zones/us-central1-b/instances/p")["networkInterfaces"][0]
    address = public["accessConfigs"][0]["natIP"]
    assert reach("203.0.113.7", f"{address}:22")["destination"].startswith("p (")
    assert not reached(reach("203.0.113.7", f"{address}:80"))
    for service in ("35.235.240.9", "35.191.3.3"):
        assert reached(reach(service, "a:22"))
        assert not reached(reach(service, "a:80"))


def test_an_unknown_or_malformed_end_is_named(reach: Ask, vm: Make) -> None:
    vm("a")
    for source, destination, said in (
        ("a", "b", "'b' is not NAME:PORT"),
        ("a", "b:0", "'b:0' is not NAME:PORT"),
        ("nobody", "a:80", "no machine is called nobody; there are: a"),
    ):
        with pytest.raises(ApiError, match=said):
            reach(source, destination)


def test_the_command_says_which_rule_decides_and_ends_with_its_code(
    local_cloud: LocalCloud,
    vm: Make,
    rule: Rule,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = {"pid": 1, "port": local_cloud.listener.port}
    monkeypatch.setattr("localcloud.lifecycle.running", lambda _: run)
    home = str(Path(local_cloud.cloud.home))
    vm("a")
    vm("b")
    rule("web", "80")
    assert cli.main(["reach", "a", "b:80", "--home", home]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "a (10.0.0.2) reaches b (10.0.0.3) at port 80"
    assert "ingress allowed by rule web, priority 1000" in out[-1]
    assert cli.main(["reach", "a", "b:81", "--json", "--home", home]) == 1
    assert json.loads(capsys.readouterr().out)["reached"] is False
    assert cli.main(["reach", "a", "b", "--home", home]) == 2
    assert "error: destination 'b' is not NAME:PORT" in capsys.readouterr().err
