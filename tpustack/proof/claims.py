"""What a proof asks Google, and the entry that each answer becomes."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from tpu_infra.apis import TPU_API
from tpu_infra.catalog import Catalog, proofs
from tpu_infra.deployer import every_permission
from tpu_infra.settings.machines import Capacity
from tpustack import console, errors, live
from tpustack.cloud.google import MANAGER, ApiError, NotFound, granted, quota_metrics
from tpustack.proof.things import (
    NOTICE,
    OF_HOST,
    PAUSE,
    SCRIPT_SECONDS,
    SSH,
    Proof,
    Unanswered,
    offered,
)

_LOGS = "https://logging.googleapis.com/v2/entries:list"
_WORKER_SECONDS, _SHORT_SECONDS = 600.0, 120.0
_SHOWN = 5
# What `preemption` takes.
_SIMULATE = "compute.instances.simulateMaintenanceEvent"


# --- The claims. Each returns whether it is true, and what shows it


def _compared(wrong: set[str], count: int, what: str) -> tuple[bool, str]:
    """Return an answer for names, some of which are wrong; at most five are shown."""
    named = ", ".join(sorted(wrong)[:_SHOWN]) + (", …" if len(wrong) > _SHOWN else "")
    return not wrong, f"{len(wrong)} of {count} {what}: {named}" if wrong else f"all {count}"


def permissions(proof: Proof) -> tuple[bool, str]:
    """Ask whether Google knows every permission of the deployer's role."""
    names, url = [*every_permission(), _SIMULATE], MANAGER.format(proof.plan.project)
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
    found = offered(proof.google, plan.project, plan.zone, "acceleratorTypes", "type")
    ours = {name for name, one in catalog.accelerators.items() if plan.zone in one.zones}
    # The catalog lists the most common sizes of some generations, and knows the others.
    known = ((name, catalog.accelerator(name)) for name in found - ours)
    others = {name for name, one in known if one is None or one.listed}
    return _compared(others | ours - found, len(found | ours), "differ")


def runtimes(proof: Proof) -> tuple[bool, str]:
    """Ask whether the zone offers every TPU VM runtime that the catalog lists."""
    plan, ours = proof.plan, set(Catalog().runtimes)
    found = offered(proof.google, plan.project, plan.zone, "runtimeVersions", "version")
    return _compared(ours - found, len(ours), "are missing")


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
    told = bool(proof.wait(SCRIPT_SECONDS, bool))
    return told, "it wrote a guest attribute" if told else f"nothing in {SCRIPT_SECONDS:g} s"


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
    value = str(_seen(proof, PAUSE, bool)[NOTICE])
    return value.strip() in ("TRUE", "FALSE"), f"instance/{NOTICE}: {value}"


def host_metadata(proof: Proof) -> tuple[bool, str]:
    """Ask whether the metadata has what the trainer reads of its host."""
    seen = _seen(proof, PAUSE, bool)
    wrong = {path for path in OF_HOST if str(seen.get(path, "error")).startswith("error")}
    return _compared(wrong, len(OF_HOST), "are missing")


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
    if SSH not in (before := _reached(proof, bool)):
        raise Unanswered(f"without the rule, the other machine doesn't reach port {SSH} either")
    proof.block(proof.google.get(proof.machine())["networkInterfaces"][0]["networkIP"])
    reached = _reached(proof, lambda ports: SSH not in ports, _SHORT_SECONDS)
    if before != [SSH] and not reached:
        raise Unanswered("the other machine no longer reaches any port of the TPU VM")
    return SSH not in reached, f"with a rule that closes port {SSH} it reaches {reached}"


def _reached(proof: Proof, is_enough: Callable[..., object], seconds: float = PAUSE) -> list[int]:
    """Return the TPU VM's ports that the other machine reaches."""
    machine = proof.machine()
    return list(_seen(proof, seconds, lambda seen: is_enough(seen["reached"]), machine)["reached"])


def preemption(proof: Proof) -> tuple[bool, str]:
    """Ask whether a spot machine that is preempted reads so while it shuts down.

    A simulated maintenance event is to preempt it: Google names this test of preemption in
    docs.cloud.google.com/compute/docs/instances/simulating-host-maintenance.
    """
    machine, found = proof.machine(), dict[str, int]()
    proof.google.post(f"{machine}/simulateMaintenanceEvent", {})
    wanted = f'textPayload:"{proof.name}: preempted "'
    body = {"resourceNames": [f"projects/{proof.plan.project}"], "filter": wanted}
    for _ in proof.rounds(_SHORT_SECONDS):
        lines = [
            str(one.get("textPayload")) for one in proof.google.post(_LOGS, body).get("entries", ())
        ]
        told = re.findall(r"preempted (\w*).* after (\d+) s", "\n".join(lines))
        found = {value: int(second) for value, second in sorted(told, key=lambda one: int(one[1]))}
        if found and _is_off(proof, machine):
            break
    if not found:
        raise Unanswered(f"its serial output told of no shutdown in {_SHORT_SECONDS:g} s")
    return "TRUE" in found, f"it reads {', '.join(found)}, and runs {max(found.values())} s longer"


def _is_off(proof: Proof, machine: str) -> bool:
    with suppress(NotFound):
        return str(proof.google.get(machine)["status"]) == "TERMINATED"
    return True


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
    "preemption": preemption,
    "deletion": deletion,
}
"""In the order in which they are asked."""


def answer(proof: Proof, name: str) -> dict[str, Any]:
    """Ask one claim; return its entry, which has the last answer to each of its requests."""
    says = str(CLAIMS[name].__doc__).partition("\n")[0].removeprefix("Ask whether ")
    entry: dict[str, Any] = {"claim": name, "says": says, "answer": None}
    del proof.evidence[:]
    try:
        if proof.is_over():
            raise Unanswered("the time that the ceiling of money allows was over")
        entry["answer"], why = CLAIMS[name](proof)
    except errors.TpustackError as error:
        why = str(error)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        # What Google really answers is what a proof is to find out.
        why = f"the answer has another form: {type(error).__name__}: {error}"
    notes = {(note["request"], note["body"]): note for note in proof.evidence}
    entry |= {"why": console.line(why), "evidence": [*notes.values()]}
    return dict(proofs.redacted(entry, proof.plan.project))


def run(proof: Proof, tell: Callable[[dict[str, Any]], None]) -> list[dict[str, Any]]:
    """Ask each claim, tell and return their entries; delete the TPU VM whatever happens.

    Raises:
        TpustackError: when something of another proof stays; it names the command for it.
    """
    proof.delete(dict.fromkeys(proof.earlier(), 0.0))
    if proof.left:
        raise errors.TpustackError(proof.stays())
    entries = []
    try:
        try:
            for name in CLAIMS:
                entries.append(answer(proof, name))
                tell(entries[-1])
        finally:
            proof.clean()
    finally:
        # A second time, for an interruption that came while the first one cleaned up.
        proof.clean()
        if proof.left:
            console.say(proof.stays())
    return entries
