"""`tpustack prove`: its claims against the local cloud, and what is left when it is interrupted."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import SETTING, Fault, SerialLog
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.tpu.api import NODE
from localcloud.testing import Client, session
from tests.patience import until
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_core.google import Answer, Body, Send
from tpu_infra import credentials
from tpu_infra.catalog import Catalog, entries, proofs
from tpu_infra.credentials import Given
from tpustack import console
from tpustack.cloud import google
from tpustack.cloud.google import Google, NotFound
from tpustack.commands import prove
from tpustack.errors import TpustackError
from tpustack.proof import claims, things
from tpustack.proof.claims import CLAIMS
from tpustack.proof.things import NAME, RESERVE_SECONDS, Plan, Proof

from .conftest import REPOSITORY, Run

ZONE = "us-central1-a"
COMPUTE = f"compute.googleapis.com/compute/v1/projects/{DEFAULT_PROJECT}"
DEFAULT = things.default_network(DEFAULT_PROJECT)
APIS = (
    *("tpu.googleapis.com", "compute.googleapis.com", "logging.googleapis.com"),
    *("cloudresourcemanager.googleapis.com", "serviceusage.googleapis.com"),
)
BILLING = f"cloudbilling.googleapis.com/v1/projects/{DEFAULT_PROJECT}/billingInfo"
GOOD = {
    "preempted": "FALSE",
    "attributes/accelerator-type": "v5litepod-1",
    "attributes/agent-worker-number": "0",
    "attributes/worker-network-endpoints": "unknown:unknown:10.0.0.2",
}
GRPC = 0  # The port that the API reports.
NOWHERE = "error: HTTP Error 404: Not Found"


class Machines(FakeMachines):
    """Machines whose start-up script has seen `seen`, and whose serial port is logged if `logs`."""

    seen: dict[str, Any] | None
    booted = 0.0
    logs_serial = True
    # What the machine next to the TPU VM reads in its shutdown.
    notice = "TRUE"
    # What the machine next to the TPU VM reaches: without, and with a firewall rule.
    reached: tuple[list[int], list[int]] = ([22, GRPC], [GRPC])
    rules: Callable[[], list[Any]] = list

    def guest_attributes(self, key: str) -> dict[str, str]:
        if self.seen is None:
            return {}
        if "/instances/" in key:
            reached = [port or self._port() for port in self.reached[bool(self.rules())]]
            return {f"{NAME}/seen": json.dumps({"ports": [22], "reached": reached})}
        return {f"{NAME}/seen": json.dumps({"ports": [22, self._port()], **self.seen})}

    def _port(self) -> int:
        """Of the newest TPU VM; another local cloud on this machine may have 8470."""
        daemons = [spec.daemons for spec in self.specs.values()]
        command = [each["tpu-runtime"] for each in daemons if "tpu-runtime" in each][-1]
        return int(next(part for part in command if part.startswith("--port=")).partition("=")[2])

    def serial_logs(self, project: str) -> list[SerialLog]:
        keys = self.specs if self.logs_serial else ()
        said = [self._line(key) for key in keys]
        for key in self.preempted:
            said += [f"[ 9.0] {key.split('/')[5]}: preempted {self.notice} after 25 s\n"]
        return [
            SerialLog(project, ZONE, "t1v", 1, ((0, self.booted),), line.encode()) for line in said
        ]

    def _line(self, key: str) -> str:
        return f"[ 1.0] {key.split('/')[5]}: the start-up script runs\n"


def rules(cloud: LocalCloud) -> list[Any]:
    """The firewall rules of proofs."""
    listed = Client(cloud).get(f"{COMPUTE}/global/firewalls")["items"]
    return [rule for rule in listed if rule["name"].startswith(NAME)]


@pytest.fixture
def machines() -> Machines:
    made = Machines()
    made.seen = GOOD
    return made


@pytest.fixture
def cloud(tmp_path: Path, machines: Machines) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path / "home", clock=VirtualClock())
    made.start()
    projects.enable_services(made.cloud, DEFAULT_PROJECT, APIS)
    machines.booted = made.cloud.clock.now()
    machines.rules = partial(rules, made)
    real, made.cloud.machines = made.cloud.machines, machines
    yield made
    machines.suspend_all()
    made.cloud.machines = real
    made.stop()


class Hours:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def asked(cloud: LocalCloud, change: Callable[[Send], Send] = lambda send: send) -> Proof:
    """A proof that has run against the local cloud, whose answers `change` may change."""
    hours, calls = Hours(), Google(change(session(cloud)))
    plan = prove.plan_of(calls, DEFAULT_PROJECT, ZONE, DEFAULT, 1.0)
    proof = Proof(calls, plan, lambda: hours.now, hours.sleep)
    proof.entries = claims.run(proof, lambda entry: None)  # type: ignore[attr-defined]
    return proof


def answers(proof: Proof) -> dict[str, bool | None]:
    return {entry["claim"]: entry["answer"] for entry in proof.entries}  # type: ignore[attr-defined]


def test_where_all_is_as_we_say_each_claim_is_true_and_nothing_is_left(cloud: LocalCloud) -> None:
    proof = asked(cloud)
    assert answers(proof) == dict.fromkeys(CLAIMS, True)
    machines = Client(cloud).get(f"{COMPUTE}/zones/{ZONE}/instances").get("items", [])
    assert [cloud.cloud.store.items(NODE), machines, rules(cloud)] == [[], [], []]
    assert proof.left == []


def test_a_preempted_machine_tells_what_it_read_and_how_long_it_ran(cloud: LocalCloud) -> None:
    proof = asked(cloud)
    entry = {one["claim"]: one for one in proof.entries}["preemption"]  # type: ignore[attr-defined]
    assert entry["why"] == "it reads TRUE, and runs 25 s longer"
    assert entry["evidence"][0]["request"].endswith("/simulateMaintenanceEvent")


def test_a_preemption_of_which_nothing_is_told_stays_open(
    cloud: LocalCloud, machines: Machines
) -> None:
    machines.logs_serial = False
    machines.serial_logs = lambda project: []  # type: ignore[method-assign]
    assert answers(asked(cloud))["preemption"] is None


class Lying:
    """Answers of the local cloud, changed so that they contradict the claims."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def __call__(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        if method == "DELETE":
            return 200, {}, b"{}"
        if url.endswith(":testIamPermissions"):
            return 400, {}, b'{"error": {"message": "Permission x is not valid"}}'
        status, answered, content = self._send(method, url, headers, body)
        for told, instead in (
            (b'"tpu.googleapis.com/tpu-v5s-litepod-serving', b'"tpu.googleapis.com/tpu-other'),
            (b'"v5litepod-256"', b'"v9-256"'),
            (b'"tpu-vm-tf-2.19.0-pjrt"', b'"tpu-vm-tf-9.9.9"'),
            (b'"state": "READY"', b'"state": "REPAIRING"'),
            (b'"state":"READY"', b'"state":"REPAIRING"'),
        ):
            content = content.replace(told, instead)
        return status, answered, content


