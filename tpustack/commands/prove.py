"""`tpustack prove`: ask the real Google Cloud what docs/verification.md leaves open.

A proof makes one spot TPU VM and a small machine next to it, asks each of `CLAIMS` once, deletes
both and writes what Google answered. A deadline that follows from the ceiling of money ends it, and
everything that ends this process deletes both, too. After a `kill -9`, the TPU VM deletes itself or
powers itself off at the same deadline, Google deletes the machine, and the next proof in the
project deletes what is left.
"""

import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Final

import click

from tpu_core import google as core
from tpu_core.words import duration, money
from tpu_infra.apis import TPU_API
from tpu_infra.catalog import Catalog, entries, proofs
from tpu_infra.checks.context import without_tpus
from tpu_infra.deployer import every_permission
from tpu_infra.settings.base import Problem
from tpu_infra.settings.machines import Capacity
from tpustack import console, engine, errors, live, stacks
from tpustack.cloud.google import (
    MANAGER,
    ApiError,
    Forbidden,
    Google,
    NotFound,
    granted,
    quota_metrics,
)

NAME: Final = "tpu-stack-prove"
"""The label of a proof's TPU VM, which holds when the proof ends at the latest, in seconds since
1970; the first part of its name; and the namespace of what it saw."""
# From the request for the TPU VM until it is gone. The reserve is for its deletion, which takes a
# minute, and for a call that hangs (60 s, and it is repeated for 15 s).
LIMIT_SECONDS, RESERVE_SECONDS, LEAST_SECONDS = 1800.0, 300.0, 900.0
# A request whose answer was lost may still be carried out for so long. No source: a guess.
_SETTLE_SECONDS = 60.0
_PAUSE, _SCRIPT_SECONDS, _WORKER_SECONDS, _SHORT_SECONDS = 10.0, 300.0, 600.0, 120.0
# The machine next to the TPU VM, and more than it costs in an hour anywhere, in US dollars.
MACHINE, MACHINE_HOUR = "e2-standard-2", Decimal("0.15")
_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
# Each TPU VM listens on it, whatever its runtime does.
_SSH = 22
_TPU, _COMPUTE = "https://tpu.googleapis.com/v2/", "https://compute.googleapis.com/compute/v1/"
_LOGS = "https://logging.googleapis.com/v2/entries:list"
# Of google.rpc.Code, in the error of an operation.
_EXHAUSTED = 8
_SHOWN = 5


# --- The TPU VM: no one logs in, since its start-up script writes what it sees to guest attributes

_SCRIPT = Path(__file__).with_name("prove-script.txt")
# What the trainer reads of a host, and the notice that only machines of Compute Engine document.
_NOTICE = "preempted"
_OF_HOST = tuple(
    f"attributes/{name}"
    for name in ("accelerator-type", "agent-worker-number", "worker-network-endpoints")
)
Network = Mapping[str, str | bool]


def default_network(project: str) -> Network:
    """Return a project's default network, for a TPU VM with an external address.

    Without one it needs Private Google Access (enableExternalIps in the TPU API's document).
    """
    return {"network": f"projects/{project}/global/networks/default", "enableExternalIps": True}


