"""What `tpustack check --live` learns from Google before anything is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import MagicMock

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.cloud import SETTING
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client
from tpu_infra.grants import On, elsewhere
from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack.cloud import google
from tpustack.errors import TpustackError
from tpustack.live import QUESTIONS, account

from ..conftest import Run
from .conftest import APIS, TPU, Live

STRANGER = "user:stranger@example.com"
POLICIES = f"orgpolicy.googleapis.com/v2/projects/{DEFAULT_PROJECT}/policies"
SERVICES = f"serviceusage.googleapis.com/v1/projects/{DEFAULT_PROJECT}/services"

USED = [f"is:{api}" for api in (*APIS, "storage.googleapis.com")]


@contextmanager
def policy(api: Client, constraint: str, **rule: object) -> Iterator[None]:
    name = f"projects/{DEFAULT_PROJECT}/policies/{constraint}"
    api.post(POLICIES, {"name": name, "spec": {"rules": [rule]}})
    yield
    api.delete(f"{POLICIES}/{constraint}")


def test_a_stack_that_can_be_made_is_fine_in_every_respect(live: Live) -> None:
    code, found = live()
    assert {about: state for about, (state, _) in found.items() if state != "ok"} == {
        "capacity": "unknown"
    }
    assert code == 0
    assert found.keys() == (QUESTIONS.keys() | {"capacity"}) - {"network", "peering", "grants"}


def test_a_network_that_is_there_is_found(live: Live) -> None:
    code, found = live("network", network={"create": False})
    said = f"{DEFAULT_PROJECT} has network default and subnetwork default in us-central1"
    assert (code, found["network"]) == (0, ("ok", said))


def test_a_network_for_managed_training_is_wrong_until_its_peering_is_active(
    live: Live, cloud: LocalCloud
) -> None:
    name = f"projects/{projects.number(DEFAULT_PROJECT)}/global/networks/default"
    path = f"projects/{DEFAULT_PROJECT}/global/networks/default"
    jobs = {"vertex": {"network": name}}
    plain = cloud.cloud.store.load("compute", path, KeyError(path))

    def found(**peering: str) -> tuple[int, tuple[str, str]]:
        there = [{"name": "servicenetworking-googleapis-com", **peering}] if peering else []
        cloud.cloud.store.put("compute", path, {**plain, "peerings": there})
        code, all_of_it = live("peering", jobs=jobs)
        return code, all_of_it["peering"]

    said = f"jobs.vertex.network: {name} has no peering servicenetworking-googleapis-com"
    assert found() == (2, ("wrong", said))
    assert found(state="INACTIVE")[1][1].endswith("is INACTIVE, not ACTIVE")
    assert found(state="ACTIVE") == (0, ("ok", f"{name} is peered with Google's services"))
    cloud.cloud.store.put("compute", path, plain)
    gone = {"vertex": {"network": name.replace("default", "gone")}}
    assert live("peering", jobs=gone)[1]["peering"][0] == "wrong"
    assert "peering" not in live("peering")[1]


def test_missing_billing_is_wrong(live: Live, api: Client) -> None:
    info = f"cloudbilling.googleapis.com/v1/projects/{DEFAULT_PROJECT}/billingInfo"
    account = api.get(info)["billingAccountName"]
    api.put(info, {"billingAccountName": ""})
    code, found = live("billing")
    api.put(info, {"billingAccountName": account})
    assert (code, found["billing"][0]) == (2, "wrong")


def test_missing_permissions_are_named(live: Live, api: Client) -> None:
    project = f"cloudresourcemanager.googleapis.com/v1/projects/{DEFAULT_PROJECT}"
    policy = api.post(f"{project}:getIamPolicy", {})
    look = {"role": "roles/viewer", "members": [STRANGER]}
    api.post(f"{project}:setIamPolicy", {"policy": {"bindings": [*policy["bindings"], look]}})
    code, found = live("permissions", member=STRANGER)
    restored = {"policy": {"bindings": policy["bindings"]}}
    api.post(f"{project}:setIamPolicy", restored)
    state, said = found["permissions"]
    assert (code, state) == (2, "wrong")
    assert "are missing in the project" in said


def test_a_caller_without_access_gets_unknown_findings_and_exit_code_3(live: Live) -> None:
    code, found = live("permissions", "billing", "APIs", member=STRANGER)
    # Google answers testIamPermissions to anybody: none of them.
    assert found["permissions"][0] == "wrong"
    assert found["billing"][0] == found["APIs"][0] == "unknown"
    assert code == 2


def test_a_machine_with_a_tpu_is_looked_for_at_compute_engine(live: Live) -> None:
    compute = {
        "architecture": "compute",
        "zone": "us-east5-a",
        "tpu": {"acceleratorType": "ct6e-standard-4t"},
        "training": {"runOn": "tpu", "tensorflowVersion": "2.19.1"},
    }
    about = ("TPU type", "TPU software", "TPU quota", "machine type", "vCPU quota")
    code, found = live(*about, **compute)
    assert code == 0
    assert found["machine type"] == ("ok", "us-east5-a has ct6e-standard-4t with 720 GiB")
    assert found["TPU software"][0] == "ok"
    assert "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e-v2026" in found["TPU software"][1]
    assert found["TPU quota"] == ("ok", "tpus_per_tpu_family is unlimited in us-east5")
    assert "TPU type" not in found
    code, found = live("machine type", **{**compute, "zone": "us-west1-b"})
    assert (code, found["machine type"][0]) == (2, "wrong")


@pytest.mark.parametrize(
    ("tpu", "limits", "finding"),
    [
        ({}, {"TPUS_PER_TPU_FAMILY": 4}, ("ok", "tpus_per_tpu_family is 4 in us-east5, 4 needed")),
        (
            {"topology": "4x4"},
            {"TPUS_PER_TPU_FAMILY": 12},
            ("wrong", "tpus_per_tpu_family is 12 in us-east5, 16 needed"),
        ),
        (
            {"capacity": "spot"},
            {"TPUS_PER_TPU_FAMILY": 4, "PREEMPTIBLE_TPU_V6E": 0},
            ("wrong", "preemptible_tpu_v6e is 0 in us-east5, 4 needed"),
        ),
        (
            {"capacity": "flex-start", "queued": {"runHours": 1}},
            {"PREEMPTIBLE_TPU_V6E": 0},
            (
                "warning",
                "preemptible_tpu_v6e is 0 in us-east5, 4 needed: Google tries that of on-demand",
            ),
        ),
        (
            {"acceleratorType": "ct5p-hightpu-4t"},
            {"TPU_V5P": 2, "TPUS_PER_TPU_FAMILY": 4},
            ("wrong", "tpu_v5p is 2 in us-east5, 4 needed"),
        ),
        (
            {"capacity": "reserved", "queued": {"reservation": "mine"}},
            {},
            ("warning", "the quota of v6e, reserved, is not compared"),
        ),
    ],
)
def test_the_quota_of_its_chips_in_the_region_decides_about_a_machine_with_a_tpu(
    live: Live,
    cloud: LocalCloud,
    tpu: dict[str, object],
    limits: dict[str, int],
    finding: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Slices take it.
    monkeypatch.setattr("tpu_infra.checks.context.version", lambda name: "9.20.0")
    quota = {metric: {"us-east5": limit} for metric, limit in limits.items()}
    cloud.cloud.store.put(SETTING, "compute.quota", quota)
    compute = {
        "architecture": "compute",
        "zone": "us-east5-a",
        "tpu": {"acceleratorType": "ct6e-standard-4t", **tpu},
        "training": {"runOn": "tpu"},
        "jobs": {"enabled": True},
    }
    _, found = live("TPU quota", **compute)
    cloud.cloud.store.delete(SETTING, "compute.quota")
    assert found["TPU quota"] == finding


@pytest.mark.parametrize(
    ("settings", "about", "said"),
    [
        (
            {
                "tpu": {**TPU, "runtimeVersion": "tpu-vm-tf-2.16.9-pod-se"},
                "training": {"tensorflowVersion": "2.16.1"},
            },
            "TPU software",
            "us-central1-b has no tpu-vm-tf-2.16.9-pod-se",
        ),
        (
            {
                "zone": "us-central1-a",
                "tpu": {"acceleratorType": "v5p-24", "runtimeVersion": "tpu-vm-tf-2.16.1-pod-pjrt"},
            },
            "TPU type",
            "us-central1-a has no v5p-24",
        ),
        ({"vm": {"machineType": "c4-standard-8"}}, "machine type", "us-central1-b has no c4-st"),
        (
            {"network": {"create": False, "name": "shared"}},
            "network",
            f"{DEFAULT_PROJECT} has no network shared",
        ),
        (
            {"network": {"create": False, "subnetwork": "tpus"}},
            "network",
            f"{DEFAULT_PROJECT} has no subnetwork tpus in us-central1",
        ),
        (
            {"bucket": {"create": False, "name": "our-data-1"}},
            "bucket",
            "our-data-1 does not exist",
        ),
    ],
)
def test_types_and_versions_that_google_lacks_are_wrong(
    live: Live, settings: dict[str, object], about: str, said: str
) -> None:
    code, found = live(about, **settings)
    assert (code, found[about][0]) == (2, "wrong")
    assert found[about][1].startswith(said)


@pytest.mark.parametrize(
    ("capacity", "limit", "state"),
    [("on-demand", 8, "ok"), ("on-demand", 4, "wrong"), ("spot", 8, "wrong")],
)
def test_the_quota_of_this_kind_of_tpu_decides(
    live: Live, cloud: LocalCloud, capacity: str, limit: int, state: str
) -> None:
    quota = {
        "TPUV2sPerProjectPerZoneForTPUAPI": limit,
        "TPUV2sPreemptiblePerProjectPerZoneForTPUAPI": 0,
    }
    cloud.cloud.store.put(SETTING, "quota", quota)
    _, found = live("TPU quota", tpu={**TPU, "capacity": capacity})
    cloud.cloud.store.delete(SETTING, "quota")
    assert found["TPU quota"][0] == state


def test_an_account_of_a_domains_project_has_the_domain_behind_it() -> None:
    config = {"gcp:project": "example.com:p", "tpu-stack:zone": "us-central1-b"}
    settings = parse(config | {"tpu-stack:jobs": {"enabled": True}}, "night")
    asked = MagicMock(settings=settings)
    asked.context.names = names_of(settings, "night")
    asked.google.get.return_value = {}
    assert [one.state for one in account(asked)] == ["warning", "warning"]
    for end, call in zip(("sa", "job"), asked.google.get.call_args_list, strict=True):
        name = f"tpu-stack-night-{end}@p.example.com.iam.gserviceaccount.com"
        assert call.args[0].endswith(f"/projects/example.com:p/serviceAccounts/{name}")


def test_an_existing_account_must_be_there(live: Live, api: Client) -> None:
    email = f"machines@{DEFAULT_PROJECT}.iam.gserviceaccount.com"
    code, found = live("service account", serviceAccount=email)
    assert (code, found["service account"][0]) == (2, "wrong")
    accounts = f"iam.googleapis.com/v1/projects/{DEFAULT_PROJECT}/serviceAccounts"
    api.post(accounts, {"accountId": "machines"})
    code, found = live("service account", serviceAccount=email)
    assert (code, found["service account"]) == (0, ("ok", f"{email} is there"))
    api.post(f"{accounts}/{email}:disable", {})
    code, found = live("service account", serviceAccount=email)
    api.delete(f"{accounts}/{email}")
    said = f"{email} is disabled: nothing can act as it"
    assert (code, found["service account"]) == (2, ("wrong", said))


def test_the_account_of_vertex_ais_jobs_is_looked_for_too(live: Live) -> None:
    email = f"vertex@{DEFAULT_PROJECT}.iam.gserviceaccount.com"
    code, found = live("service account", jobs={"vertex": {"serviceAccount": email}})
    assert (code, found["service account"]) == (2, ("wrong", f"{email} does not exist"))


JOBS = {"enabled": True, "serviceAccount": f"train-jobs@{DEFAULT_PROJECT}.iam.gserviceaccount.com"}
BROUGHT = {
    "grantRoles": False,
    "serviceAccount": f"machines@{DEFAULT_PROJECT}.iam.gserviceaccount.com",
    "bucket": {"create": False, "name": "a-landing-zone"},
    "jobs": JOBS,
}


@pytest.fixture
def landing(api: Client) -> Iterator[None]:
    """The accounts and the bucket that an administrator has made, without any grant."""
    buckets = "storage.googleapis.com/storage/v1/b"
    accounts = f"iam.googleapis.com/v1/projects/{DEFAULT_PROJECT}/serviceAccounts"
    for name in ("machines", "train-jobs"):
        api.post(accounts, {"accountId": name})
    uniform = {"uniformBucketLevelAccess": {"enabled": True}}
    bucket = {"name": "a-landing-zone", "iamConfiguration": uniform}
    api.post(f"{buckets}?project={DEFAULT_PROJECT}", bucket)
    yield
    api.delete(f"{buckets}/a-landing-zone", status=204)
    for name in ("machines", "train-jobs"):
        api.delete(f"{accounts}/{name}@{DEFAULT_PROJECT}.iam.gserviceaccount.com")


def grant(cloud: LocalCloud, api: Client) -> None:
    """Grant what `tpustack check` lists."""
    config = {f"tpu-stack:{key}": value for key, value in BROUGHT.items()}
    base = {"gcp:project": DEFAULT_PROJECT, "tpu-stack:zone": "us-central1-b"}
    settings = parse(base | config | {"tpu-stack:tpu": TPU}, "night")
    places = {
        On.PROJECT: "cloudresourcemanager.googleapis.com/v1/projects/{}",
        On.ACCOUNT: f"iam.googleapis.com/v1/projects/{DEFAULT_PROJECT}/serviceAccounts/{{}}",
    }
    for each in elsewhere(settings, names_of(settings, "night")):
        binding: dict[str, object] = {"role": each.role, "members": [each.member]}
        if each.condition:
            only = {"title": each.condition.title, "expression": each.condition.expression}
            binding["condition"] = only
        if each.on is On.BUCKET:
            url = f"storage.googleapis.com/storage/v1/b/{each.target}/iam"
            policy = api.get(f"{url}?optionsRequestedPolicyVersion=3")
            policy["bindings"] = [*policy["bindings"], binding]
            api.put(url, policy | {"version": 3})
        else:
            url = places[each.on].format(each.target)
            policy = api.post(f"{url}:getIamPolicy", {})
            policy["bindings"] = [*policy.get("bindings", ()), binding]
            api.post(f"{url}:setIamPolicy", {"policy": policy})


def test_grants_that_others_are_to_make_are_looked_for(
    live: Live, cloud: LocalCloud, api: Client, landing: None
) -> None:
    code, found = live("grants", **BROUGHT)
    assert (code, found["grants"][0]) == (0, "warning")
    grant(cloud, api)
    code, found = live("grants", **BROUGHT)
    jobs = JOBS["serviceAccount"]
    assert (code, found["grants"]) == (0, ("ok", f"1 grant on {jobs}"))
    # A deployer who creates no bucket needs no right to look at one.
    _, found = live("bucket", member=STRANGER, **BROUGHT)
    assert found["bucket"] == ("ok", "a-landing-zone is there, and you may not look at it")
    code, found = live("grants", member=STRANGER, **BROUGHT)
    assert (code, found["grants"]) == (0, ("warning", f"you may not see who has roles on {jobs}"))


def test_names_that_are_taken_are_found(live: Live, api: Client) -> None:
    account = f"iam.googleapis.com/v1/projects/{DEFAULT_PROJECT}/serviceAccounts"
    api.post(account, {"accountId": "tpu-stack-night-sa"})
    buckets = "storage.googleapis.com/storage/v1/b"
    name = f"{DEFAULT_PROJECT}-tpu-stack-night"
    api.post(buckets, {"name": name}, project=DEFAULT_PROJECT)
    code, found = live("bucket", "service account")
    api.delete(f"{buckets}/{name}", status=204)
    api.delete(f"{account}/tpu-stack-night-sa@{DEFAULT_PROJECT}.iam.gserviceaccount.com")
    assert (found["bucket"][0], found["service account"][0]) == ("warning", "warning")
    assert code == 0


@pytest.mark.parametrize(
    ("constraint", "rule", "settings"),
    [
        ("compute.vmExternalIpAccess", {"denyAll": True}, {"vm": {"publicIp": True}}),
        ("compute.requireOsLogin", {"enforce": True}, {"vm": {"osLogin": False}}),
        (
            "gcp.resourceLocations",
            {"values": {"allowedValues": ["in:europe-locations"]}},
            {"labels": {}},
        ),
        # Also where a TPU goes on to.
        (
            "gcp.resourceLocations",
            {"values": {"deniedValues": ["us-central1-c"]}},
            {"tpu": {**TPU, "queued": {"fallbackZones": ["us-central1-c"]}}},
        ),
        (
            "compute.trustedImageProjects",
            {"values": {"deniedValues": ["projects/debian-cloud"]}},
            {"labels": {}},
        ),
        ("iam.disableServiceAccountCreation", {"enforce": True}, {"labels": {}}),
        # Whatever the stack uses, not TPUs alone; `is:` stands before a value as it is.
        (
            "gcp.restrictServiceUsage",
            {"values": {"deniedValues": ["is:storage.googleapis.com"]}},
            {"labels": {}},
        ),
        # `init` sets 0, which some refuse, and others refuse Google's default.
        (
            "storage.softDeletePolicySeconds",
            {"values": {"allowedValues": ["604800"]}},
            {"bucket": {"softDeleteDays": 0}},
        ),
        (
            "storage.softDeletePolicySeconds",
            {"values": {"allowedValues": ["0"]}},
            {"labels": {}},
        ),
    ],
)
def test_a_policy_that_refuses_what_the_stack_makes_is_named(
    live: Live, api: Client, constraint: str, rule: dict[str, object], settings: dict[str, object]
) -> None:
    with policy(api, constraint, **rule):
        code, found = live("org policies", **settings)
    assert (code, found["org policies"][0]) == (2, "wrong")
    assert f"constraints/{constraint} refuses" in found["org policies"][1]


def test_a_policy_refuses_nothing_that_others_make(live: Live, api: Client) -> None:
    alone = {
        "vm": {"create": False, "osLogin": False},
        "training": {"runOn": "tpu"},
        "serviceAccount": f"machines@{DEFAULT_PROJECT}.iam.gserviceaccount.com",
    }
    with (
        policy(api, "iam.disableServiceAccountCreation", enforce=True),
        policy(api, "compute.requireOsLogin", enforce=True),
        policy(api, "compute.trustedImageProjects", denyAll=True),
        policy(api, "compute.disableSerialPortLogging", enforce=True),
    ):
        code, found = live("org policies", **alone)
    assert (code, found["org policies"][0]) == (0, "ok")


def test_a_policy_that_may_refuse_serial_port_logging_is_a_warning(live: Live, api: Client) -> None:
    with policy(api, "compute.disableSerialPortLogging", enforce=True):
        code, found = live("org policies")
        _, without = live("org policies", vm={"serialPortLogging": False})
    assert (code, found["org policies"][0]) == (0, "warning")
    assert without["org policies"][0] == "ok"


def test_a_policy_that_allows_what_the_stack_makes_is_fine(live: Live, api: Client) -> None:
    with (
        policy(api, "gcp.resourceLocations", values={"allowedValues": ["in:us-locations"]}),
        policy(api, "compute.vmExternalIpAccess", denyAll=True),
        policy(api, "compute.requireOsLogin", enforce=True),
        policy(api, "gcp.restrictServiceUsage", values={"allowedValues": USED}),
    ):
        code, found = live("org policies")
    assert (code, found["org policies"][0]) == (0, "ok")


def test_disabled_apis_are_enabled_by_the_update_or_named(live: Live, api: Client) -> None:
    api.post(f"{SERVICES}/tpu.googleapis.com:disable", {})
    code, found = live("APIs", "TPU type", "TPU quota")
    assert found["APIs"] == ("ok", "pulumi up enables tpu.googleapis.com")
    assert found["TPU type"][0] == found["TPU quota"][0] == "warning"
    assert code == 0
    code, found = live("APIs", enableApis=False)
    api.post(f"{SERVICES}/tpu.googleapis.com:enable", {})
    assert (code, found["APIs"][0]) == (2, "wrong")


def test_in_a_new_project_nothing_is_wrong_before_its_apis_are_enabled(
    live: Live, api: Client
) -> None:
    for name in APIS:
        api.post(f"{SERVICES}/{name}:disable", {"disableDependentServices": True})
    code, found = live()
    for name in APIS:
        api.post(f"{SERVICES}/{name}:enable", {})
    assert {state for about, (state, _) in found.items() if about != "capacity"} == {
        "ok",
        "warning",
    }
    said = "cannot be asked before iam.googleapis.com is enabled"
    assert found["service account"] == ("warning", said)
    assert code == 0


def test_a_project_in_no_organization_has_no_policies(live: Live, api: Client) -> None:
    api.post(f"{SERVICES}/orgpolicy.googleapis.com:disable", {})
    code, found = live("org policies")
    api.post(f"{SERVICES}/orgpolicy.googleapis.com:enable", {})
    assert found["org policies"] == ("ok", f"{DEFAULT_PROJECT} is in no organization")
    assert code == 0


def test_without_credentials_it_says_so_and_asks_nothing(
    live: Live, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    live("billing")

    def nobody() -> None:
        raise TpustackError("no Google credentials: log in")

    monkeypatch.setattr(google, "_transport", nobody)
    done = run("check", "--live", "--stack", "night")
    assert done.code == 1
    assert done.err == "error: no Google credentials: log in\n"


def test_the_table_has_a_line_for_each_question(live: Live, run: Run) -> None:
    live("TPU quota")
    done = run("check", "--live", "--stack", "night")
    lines = done.out.splitlines()
    assert lines[0] == "night: fine"
    assert [line for line in lines if line.startswith("  ok      TPU quota       ")]


def test_a_file_with_problems_is_not_asked_about(live: Live) -> None:
    code, found = live(zone="us-central1-z")
    assert (code, found) == (2, {})