def test_where_nothing_is_as_we_say_each_claim_is_false_and_says_what_stays(
    cloud: LocalCloud, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    machines.seen = {**dict.fromkeys(GOOD, NOWHERE), "ports": [22]}
    machines.logs_serial = False
    machines.reached = ([22], [22])
    machines.notice = "FALSE"
    proof = asked(cloud, Lying)
    # Only a script that runs can tell that the rest is not there.
    assert answers(proof) == {**dict.fromkeys(CLAIMS, False), "start-up script": True}
    why = {entry["claim"]: entry["why"] for entry in proof.entries}  # type: ignore[attr-defined]
    assert "v9-256" in why["types"]
    assert why["runtimes"].endswith("are missing: tpu-vm-tf-2.19.0-pjrt")
    command = f"gcloud compute tpus tpu-vm delete {proof.name} --project {DEFAULT_PROJECT}"
    assert f"{command} --zone {ZONE}" in capsys.readouterr().err


def test_a_script_that_writes_nothing_is_false_and_leaves_open_what_it_would_have_seen(
    cloud: LocalCloud, machines: Machines
) -> None:
    machines.seen = None
    found = answers(asked(cloud))
    assert found["start-up script"] is False
    assert [name for name, one in found.items() if one is None] == [
        "gRPC",
        "notice",
        "host metadata",
        "reach",
        "account rule",
    ]


def test_a_zone_without_capacity_and_an_api_without_answer_leave_claims_open(
    cloud: LocalCloud,
) -> None:
    cloud.cloud.store.put(SETTING, "stockout", {ZONE: ["*"]})
    cloud.cloud.faults.add(Fault("serviceusage.*ConsumerQuotaMetrics*", status=403, message="no"))
    cloud.cloud.faults.add(Fault("serviceusage.services.consumerQuotaMetrics.*", status=403))
    proof = asked(cloud)
    found = answers(proof)
    assert [name for name, one in found.items() if one] == ["permissions", "types", "runtimes"]
    assert {found[name] for name in found if name not in ("permissions", "types", "runtimes")} == {
        None
    }
    why = {entry["claim"]: entry["why"] for entry in proof.entries}  # type: ignore[attr-defined]
    assert "no capacity or quota now" in why["spot-tpu"]
    assert why["deletion"] == "no TPU VM was READY"
    assert cloud.cloud.store.items(NODE) == []


@pytest.mark.parametrize(
    ("kind", "method", "opened"),
    [
        ("machine", "instances", ["reach", "account rule", "preemption"]),
        ("rule", "firewalls", ["account rule"]),
    ],
)
def test_a_machine_or_a_rule_that_google_does_not_make_leaves_its_claim_open_and_says_why(
    cloud: LocalCloud, kind: str, method: str, opened: list[str]
) -> None:
    """The call succeeds, and its operation fails."""

    def change(send: Send) -> Send:
        def changed(verb: str, url: str, headers: dict[str, str], body: Body) -> Answer:
            if "/operations/" in url and "compute" in url and method in made:
                return 200, {}, b'{"status": "DONE", "error": {"errors": [{"message": "full"}]}}'
            if verb == "POST" and url.endswith(("/instances", "/firewalls")):
                made[:] = [url.rpartition("/")[2]]
                if method in made:
                    where = f"https://{COMPUTE}/global/operations/one"
                    return 200, {}, json.dumps({"selfLink": where}).encode()
            return send(verb, url, headers, body)

        return changed

    made: list[str] = []
    proof = asked(cloud, change)
    found = answers(proof)
    assert [name for name, one in found.items() if one is None] == opened, kind
    why = {entry["claim"]: entry["why"] for entry in proof.entries}  # type: ignore[attr-defined]
    assert why[opened[0]] == "full"


def test_who_may_make_no_machine_has_made_none_so_that_nothing_is_left(cloud: LocalCloud) -> None:
    def change(send: Send) -> Send:
        def changed(verb: str, url: str, headers: dict[str, str], body: Body) -> Answer:
            if "compute.googleapis.com" in url:
                return 403, {}, b'{"error": {"message": "no permission"}}'
            return send(verb, url, headers, body)

        return changed

    proof = asked(cloud, change)
    open_claims = dict.fromkeys(("reach", "account rule", "preemption"))
    assert answers(proof) == {**dict.fromkeys(CLAIMS, True), **open_claims}
    assert proof.left == []


def test_a_machine_that_stays_does_not_deny_that_the_tpu_is_gone(cloud: LocalCloud) -> None:
    def change(send: Send) -> Send:
        def changed(verb: str, url: str, headers: dict[str, str], body: Body) -> Answer:
            if verb != "GET" and "/instances/" in url:
                return 503, {}, b""
            return send(verb, url, headers, body)

        return changed

    proof = asked(cloud, change)
    assert answers(proof) == {**dict.fromkeys(CLAIMS, True), "preemption": None}
    assert proof.left == [proof.url("instances")]


def test_a_tpu_that_is_gone_does_not_prove_that_a_rule_closes_its_port(
    cloud: LocalCloud, machines: Machines
) -> None:
    machines.reached = ([22, GRPC], [])
    assert answers(asked(cloud))["account rule"] is None


def test_what_a_runtime_without_grpc_does_not_serve_is_not_asked() -> None:
    silent = Catalog().runtimes["v2-alpha-tpuv6e"]
    assert not silent.serves_grpc
    cloud = Cloud(1, 0, "signal")
    send = partial(_patient, cloud)
    proof = Proof(Google(send), replace(PLAN, runtime=silent), lambda: cloud.now, cloud.sleep)
    found = {entry["claim"]: entry for entry in claims.run(proof, lambda entry: None)}
    for name in ("gRPC", "reach"):
        assert found[name]["why"] == "v2-alpha-tpuv6e serves no gRPC"
    assert found["account rule"]["answer"] is True


def test_a_runtime_that_google_refuses_makes_the_claim_false(cloud: LocalCloud) -> None:
    runtime = "tpu-vm-tf-2.16.1-pod-pjrt"
    words = f"runtime_version {runtime} is not valid"
    cloud.cloud.faults.add(Fault("tpu.projects.locations.nodes.create", status=400, message=words))
    assert answers(asked(cloud))["spot-tpu"] is False
    assert cloud.cloud.store.items(NODE) == []


def test_an_answer_of_another_form_leaves_its_claim_open_and_the_proof_whole(
    cloud: LocalCloud,
) -> None:
    def change(send: Send) -> Send:
        def changed(*call: Any) -> Answer:
            status, answered, content = send(*call)
            return status, answered, content.replace(b'"networkEndpoints"', b'"endpoints"')

        return changed

    proof = asked(cloud, change)
    open_claims = dict.fromkeys(("gRPC", "reach", "account rule", "preemption"))
    assert answers(proof) == {**dict.fromkeys(CLAIMS, True), **open_claims}
    why = {entry["claim"]: entry["why"] for entry in proof.entries}  # type: ignore[attr-defined]
    assert why["gRPC"] == "the answer has another form: KeyError: 'networkEndpoints'"


def test_an_object_that_is_a_text_leaves_its_claim_open_and_the_proof_whole(
    cloud: LocalCloud,
) -> None:
    def change(send: Send) -> Send:
        def changed(*call: Any) -> Answer:
            if call[1].endswith(":getGuestAttributes"):
                return 200, {}, b'{"guestAttributes": ["a text"]}'
            return send(*call)

        return changed

    assert answers(asked(cloud, change))["start-up script"] is None


def test_a_proof_that_can_not_be_written_is_printed_all_the_same(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_text

    def full(path: Path, *arguments: Any, **more: Any) -> int:
        if path.name == "proof.json":
            raise OSError("No space left on device")
        return write(path, *arguments, **more)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        command("--yes")
    assert capsys.readouterr().out.count("| true |") == len(CLAIMS)


def test_evidence_has_requests_and_answers_without_names_and_addresses(cloud: LocalCloud) -> None:
    proof = asked(cloud)
    made = prove.document(proof, proof.entries)  # type: ignore[attr-defined]
    text = json.dumps(made)
    assert DEFAULT_PROJECT not in text
    assert projects.number(DEFAULT_PROJECT) not in text
    for private in ("@developer", "@example", "127.0.0.1", "Bearer", "import json"):
        assert private not in text
    by_name = {entry["claim"]: entry["evidence"] for entry in made["claims"]}
    request = f"POST https://tpu.googleapis.com/v2/projects/PROJECT/locations/{ZONE}/nodes?"
    assert by_name["spot-tpu"][0]["request"].startswith(request)
    assert by_name["spot-tpu"][0]["status"] == 200
    rule = [note for note in by_name["account rule"] if "targetServiceAccounts" in note["body"]]
    assert [note["request"].split()[0] for note in rule] == ["POST"]


def test_evidence_has_nothing_of_the_other_tpus_in_the_project(cloud: LocalCloud) -> None:
    nodes = f"tpu.googleapis.com/v2/projects/{DEFAULT_PROJECT}/locations/{ZONE}/nodes"
    kind = {"acceleratorType": "v5litepod-1", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    Client(cloud).post(nodes, {**kind, "metadata": {"key": "a-secret"}}, nodeId="theirs")
    proof = asked(cloud)
    text = json.dumps(prove.document(proof, proof.entries))  # type: ignore[attr-defined]
    assert ("theirs" in text, "a-secret" in text) == (False, False)


def test_the_catalog_takes_what_the_command_wrote(cloud: LocalCloud, tmp_path: Path) -> None:
    proof = asked(cloud)
    made = prove.document(proof, proof.entries)  # type: ignore[attr-defined]
    (tmp_path / "one.json").write_text(json.dumps(made, indent=2))
    assert proofs.read(tmp_path) == proofs.Proofs(frozenset({proof.plan.runtime.name}), {})


def test_the_page_names_each_claim() -> None:
    page = (REPOSITORY / "docs" / "verification.md").read_text()
    assert [name for name in CLAIMS if f"`{name}`" not in page] == []


# The command.


@pytest.fixture
def command(cloud: LocalCloud, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`tpustack prove` against the local cloud, with a clock that does not wait."""
    who = session(cloud)
    who.hooks = credentials.session(Given(token="unused")).hooks
    monkeypatch.setattr(google, "_transport", lambda: who)
    hours = Hours()
    monkeypatch.setattr(prove, "Proof", partial(Proof, now=lambda: hours.now, sleep=hours.sleep))
    where = ("--project", DEFAULT_PROJECT, "--zone", ZONE, "--out", str(tmp_path / "proof.json"))
    return lambda *more: run("prove", *where, *more)


def test_the_command_shows_the_cost_and_writes_the_proof_and_a_text_for_an_issue(
    command: Any, tmp_path: Path
) -> None:
    done = command("--yes")
    assert (done.code, "so at most $0.20 for 30 min" in done.err) == (0, True)
    assert done.out.count("| true |") == len(CLAIMS)
    made = json.loads((tmp_path / "proof.json").read_text())
    assert [claim["claim"] for claim in made["claims"]] == list(CLAIMS)


def test_the_machine_next_to_a_tpu_costs_no_more_than_a_proof_says() -> None:
    catalog = Catalog()
    kind = catalog.machine_types[things.MACHINE]
    regions = {
        zone.rpartition("-")[0] for tpu in catalog.accelerators.values() for zone in tpu.zones
    }
    prices = [catalog.prices.machine(kind, region, spot=False) for region in regions]
    assert max(price.amount for price in prices if price) + Decimal("0.01") < things.MACHINE_HOUR


def test_without_a_yes_nothing_is_created(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machines: Machines
) -> None:
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert command().code == 0
    assert not (tmp_path / "proof.json").exists()
    assert machines.specs == {}


def test_claims_without_an_answer_are_exit_code_3(command: Any, cloud: LocalCloud) -> None:
    cloud.cloud.store.put(SETTING, "stockout", {ZONE: ["*"]})
    done = command("--yes")
    assert (done.code, done.out.count("| not answered |")) == (3, 10)


def test_what_an_earlier_proof_left_is_named_and_deleted_first(
    command: Any, cloud: LocalCloud
) -> None:
    api = Client(cloud)
    nodes = f"tpu.googleapis.com/v2/projects/{DEFAULT_PROJECT}/locations/us-central1-b/nodes"
    kind = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.16.1-pod-se"}
    # The command's clock stands at 1000.
    api.post(nodes, {**kind, "labels": {NAME: "1000"}}, nodeId=f"{NAME}-old")
    api.post(nodes, kind, nodeId=f"{NAME}-of-someone")
    done = command("--yes")
    assert (done.code, f"{NAME}-old is of an earlier proof" in done.err) == (0, True)
    left = [name.rpartition("/")[2] for name, _ in cloud.cloud.store.items(NODE)]
    assert left == [f"{NAME}-of-someone"]


def test_the_tpu_of_a_proof_whose_time_is_not_over_stays_and_the_second_proof_is_refused(
    command: Any, cloud: LocalCloud
) -> None:
    nodes = f"tpu.googleapis.com/v2/projects/{DEFAULT_PROJECT}/locations/{ZONE}/nodes"
    kind = {"acceleratorType": "v5litepod-1", "runtimeVersion": "v2-alpha-tpuv5-lite"}
    Client(cloud).post(nodes, {**kind, "labels": {NAME: "1001"}}, nodeId=f"{NAME}-now")
    done = command("--yes")
    assert done.code == 1
    assert "another proof, which may last until 1970-01-01 00:16:41 UTC" in done.err
    assert f"If it was killed, run `gcloud compute tpus tpu-vm delete {NAME}-now" in done.err
    left = [name.rpartition("/")[2] for name, _ in cloud.cloud.store.items(NODE)]
    assert left == [f"{NAME}-now"]


def test_the_tpu_is_labelled_with_the_end_of_its_proof(cloud: LocalCloud) -> None:
    node = asked(cloud)._node
    assert node["labels"] == {NAME: str(1000 + int(things.LIMIT_SECONDS))}


def gone_for(cloud: Cloud, calls: float, path: str) -> Send:
    """A cloud that answers some calls that ask for something of its own by an error."""
    left = [calls]

    def send(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        if method == "GET" and url.endswith(path) and left[0] > 0:
            left[0] -= 1
            raise OSError("Google is gone")
        return _patient(cloud, method, url, headers, body)

    return send


def test_a_tpu_that_google_can_not_find_for_a_moment_is_deleted() -> None:
    cloud = Cloud(1, 0, "signal")
    proof = Proof(Google(partial(_patient, cloud)), PLAN, lambda: cloud.now, cloud.sleep)
    proof.asked = 0.0
    proof._make("nodes", PLAN.node(proof.name, 0.0), {"nodeId": proof.name})
    proof.google._send = gone_for(cloud, 3, proof.name)
    proof.clean()
    assert (cloud.nodes, proof.left) == ({}, [])


def test_what_an_earlier_proof_left_and_google_can_not_delete_ends_the_proof() -> None:
    cloud = Cloud(1, 0, "signal")
    name = f"projects/p/locations/us-west4-a/nodes/{NAME}-old"
    cloud.nodes[f"{NAME}-old"] = {"name": name, "labels": {NAME: "0"}, "state": "READY"}
    send = gone_for(cloud, math.inf, f"{NAME}-old")
    proof = Proof(Google(send), PLAN, lambda: cloud.now, cloud.sleep)
    with pytest.raises(TpustackError, match=f"delete {NAME}-old --project p --zone us-west4-a"):
        claims.run(proof, lambda entry: None)
    assert cloud.nodes.keys() == {f"{NAME}-old"}


def test_a_tpu_that_google_does_not_show_when_asked_counts_as_left() -> None:
    cloud = Cloud(1, 0, "signal")
    proof = Proof(Google(partial(_patient, cloud)), PLAN, lambda: cloud.now, cloud.sleep)
    proof.asked = 0.0
    proof._make("nodes", PLAN.node(proof.name, 0.0), {"nodeId": proof.name})
    proof.google._send = gone_for(cloud, math.inf, proof.name)
    proof.clean()
    assert proof.left == [proof.url("nodes")]


@pytest.mark.parametrize(
    "said",
    [
        "API has not been used in project 12345 before. Visit https://x/?project=12345",
        "Quota exceeded for quota metric 'x' of service 'y' for consumer 'project_number:12345'.",
        '{"projectNumber": "12345"}',
        "Permission denied on resource project 12345.",
    ],
)
def test_the_number_of_a_project_in_a_refusal_is_left_out(said: str) -> None:
    assert "12345" not in proofs.redacted(said, "p")


def test_a_script_is_left_out_however_google_writes_it() -> None:
    said = '{\n "key": "startup-script",\n  "value": "#!/bin/sh\\n"\n}'
    assert "bin/sh" not in proofs.redacted(said, "p")


def test_the_project_of_a_domain_is_left_out_whole() -> None:
    said = "GET https://x/v2/projects/example.com:ours/locations/z"
    assert (
        proofs.redacted(said, "example.com:ours") == "GET https://x/v2/projects/PROJECT/locations/z"
    )


def test_ctrl_c_while_google_creates_deletes_it_and_writes_nothing(
    command: Any, cloud: LocalCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = google._transport()

    def send(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        answer = who(method, url, headers, body)
        if method == "POST" and "/nodes?" in url:
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    monkeypatch.setattr(google, "_transport", lambda: send)
    done = command("--yes")
    assert (done.code, f"deleting {NAME}-" in done.err) == (130, True)
    # Google's machines are another matter, of which the lines before tell.
    assert done.err.endswith("interrupted; nothing is left running on this machine\n")
    assert cloud.cloud.store.items(NODE) == []
    assert not (tmp_path / "proof.json").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--project", "p"), "say where: either --stack, or --project and --zone"),
        (("--stack", "dev", "--zone", ZONE), "say where: either --stack, or --project and --zone"),
        (("--project", "p", "--zone", "us-central1"), "is a region, not a zone"),
        (("--project", "p", "--zone", ZONE, "--out", "/no/such/x"), "in another folder"),
        (("--project", "p", "--zone", ZONE, "--out", f"{__file__}/x"), "in another folder"),
        (("--project", "p", "--zone", ZONE, "--ceiling", "0"), "--ceiling"),
        (("--project", "p", "--zone", ZONE, "--ceiling", "-1"), "--ceiling"),
        (("--project", "p", "--zone", ZONE, "--ceiling", "inf"), "--ceiling"),
    ],
)
def test_wrong_options_are_refused_before_google_is_asked(
    run: Run, project: Path, arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(*_: object) -> Answer:
        raise AssertionError("Google is asked")

    monkeypatch.setattr(google, "_transport", lambda: send)
    done = run("prove", *arguments)
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_stack_has_its_existing_network_or_the_default_one_with_an_address(project: Path) -> None:
    network = things.default_network("our-project-dev")
    assert prove._place("dev", None, None) == ("our-project-dev", "us-central1-a", network)
    path = project / "stacks" / "Pulumi.dev.yaml"
    path.write_text(path.read_text() + "\n  tpu-stack:network: {create: false, name: ours}\n")
    subnetwork = "projects/our-project-dev/regions/us-central1/subnetworks/ours"
    assert prove._place("dev", None, None)[2] == {
        "network": "projects/our-project-dev/global/networks/ours",
        "subnetwork": subnetwork,
        "enableExternalIps": False,
    }


def test_a_project_without_billing_is_refused(command: Any, cloud: LocalCloud) -> None:
    Client(cloud).put(BILLING, {"billingAccountName": ""})
    done = command("--yes")
    assert done.code == 2
    assert "has no billing account, so that Google creates nothing in it" in done.err
    assert "gcloud billing projects link" in done.err


def test_a_ceiling_that_pays_for_too_little_names_one_that_is_enough(command: Any) -> None:
    done = command("--yes", "--ceiling", "0.05")
    said = "pays for less than 15 min of a spot v5litepod-1. Use 0.10 or more"
    assert (done.code, said in done.err) == (2, True), done.err
    assert "--ceiling: NaN pays for less" in command("--yes", "--ceiling", "nan").err
    assert command("--yes", "--ceiling", "0.10").code == 0


def test_a_zone_that_google_hides_from_the_project_is_refused(command: Any) -> None:
    done = command("--yes", "--zone", "us-south1-ai1b")
    assert done.code == 2
    assert "offers the project no TPU of one host" in done.err


def test_without_credentials_the_message_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*credentials._TOKENS, *credentials._KEYS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/key.json")
    done = run("prove", "--project", "p", "--zone", ZONE)
    assert (done.code, "no Google credentials" in done.err) == (1, True)


# Interruptions, in virtual time, against a cloud that loses answers.


class Killed(BaseException):
    """The process is gone: it makes no further call."""


class Cloud:
    """What takes time to come and go, costs money, and ends without a caller, too."""

    def __init__(self, seed: int, stop_at: int, how: str) -> None:
        self.chance, self.now, self.calls = random.Random(seed), 0.0, 0
        self.stop_at, self.how, self.dead = stop_at, how, False
        # TPU VMs, machines and firewall rules, by collection and name.
        self.kinds: dict[str, dict[str, dict[str, Any]]] = {
            "nodes": {},
            "instances": {},
            "firewalls": {},
        }
        self.nodes = self.kinds["nodes"]
        self.paid = Decimal(0)
        self._due: list[tuple[float, Callable[[], None]]] = []

    @property
    def left(self) -> list[str]:
        return [f"{kind}/{name}" for kind, named in self.kinds.items() for name in named]

    def sleep(self, seconds: float) -> None:
        """Let time pass; an interruption comes in half of it."""
        self._interrupt(lambda: self.pass_by(seconds / 2))
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [each for each in self._due if each[0] <= until]:
            first = min(due, key=lambda each: each[0])
            self._due.remove(first)
            self._advance(first[0])
            first[1]()
        self._advance(until)

    def _advance(self, to: float) -> None:
        to = max(to, self.now)
        billed = sum(node["state"] != "STOPPED" for node in self.nodes.values())
        hour = billed * (PRICE.amount - things.MACHINE_HOUR)
        hour += len(self.kinds["instances"]) * things.MACHINE_HOUR
        self.paid += hour * Decimal(to - self.now) / 3600
        self.now = to

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        self._due.append((self.now + seconds, what))  # type: ignore[arg-type]

    def _interrupt(self, first: Callable[[], object]) -> None:
        if self.dead:
            raise Killed
        self.calls += 1
        if self.calls == self.stop_at:
            first()
            self.dead = self.how == "kill"
            raise Killed if self.dead else console.Interrupted(signal.SIGINT)

    def __call__(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        late = self.chance.random() < 0.5
        carry = partial(self._carry, method, url, body)
        # The request is on its way already, and may take effect after the interruption.
        self._interrupt(lambda: self._later(30 * self.chance.random(), carry) if late else None)
        self.pass_by(self.chance.random() * 3)
        luck = self.chance.random()
        if luck < 0.05:
            return 503, {}, b'{"error": {"message": "unavailable"}}'
        answer = carry()
        if luck < 0.1:
            raise OSError("the connection broke")
        return 404 if answer is None else 200, {}, json.dumps(answer or {}).encode()

    def _carry(self, method: str, url: str, body: Body) -> Any:
        """Answer a call; None for what is not there."""
        path, _, query = url.partition("?")
        kind, name = path.split("/")[-2:]
        if method == "POST" and name in self.kinds:
            sent = json.loads(body if isinstance(body, bytes) else b"")
            return self._create(name, query.partition("=")[2] or sent["name"], sent)
        if path.endswith("etGuestAttributes"):
            seen = {**GOOD, "ports": [8470], "reached": self._reached()}
            answer = {"queryValue": {"items": [{"value": json.dumps(seen)}]}}
            return answer if method == "GET" else {"guestAttributes": [answer]}
        if "/operations/" in url:
            return self._operation(name)
        if name == "simulateMaintenanceEvent":
            self._later(30.0, lambda: self.kinds["instances"].pop(kind, None))
        if kind in self.kinds:
            if method == "DELETE" and name in self.kinds[kind]:
                self.kinds[kind][name]["state"] = "DELETING"
                self._later(45.0, lambda: self.kinds[kind].pop(name, None))
            return self.kinds[kind].get(name)
        rules = [*self.kinds["firewalls"].values()]
        lists = {
            "nodes": [*self.nodes.values()],
            "entries": [{"textPayload": "preempted TRUE after 9 s"}],
            "metrics": [],
        }
        return {**lists, "items": rules} if name == "firewalls" else lists

    def _reached(self) -> list[int]:
        return [8470] if self.kinds["firewalls"] else [22, 8470]

    def _create(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        if kind != "nodes":
            self.kinds[kind][name] = {**body, "networkInterfaces": [{"networkIP": "10.0.0.9"}]}
            if kind == "instances":
                seconds = float(body["scheduling"]["maxRunDuration"]["seconds"])
                self._later(seconds, lambda: self.kinds[kind].pop(name, None))
            return {"selfLink": f"https://compute.googleapis.com/p/operations/{name}"}
        self.nodes[name] = {
            "name": f"projects/p/locations/{ZONE}/nodes/{name}",
            "state": "CREATING",
            "networkEndpoints": [{"port": 8470, "ipAddress": "10.0.0.2"}],
            "serviceAccount": {"email": "who@example.com"},
            "labels": body["labels"],
        }
        script = body["metadata"]["startup-script"]
        seconds = float(script.partition("time.monotonic() + ")[2].partition(",")[0])

        def boot() -> None:
            if self.nodes.get(name, {}).get("state") == "CREATING":
                self.nodes[name]["state"] = "READY"
                self._later(seconds, end)

        def end() -> None:
            # Its account may lack the right to delete it: then it only powers itself off.
            if self.nodes.get(name, {}).get("state") == "READY":
                self.nodes[name]["state"] = "STOPPED"

        self._later(60 + 60 * self.chance.random(), boot)
        return self._operation(name)

    def _operation(self, name: str) -> dict[str, Any]:
        state = self.nodes.get(name, {}).get("state")
        return {"name": f"projects/p/operations/{name}", "done": state != "CREATING"}


V5E = Catalog().accelerators["v5litepod-1"]
PRICE = entries.Price(Decimal("1.20"), entries.Source("a test", date(2026, 11, 27)))
PLAN = Plan(
    "p",
    ZONE,
    things.default_network("p"),
    V5E,
    Catalog().runtimes["tpu-vm-tf-2.16.1-pod-pjrt"],
    PRICE,
    1500.0,
)


def interrupted(seed: int, stop_at: int, how: str) -> Cloud:
    """A cloud after a proof in it that was interrupted, and after another if it was killed."""
    cloud = Cloud(seed, stop_at, how)
    with suppress(console.Interrupted, Killed, TpustackError):
        proof = Proof(Google(cloud), PLAN, lambda: cloud.now, cloud.sleep)
        claims.run(proof, lambda entry: None)
    if cloud.dead:
        # Until all that is under way has happened, and the TPU VM has ended itself.
        cloud.pass_by(3 * 3600)
        assert "READY" not in {node["state"] for node in cloud.nodes.values()}
        cloud.dead = False
        again = Proof(Google(partial(_patient, cloud)), PLAN, lambda: cloud.now, cloud.sleep)
        again.delete(dict.fromkeys(again.earlier(), 0.0))
    cloud.pass_by(3600)
    return cloud


def _patient(cloud: Cloud, *call: Any) -> Answer:
    """A call as the real transport makes it: a read or a deletion that fails is repeated."""
    for _ in range(10):
        try:
            answer = cloud(*call)
        except OSError:
            continue
        if answer[0] != 503:
            return answer
    raise OSError("Google is gone")


def within_ceiling(cloud: Cloud) -> bool:
    return cloud.paid <= PLAN.cost(PLAN.seconds)


@pytest.mark.parametrize("how", ["signal", "kill"])
def test_at_each_call_and_wait_an_interruption_leaves_nothing(how: str) -> None:
    whole = interrupted(1, 0, how).calls
    assert whole > 15
    for stop_at in range(1, whole + 1):
        cloud = interrupted(1, stop_at, how)
        assert (stop_at, cloud.left) == (stop_at, [])
        assert within_ceiling(cloud), stop_at


def test_two_hundred_random_interruptions_leave_nothing_and_stay_below_the_ceiling() -> None:
    chance, made = random.Random(7), 0
    for seed in range(200):
        cloud = interrupted(seed, chance.randrange(1, 60), chance.choice(["signal", "kill"]))
        assert (seed, cloud.left) == (seed, [])
        assert within_ceiling(cloud), seed
        made += cloud.paid > 0
    assert made > 100  # Most of them did create a TPU VM.


def test_a_tpu_that_is_ready_in_the_last_round_counts() -> None:
    cloud = Cloud(1, 0, "signal")

    def send(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        status, answered, content = _patient(cloud, method, url, headers, body)
        if "/operations/" in url:
            status, content = 200, b'{"name": "operations/x", "done": true}'
        return status, answered, content

    plan = replace(PLAN, seconds=RESERVE_SECONDS)
    assert Proof(Google(send), plan, lambda: cloud.now, cloud.sleep).create()


def test_a_tpu_that_does_not_come_is_deleted_at_the_deadline() -> None:
    cloud = Cloud(1, 0, "signal")
    cloud.chance.random = lambda: 0.5  # type: ignore[method-assign]
    cloud._operation = lambda name: {"name": f"operations/{name}"}  # type: ignore[method-assign]
    proof = Proof(Google(cloud), PLAN, lambda: cloud.now, cloud.sleep)
    found = {entry["claim"]: entry for entry in claims.run(proof, lambda entry: None)}
    assert found["spot-tpu"]["why"] == "Google had not made it after 20 min"
    assert found["deletion"]["why"] == "no TPU VM was READY"
    assert PLAN.seconds - RESERVE_SECONDS < proof.seconds < PLAN.seconds
    assert cloud.nodes == {}


def test_a_second_signal_still_deletes_and_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "hurry", threading.Event())
    cloud = Cloud(1, 0, "signal")
    proof = Proof(Google(partial(_patient, cloud)), PLAN, lambda: cloud.now, cloud.sleep)

    def tell(entry: dict[str, Any]) -> None:
        if entry["claim"] == "spot-tpu":
            console.hurry.set()
            raise console.Interrupted(signal.SIGINT)

    with pytest.raises(console.Interrupted):
        claims.run(proof, tell)
    assert cloud.nodes[proof.name]["state"] == "DELETING"
    assert f"tpu-vm delete {proof.name} --project p --zone {ZONE}" in capsys.readouterr().err


# On a machine of the local cloud, which really runs the start-up script.


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Proof]]:
    """A proof whose TPU VM is a real machine, after a change of its plan."""
    cloud = LocalCloud(tmp_path / "home")
    cloud.start()
    projects.enable_services(cloud.cloud, DEFAULT_PROJECT, APIS)
    calls = Google(session(cloud))

    def start(**changes: Any) -> Proof:
        plan = replace(
            prove.plan_of(calls, DEFAULT_PROJECT, ZONE, DEFAULT, 1.0),
            **changes,
        )
        return Proof(calls, plan, sleep=lambda _: time.sleep(0.1))

    yield start
    cloud.stop()


@pytest.mark.server
def test_the_start_up_script_tells_what_it_sees(started: Callable[..., Proof]) -> None:
    proof = started()
    assert proof.create()["state"] == "READY"
    for name in (
        "start-up script",
        "gRPC",
        "notice",
        "host metadata",
        "reach",
        "preemption",
        "deletion",
    ):
        entry = claims.answer(proof, name)
        assert (name, entry["answer"]) == (name, True), entry["why"]


@pytest.mark.server
def test_the_start_up_script_deletes_its_tpu_when_the_time_is_over(
    started: Callable[..., Proof],
) -> None:
    proof = started(seconds=RESERVE_SECONDS + 1)
    # Not by `create`, which may find it gone already.
    node = proof.plan.node(proof.name, 0.0)
    proof.google.post(proof.plan.url("nodes"), node, {"nodeId": proof.name})

    def is_gone() -> bool:
        with suppress(NotFound):
            return not proof.google.get(proof.url("nodes"))
        return True

    until(is_gone)