@dataclass(frozen=True)
class Plan:
    """What a proof makes, where, and for how long at most.

    Attributes:
        network: of the TPU VM, as the API has it.
        seconds: from the request for the TPU VM until it is gone.
    """

    project: str
    zone: str
    network: Network
    tpu: entries.Accelerator
    runtime: entries.Runtime
    hour: entries.Price
    seconds: float

    def cost(self, seconds: float) -> Decimal:
        """Return what so many seconds cost, in US dollars."""
        return self.hour.amount * Decimal(str(seconds)) / 3600

    def node(self, name: str, now: float) -> dict[str, Any]:
        """Return the request, at a time, for the TPU VM of that name."""
        return {
            "acceleratorType": self.tpu.name,
            "runtimeVersion": self.runtime.name,
            "schedulingConfig": {"spot": True},
            "labels": {NAME: str(math.ceil(now + self.seconds))},
            "networkConfig": dict(self.network),
            "metadata": self._metadata(f"{self.url('nodes')}/{name}", (_NOTICE, *_OF_HOST), ()),
        }

    def machine(self, name: str, seconds: float, ports: Sequence[tuple[str, int]]) -> core.Json:
        """Return the request for a machine that tries ports, and that Google deletes in time."""
        metadata = self._metadata(f"{self.url('instances')}/{name}", (), ports)
        disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": _IMAGE}}
        places = {key: each for key, each in self.network.items() if key.endswith("network")}
        ends = {"maxRunDuration": {"seconds": str(int(seconds))}}
        return {
            "name": name,
            "machineType": f"zones/{self.zone}/machineTypes/{MACHINE}",
            "disks": [disk],
            "networkInterfaces": [places],
            "scheduling": {**ends, "instanceTerminationAction": "DELETE"},
            "metadata": {"items": [{"key": key, "value": each} for key, each in metadata.items()]},
        }

    def url(self, kind: str) -> str:
        """Return where the zone's TPU VMs or machines are, or the network's firewall rules."""
        host = str(self.network["network"]).partition("/networks/")[0]
        return {
            "nodes": f"{_TPU}projects/{self.project}/locations/{self.zone}/nodes",
            "instances": f"{_COMPUTE}projects/{self.project}/zones/{self.zone}/instances",
            "firewalls": f"{_COMPUTE}{host}/firewalls",
        }[kind]

    def _metadata(self, url: str, entries: Sequence[str], ports: Sequence[Any]) -> dict[str, str]:
        values = {
            "@SECONDS@": str(self.seconds - RESERVE_SECONDS),
            "@ENTRIES@": repr(entries),
            "@REACH@": repr(ports),
            "@LABEL@": NAME,
            "@NAME@": url.rpartition("/")[2],
            "@URL@": url,
        }
        script = re.sub("@[A-Z]+@", lambda found: values[found[0]], _SCRIPT.read_text("utf-8"))
        switches = dict.fromkeys(("enable-guest-attributes", "serial-port-logging-enable"), "TRUE")
        return {**switches, "startup-script": script}


def _offered(google: Google, project: str, zone: str, collection: str, field: str) -> set[str]:
    """Return the names in one of the lists of a zone."""
    url = f"{_TPU}projects/{project}/locations/{zone}/{collection}"
    return {str(one[field]) for one in google.pages(url, collection, {"pageSize": 500})}


# --- A proof: its calls, its clock, its TPU VM


class Unanswered(errors.TpustackError):
    """A claim that this proof can't answer; the message is the reason."""


