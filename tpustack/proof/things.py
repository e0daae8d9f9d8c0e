"""A proof's TPU VM, the machine next to it and a firewall rule: their requests and their end.

A deadline that follows from the ceiling of money ends a proof, and everything that ends this
process deletes what it made, too. After a `kill -9`, the TPU VM deletes itself or powers itself off
at the same deadline, Google deletes the machine, and the next proof in the project deletes what is
left.
"""

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from tpu_core import google as core
from tpu_core.words import duration
from tpu_infra.catalog import entries
from tpustack import console, errors
from tpustack.cloud.google import ApiError, Forbidden, Google, NotFound

NAME: Final = "tpu-stack-prove"
"""The label of a proof's TPU VM, which holds when the proof ends at the latest, in seconds since
1970; the first part of its name; and the namespace of what it saw."""
# From the request for the TPU VM until it is gone. The reserve is for its deletion, which takes a
# minute, and for a call that hangs (60 s, and it is repeated for 15 s).
LIMIT_SECONDS, RESERVE_SECONDS, LEAST_SECONDS = 1800.0, 300.0, 900.0
# A request whose answer was lost may still be carried out for so long. No source: a guess.
_SETTLE_SECONDS = 60.0
PAUSE, SCRIPT_SECONDS = 10.0, 300.0
# The machine next to the TPU VM, and more than it costs in an hour anywhere, in US dollars.
MACHINE, MACHINE_HOUR = "e2-standard-2", Decimal("0.15")
_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
# Each TPU VM listens on it, whatever its runtime does.
SSH = 22
_TPU, _COMPUTE = "https://tpu.googleapis.com/v2/", "https://compute.googleapis.com/compute/v1/"
# Of google.rpc.Code, in the error of an operation.
_EXHAUSTED = 8


# --- The TPU VM: no one logs in, since its start-up script writes what it sees to guest attributes

_SCRIPT = Path(__file__).with_name("prove-script.txt")
# For the machine next to it, which is deleted when it is preempted: its serial port tells of the
# notice, since Cloud Logging keeps that.
_SHUTDOWN = _SCRIPT.with_name("prove-shutdown.txt")
# What the trainer reads of a host, and the notice that only machines of Compute Engine document.
NOTICE = "preempted"
OF_HOST = tuple(
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
            "metadata": self._metadata(f"{self.url('nodes')}/{name}", (NOTICE, *OF_HOST), ()),
        }

    def machine(self, name: str, seconds: float, ports: Sequence[tuple[str, int]]) -> core.Json:
        """Return the request for a machine that tries ports, and that Google deletes in time."""
        metadata = self._metadata(f"{self.url('instances')}/{name}", (), ports)
        metadata["shutdown-script"] = _SHUTDOWN.read_text("utf-8").replace("@NAME@", name)
        disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": _IMAGE}}
        places = {key: each for key, each in self.network.items() if key.endswith("network")}
        ends = {"provisioningModel": "SPOT", "maxRunDuration": {"seconds": str(int(seconds))}}
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


def offered(google: Google, project: str, zone: str, collection: str, field: str) -> set[str]:
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
            ports = [(host["ipAddress"], port) for port in (SSH, int(host["port"]))]
            self._make("instances", self.plan.machine(self.name, left, ports))
            self.wait(SCRIPT_SECONDS, bool, url)
        return url

    def block(self, address: str) -> None:
        """Close the TPU VM's port for SSH to one address, by a rule for its account."""
        rule = {
            "name": self.name,
            "description": self.node["labels"][NAME],
            "network": self.plan.network["network"],
            "priority": 0,
            "denied": [{"IPProtocol": "tcp", "ports": [str(SSH)]}],
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
            if self._now() + PAUSE > until:
                return
            self._sleep(PAUSE)

    def is_over(self) -> bool:
        """Return whether no time is left for a question."""
        return self._now() >= self._deadline()

    def _deadline(self) -> float:
        begun = self._now() if self.asked is None else self.asked
        return begun + self.plan.seconds - RESERVE_SECONDS

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
            self.delete(self._made)
            self.seconds, self._cleaned = self._now() - self.asked, True

    def delete(self, settling: Mapping[str, float]) -> None:
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
            self._sleep(PAUSE)

    def stays(self) -> str:
        """Return what to run since something was not deleted, as far as Google has confirmed."""
        commands = ", and ".join(map(_command, self.left))
        return f"Google did not confirm the deletion. What stays may cost money: run {commands}"


# In full, as the tests of recorded commands read them.
_DELETIONS = {
    "nodes": "gcloud compute tpus tpu-vm delete {name} --project {project} --zone {zone}",
    "instances": "gcloud compute instances delete {name} --project {project} --zone {zone}",
    "firewalls": "gcloud compute firewall-rules delete {name} --project {project}",
}


def _command(url: str) -> str:
    """Return the command that deletes what is at a URL."""
    project, _, *zone, kind, name = url.partition("/projects/")[2].split("/")
    command = _DELETIONS[kind].format(name=name, project=project, zone="".join(zone))
    return f"`{command}`"