class Proof:
    """One proof. `left` has the URLs of what may stay.

    Args:
        google: makes the calls, which are noted as evidence.
        plan: what to make.
        now: seconds since 1970: other processes read them, and they count while a laptop sleeps.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        google: Google,
        plan: Plan,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        # Lists have other people's TPUs, with all that their metadata holds.
        self.plan, self.google, self._unnoted = plan, Google(self._noted), google
        self._send, self._now, self._sleep = google.exchange, now, sleep
        self.name = f"{NAME}-{os.urandom(4).hex()}"
        self.evidence: list[dict[str, Any]] = []
        self.asked: float | None = None
        self.seconds = 0.0
        self.left: list[str] = []
        # By URL, for how long it may still appear after its deletion.
        self._made: dict[str, float] = {}
        self._cleaned = False
        self._node: dict[str, Any] = {}

    def _noted(self, verb: str, url: str, headers: dict[str, str], body: core.Body) -> core.Answer:
        sent = body.decode() if isinstance(body, bytes) else ""
        note = {"request": f"{verb} {url}", "body": sent, "status": 0, "answer": ""}
        self.evidence.append(note)
        status, answered, content = self._send(verb, url, headers, body)
        note |= {"status": status, "answer": content.decode(errors="replace")}
        return status, answered, content

    def create(self) -> dict[str, Any]:
        """Create the TPU VM, wait until it is READY and return it. Raises Unanswered, ApiError."""
        self.asked = self._now()
        self._make("nodes", self.plan.node(self.name, self.asked), {"nodeId": self.name})
        self._node = self.google.get(self.url("nodes"))
        return self._node

    def _make(self, kind: str, body: core.Json, query: dict[str, str] | None = None) -> None:
        """Make a thing of its own name, and wait until it is there. Raises Unanswered, ApiError."""
        begun, url = self._now(), self.url(kind)
        # Before: the answer may be lost.
        self._made[url] = _SETTLE_SECONDS
        try:
            operation = self.google.post(self.plan.url(kind), body, query)
        except Forbidden:  # Nothing comes, and who may not make it may not look for it either.
            del self._made[url]
            raise
        where = operation.get("selfLink") or f"{_TPU}{operation['name']}"
        for _ in self.rounds(self.plan.seconds):
            operation = self.google.get(where)
            if operation.get("done") or operation.get("status") == "DONE":
                break
        else:
            raise Unanswered(f"Google had not made it after {duration(self._now() - begun)}")
        if refusal := operation.get("error"):
            refusal = refusal.get("errors", [refusal])[0]
            if refusal.get("code") == _EXHAUSTED:
                raise Unanswered(f"no capacity or quota now: {refusal['message']}")
            raise ApiError(400, str(refusal.get("message")))

    @property
    def node(self) -> dict[str, Any]:
        """The TPU VM as it was when it was READY. Raises Unanswered if there is none."""
        if not self._node:
            raise Unanswered("no TPU VM was READY")
        return self._node

    def url(self, kind: str) -> str:
        """Return where its own is, of a kind that `Plan.url` knows."""
        return f"{self.plan.url(kind)}/{self.name}"

    def machine(self) -> str:
        """Return the URL of the machine next to the TPU VM, which the first call boots."""
        if (url := self.url("instances")) not in self._made:
            host, left = self.node["networkEndpoints"][0], self._deadline() - self._now()
            ports = [(host["ipAddress"], port) for port in (_SSH, int(host["port"]))]
            self._make("instances", self.plan.machine(self.name, left, ports))
            self.wait(_SCRIPT_SECONDS, bool, url)
        return url

    def block(self, address: str) -> None:
        """Close the TPU VM's port for SSH to one address, by a rule for its account."""
        rule = {
            "name": self.name,
            "description": self.node["labels"][NAME],
            "network": self.plan.network["network"],
            "priority": 0,
            "denied": [{"IPProtocol": "tcp", "ports": [str(_SSH)]}],
            "sourceRanges": [f"{address}/32"],
            "targetServiceAccounts": [self.node["serviceAccount"]["email"]],
        }
        self._make("firewalls", rule)

    def wait(self, seconds: float, is_enough: Callable[..., object], machine: str = "") -> Any:
        """Return what the TPU VM saw, or a machine, once it is enough or after so many seconds."""
        seen: dict[str, Any] = {}
        query, node = {"queryPath": f"{NAME}/"}, f"{_TPU}{self.node['name']}:getGuestAttributes"
        for _ in self.rounds(seconds):
            with suppress(NotFound):  # As Compute Engine answers before anything was written.
                hosts = (
                    [self.google.get(f"{machine}/getGuestAttributes", query)]
                    if machine
                    else self.google.post(node, query).get("guestAttributes", ())
                )
                for host in hosts:
                    for item in host.get("queryValue", {}).get("items", ()):
                        seen = core.parse(item["value"].encode())
            if seen and is_enough(seen):
                break
        return seen

    def rounds(self, seconds: float) -> Iterator[None]:
        """Yield now and after each pause, until the seconds or the whole time is over."""
        until = min(self._now() + seconds, self._deadline())
        while True:
            yield
            if self._now() + _PAUSE > until:
                return
            self._sleep(_PAUSE)

    def _deadline(self) -> float:
        begun = self._now() if self.asked is None else self.asked
        return begun + self.plan.seconds - RESERVE_SECONDS

    def answer(self, name: str) -> dict[str, Any]:
        """Ask one claim; return its entry, which has the last answer to each of its requests."""
        says = str(CLAIMS[name].__doc__).removeprefix("Ask whether ")
        entry: dict[str, Any] = {"claim": name, "says": says, "answer": None}
        del self.evidence[:]
        try:
            if self._now() >= self._deadline():
                raise Unanswered("the time that the ceiling of money allows was over")
            entry["answer"], why = CLAIMS[name](self)
        except errors.TpustackError as error:
            why = str(error)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            # What Google really answers is what a proof is to find out.
            why = f"the answer has another form: {type(error).__name__}: {error}"
        notes = {(note["request"], note["body"]): note for note in self.evidence}
        entry |= {"why": console.line(why), "evidence": [*notes.values()]}
        return dict(proofs.redacted(entry, self.plan.project))

    def earlier(self) -> list[str]:
        """Return what proofs have left whose time is over, by URL: TPU VMs and firewall rules.

        Raises TpustackError while the time of another proof is not over: it may be under way.
        """
        everywhere, left = f"{_TPU}projects/{self.plan.project}/locations/-/nodes", []
        for node in self._unnoted.pages(everywhere, "nodes", partial=True):
            ends = node.get("labels", {}).get(NAME, "")
            if f"/nodes/{NAME}-" not in node["name"] or not ends.isdecimal():
                continue
            left.append(url := _TPU + node["name"])
            if int(ends) > self._now():
                raise errors.TpustackError(
                    f"{node['name']} is of another proof, which may last until "
                    f"{datetime.fromtimestamp(int(ends), timezone.utc):%Y-%m-%d %H:%M:%S} UTC. Try "
                    f"again after that. If it was killed, run {_command(url)}"
                )
        with suppress(Forbidden):  # Who may not look has made none.
            for rule in self._unnoted.pages(rules := self.plan.url("firewalls"), "items"):
                own, ends = rule["name"].startswith(f"{NAME}-"), rule.get("description", "")
                if own and ends.isdecimal() and int(ends) <= self._now():
                    left.append(f"{rules}/{rule['name']}")
        return left

    def clean(self) -> None:
        """Delete all that it has made; `left` has what stays."""
        if not self._cleaned and self.asked is not None:
            console.say(f"deleting {self.name}")
            self._delete(self._made)
            self.seconds, self._cleaned = self._now() - self.asked, True

    def _delete(self, settling: Mapping[str, float]) -> None:
        """Delete what is at some URLs until Google no longer has it; `left` has what may stay.

        An answer that was lost counts for nothing. What Google doesn't have is asked for again for
        the given seconds: a request whose answer was lost may still be carried out.
        """
        begun, settle = self._now(), dict(settling)
        while True:
            self.left = []
            for url in settle:
                self.left.append(url)
                try:
                    found = self.google.get(url)
                    settle[url] = 0.0
                    if found.get("state", found.get("status")) not in ("DELETING", "STOPPING"):
                        self.google.delete(url)
                except errors.TpustackError as error:
                    if isinstance(error, NotFound):
                        self.left.remove(url)
            done = not self.left and self._now() >= begun + max(settle.values(), default=0.0)
            if done or self._now() >= begun + RESERVE_SECONDS or console.hurry.is_set():
                return
            self._sleep(_PAUSE)

    def stays(self) -> str:
        """Return what to run since something was not deleted, as far as Google has confirmed."""
        commands = ", and ".join(map(_command, self.left))
        return f"Google did not confirm the deletion. What stays may cost money: run {commands}"

    def run(self, tell: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
        """Ask each claim, tell and return their entries; delete the TPU VM whatever happens.

        Raises:
            TpustackError: when something of another proof stays; it names the command for it.
        """
        self._delete(dict.fromkeys(self.earlier(), 0.0))
        if self.left:
            raise errors.TpustackError(self.stays())
        entries = []
        try:
            try:
                for name in CLAIMS:
                    entries.append(self.answer(name))
                    tell(entries[-1])
            finally:
                self.clean()
        finally:
            # A second time, for an interruption that came while the first one cleaned up.
            self.clean()
            if self.left:
                console.say(self.stays())
        return entries


_DELETE = {"nodes": "tpus tpu-vm delete", "instances": "instances delete"}


def _command(url: str) -> str:
    """Return the command that deletes what is at a URL."""
    project, _, *zone, kind, name = url.partition("/projects/")[2].split("/")
    command = f"gcloud compute {_DELETE.get(kind, 'firewall-rules delete')} {name}"
    return f"`{' --zone '.join([f'{command} --project {project}', *zone])}`"


# --- The claims. Each returns whether it is true, and what shows it


def _compared(wrong: set[str], count: int, what: str) -> tuple[bool, str]:
    """Return an answer for names, some of which are wrong; at most five are shown."""
    named = ", ".join(sorted(wrong)[:_SHOWN]) + (", …" if len(wrong) > _SHOWN else "")
    return not wrong, f"{len(wrong)} of {count} {what}: {named}" if wrong else f"all {count}"


def permissions(proof: Proof) -> tuple[bool, str]:
    """Ask whether Google knows every permission of the deployer's role."""
    names, url = every_permission(), MANAGER.format(proof.plan.project)
    try:
        granted(proof.google, url, names)
    except ApiError as error:
        if error.status != 400:
            raise
        return False, str(error)
    return _compared(set(), len(names), "")


def types(proof: Proof) -> tuple[bool, str]:
    """Ask whether the zone offers exactly the TPU types that the catalog lists for it."""
    plan, catalog = proof.plan, Catalog()
    offered = _offered(proof.google, plan.project, plan.zone, "acceleratorTypes", "type")
    ours = {name for name, one in catalog.accelerators.items() if plan.zone in one.zones}
    # The catalog lists the most common sizes of some generations, and knows the others.
    known = ((name, catalog.accelerator(name)) for name in offered - ours)
    others = {name for name, one in known if one is None or one.listed}
    return _compared(others | ours - offered, len(offered | ours), "differ")


def runtimes(proof: Proof) -> tuple[bool, str]:
    """Ask whether the zone offers every TPU VM runtime that the catalog lists."""
    plan, ours = proof.plan, set(Catalog().runtimes)
    offered = _offered(proof.google, plan.project, plan.zone, "runtimeVersions", "version")
    return _compared(ours - offered, len(ours), "are missing")


def quota(proof: Proof) -> tuple[bool, str]:
    """Ask whether the TPU's quota metric has the name that `check --live` expects."""
    listed = quota_metrics(proof.google, proof.plan.project, TPU_API)
    names = [metric["metric"].partition("/")[2] for metric in listed]
    fitting = [name for name in names if live.counts(name, proof.plan.tpu, Capacity.SPOT)]
    return bool(fitting), ", ".join(fitting or names) or "no metrics"


def spot_tpu(proof: Proof) -> tuple[bool, str]:
    """Ask whether Google creates the smallest spot TPU VM with the runtime."""
    try:
        state = str(proof.create().get("state"))
    except ApiError as error:
        text, plan = str(error), proof.plan
        if error.status == 400 and (plan.runtime.name in text or plan.tpu.name in text):
            return False, text
        raise
    return state == "READY", f"its state is {state}"


def script(proof: Proof) -> tuple[bool, str]:
    """Ask whether the start-up script runs, and Google shows what it writes."""
    told = bool(proof.wait(_SCRIPT_SECONDS, bool))
    return told, "it wrote a guest attribute" if told else f"nothing in {_SCRIPT_SECONDS:g} s"


def _seen(proof: Proof, seconds: float, is_enough: Callable[..., object], machine: str = "") -> Any:
    """Return what the TPU VM saw, or a machine. Raises Unanswered if it wrote nothing."""
    if seen := proof.wait(seconds, is_enough, machine):
        return seen
    raise Unanswered("the start-up script wrote nothing")


def grpc(proof: Proof) -> tuple[bool, str]:
    """Ask whether a `-pod` runtime on one host listens on the port that the API reports."""
    port = _port(proof)
    ports = _seen(proof, _WORKER_SECONDS, lambda seen: port in seen["ports"])["ports"]
    return port in ports, f"the API reports {port}; it listens on {ports}"


def _port(proof: Proof) -> int:
    """Return the port that the API reports. Raises Unanswered if the runtime doesn't serve it."""
    if not proof.plan.runtime.serves_grpc:
        raise Unanswered(f"{proof.plan.runtime.name} serves no gRPC")
    return int(proof.node["networkEndpoints"][0]["port"])


def notice(proof: Proof) -> tuple[bool, str]:
    """Ask whether the metadata server of a spot TPU VM has the key `preempted`."""
    value = str(_seen(proof, _PAUSE, bool)[_NOTICE])
    return value.strip() in ("TRUE", "FALSE"), f"instance/{_NOTICE}: {value}"


def host_metadata(proof: Proof) -> tuple[bool, str]:
    """Ask whether the metadata has what the trainer reads of its host."""
    seen = _seen(proof, _PAUSE, bool)
    wrong = {path for path in _OF_HOST if str(seen.get(path, "error")).startswith("error")}
    return _compared(wrong, len(_OF_HOST), "are missing")


def serial_output(proof: Proof) -> tuple[bool, str]:
    """Ask whether Cloud Logging gets a TPU VM's serial output."""
    wanted = f'textPayload:"{proof.node["name"].rpartition("/")[2]}: the start-up script runs"'
    body = {"resourceNames": [f"projects/{proof.plan.project}"], "filter": wanted}
    found = any(proof.google.post(_LOGS, body).get("entries") for _ in proof.rounds(_SHORT_SECONDS))
    return found, "its first line is there" if found else f"nothing in {_SHORT_SECONDS:g} s"


def reach(proof: Proof) -> tuple[bool, str]:
    """Ask whether another machine of the network reaches the port that the API reports."""
    port = _port(proof)
    reached = _reached(proof, lambda ports: port in ports)
    return port in reached, f"the API reports {port}; of 22 and {port} it reaches {reached}"


def account_rule(proof: Proof) -> tuple[bool, str]:
    """Ask whether a firewall rule for the TPU VM's account applies to it."""
    if _SSH not in (before := _reached(proof, bool)):
        raise Unanswered(f"without the rule, the other machine doesn't reach port {_SSH} either")
    proof.block(proof.google.get(proof.machine())["networkInterfaces"][0]["networkIP"])
    reached = _reached(proof, lambda ports: _SSH not in ports, _SHORT_SECONDS)
    if before != [_SSH] and not reached:
        raise Unanswered("the other machine no longer reaches any port of the TPU VM")
    return _SSH not in reached, f"with a rule that closes port {_SSH} it reaches {reached}"


def _reached(proof: Proof, is_enough: Callable[..., object], seconds: float = _PAUSE) -> list[int]:
    """Return the TPU VM's ports that the other machine reaches."""
    machine = proof.machine()
    return list(_seen(proof, seconds, lambda seen: is_enough(seen["reached"]), machine)["reached"])


def deletion(proof: Proof) -> tuple[bool, str]:
    """Ask whether a deleted TPU VM is gone within five minutes."""
    name = proof.node["name"]
    proof.clean()
    stays = proof.url("nodes") in proof.left
    return not stays, proof.stays() if stays else f"Google has no {name}"


CLAIMS: Final[Mapping[str, Callable[[Proof], tuple[bool, str]]]] = {
    "permissions": permissions,
    "types": types,
    "runtimes": runtimes,
    "quota": quota,
    proofs.CREATED: spot_tpu,
    "start-up script": script,
    "gRPC": grpc,
    "notice": notice,
    "host metadata": host_metadata,
    "serial output": serial_output,
    "reach": reach,
    "account rule": account_rule,
    "deletion": deletion,
}
"""In the order in which they are asked."""


# --- What is written


def document(proof: Proof, claims: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a proof as its file has it."""
    plan = proof.plan
    made = {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "zone": plan.zone,
        "acceleratorType": plan.tpu.name,
        "runtimeVersion": plan.runtime.name,
        "versions": {"tpu-stack": version("tpu-stack"), "python": python_version()},
        "cost": {"seconds": round(proof.seconds), "dollars": f"{plan.cost(proof.seconds):.4f}"},
        "claims": list(claims),
    }
    return {**made, "digest": proofs.digest(made)}


# --- The command


def plan_of(google: Google, project: str, zone: str, network: Network, ceiling: float) -> Plan:
    """Return what a proof would make: the cheapest spot TPU of one host that the zone offers.

    Raises:
        UsageError: billing is off, the zone has no such TPU, or the ceiling is too low for one.
    """
    catalog = Catalog()
    zones = sorted({one for tpu in catalog.accelerators.values() for one in tpu.zones})
    if zone not in zones:
        errors.refuse([without_tpus("--zone", zone, zones)])
    with suppress(Forbidden):  # Not everyone may look; Google refuses the TPU VM then.
        if not google.get(f"{live.BILLING}/projects/{project}/billingInfo").get("billingEnabled"):
            why = "has no billing account, so that Google creates nothing in it"
            cure = f"Run `gcloud billing projects link {project} --billing-account ACCOUNT`"
            errors.refuse([Problem("--project", project, why, cure)])
    try:
        offered = _offered(google, project, zone, "acceleratorTypes", "type")
    except (NotFound, Forbidden) as error:
        if isinstance(error, Forbidden) and core.HIDDEN not in str(error):
            raise
        offered = set()
    region, found = zone.rpartition("-")[0], []
    for tpu in filter(None, map(catalog.accelerators.get, offered)):
        hour = catalog.prices.tpu(tpu, region, Capacity.SPOT)
        runtimes = [one for one in catalog.runtimes.values() if tpu.family in one.families]
        if hour and runtimes and tpu.hosts == 1:
            best = min(runtimes, key=lambda one: (not one.serves_grpc, one.broken))
            hour = entries.Price(hour.amount + MACHINE_HOUR, hour.source)
            found.append((hour.amount, tpu.name, tpu, best, hour))
    if not found:
        why = "offers the project no TPU of one host with a known spot price"
        errors.refuse([Problem("--zone", zone, why, "`tpustack catalog` lists zones with prices")])
    _, _, tpu, runtime, hour = min(found, key=lambda each: each[:2])
    # In this order, what is not a number stays that, and is refused.
    seconds = min(ceiling / float(hour.amount) * 3600, LIMIT_SECONDS)
    plan = Plan(project, zone, network, tpu, runtime, hour, seconds)
    if not seconds >= LEAST_SECONDS:
        least = plan.cost(LEAST_SECONDS) + Decimal("0.005")
        why = f"pays for less than {duration(LEAST_SECONDS)} of a spot {tpu.name}"
        errors.refuse([Problem("--ceiling", ceiling, why, f"Use {money(least)[1:]} or more")])
    return plan


def _place(stack: str | None, project: str | None, zone: str | None) -> tuple[str, str, Network]:
    """Return the project, the zone and the network of the options or of the stack."""
    if stack is None and project is not None and zone is not None:
        return project, zone, default_network(project)
    if project is not None or zone is not None:
        raise errors.UsageError("say where: either --stack, or --project and --zone")
    settings = stacks.load(engine.named(stack))
    network = settings.network
    if network.create:  # That one need not be there yet.
        return settings.project, settings.zone, default_network(settings.project)
    host = f"projects/{network.project or settings.project}"
    given: Network = {
        "network": f"{host}/global/networks/{network.given_name}",
        "subnetwork": f"{host}/regions/{settings.region}/subnetworks/{network.given_subnetwork}",
        "enableExternalIps": settings.tpu.external_ips,
    }
    return settings.project, settings.zone, given


_DOLLARS = click.FloatRange(0, 100, min_open=True)
_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("prove")
@console.stack("Where: the stack's project, zone and existing network. It need not be up.")
@click.option("--project", help="Where, without a stack: the project, and its default network.")
@click.option("--zone", shell_complete=console.zones, help="Where, without a stack.")
@click.option("--ceiling", type=_DOLLARS, default=1.0, help="The most it costs.  [default: $1.00]")
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--out", type=_FILE, default="proof.json", help="The proof.  [default: proof.json]")
def prove_command(ceiling: float, yes: bool, out: Path, **where: str | None) -> None:
    """Ask the real Google Cloud what docs/verification.md lists as open.

    It creates the zone's cheapest spot TPU VM and a small machine, tests each claim, deletes both,
    and writes proof.json and, to standard output, a text for an issue. It first shows what that
    costs, and asks. Both are deleted before the ceiling is reached, and on an interruption.

    Exit code 0: each claim is answered, 1: something could not be deleted, 3: a claim is open.
    """
    place, google = _place(**where), Google()
    if not (out.absolute().parent.is_dir() and os.access(out.absolute().parent, os.W_OK)):
        why = "is in a folder that doesn't exist, or that you can't write to"
        errors.refuse([Problem("--out", str(out), why, "Name a file in another folder")])
    plan = plan_of(google, *place, ceiling)
    proof = Proof(google, plan)
    for url in proof.earlier():
        console.say(f"{url.rpartition('/')[2]} is of an earlier proof, and is deleted first")
    console.say(
        f"A spot {plan.tpu.name} in {plan.zone} of {plan.project} with {plan.runtime.name}, and a "
        f"small machine: {money(plan.hour.amount)} an hour, so at most "
        f"{money(plan.cost(plan.seconds))} for {duration(plan.seconds)} "
        f"(price of {plan.hour.source.date}: {plan.hour.source.url})"
    )
    if not yes and not click.confirm("Create it, ask, and delete it?", err=True):
        return
    claims = proof.run(
        lambda one: console.say(f"{one['claim']}: {proofs.ANSWERS[one['answer']]}; {one['why']}")
    )
    made = document(proof, claims)
    try:
        out.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    finally:
        click.echo(console.plain(proofs.issue(made)))
    sys.exit(1 if proof.left else 3 if any(one["answer"] is None for one in claims) else 0)
