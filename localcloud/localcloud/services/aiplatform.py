"""The Vertex AI API: custom jobs on TPUs, whose containers run as machines.

A job has a machine for each host of its TPU: worker 0 is the job, the others end with it. A slice
of several hosts is one replica; its machines follow from machine type and topology.

Source: docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/
configure-compute#tpu. The metrics of quotas are those in users' reports (`…_tpu_v2`) and in
Google's own notebooks (`…_tpu_v3`, `…_tpu_v5e`); that of v6e is inferred, as are those of spot TPUs
from spot GPUs' (`…_preemptible_nvidia_t4_gpus`). Spot: …/machine-learning/predictions/use-spot-vms.
"""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from localcloud import data
from localcloud.core import Api, ApiError, Cloud, Collection, access, invalid, projects, rfc3339
from localcloud.core.call import CLOUD_PLATFORM, Call, Json, page
from localcloud.core.cloud import MachineSpec, machine_powered_off, service_enabled
from localcloud.core.errors import failed_precondition
from localcloud.core.store import Record, Work, effect, public, show_operation
from localcloud.services import iam_policy, kind
from localcloud.services.tpu import catalog

_SERVICE = "aiplatform.googleapis.com"
_REGIONS: tuple[str, ...] = tuple(data.load("compute-places"))
API = Api("aiplatform", ("v1",), hosts=[f"{region}-{_SERVICE}" for region in _REGIONS])
JOBS = Collection(API, "projects.locations.customJobs", "aiplatform.customJobs")
JOB = "custom-job"
"""The store's kind of custom jobs, by `projects/ID/locations/REGION/customJobs/NUMBER`."""
_KEPT = ("displayName", "jobSpec", "labels")
_LONGEST_NAME = 128
# "Label keys and values can be no longer than 64 characters" (the discovery document).
_LABEL = re.compile(r"[a-z0-9_-]{0,64}")
_FILTER = re.compile(r'(state|display_name|displayName)\s*(!?=)\s*"?([^"\s]+)"?')
# In the store's operations, which all APIs share.
_PREFIX = "aiplatform/"
_TYPE = "type.googleapis.com/google.cloud.aiplatform.v1.DeleteOperationMetadata"
_PATH = "projects.locations.customJobs.operations"
# The guest attribute by which a container's script tells how it ended.
_CODE = "vertex/exit-code"
# "Maximum limit is 100" (the discovery document, `ContainerSpec.env`).
_MOST_VARIABLES = 100
# Between the polite request to end and force.
_GRACE = 10.0
# How often a machine that vanishes is replaced.
_RESTARTS = 3
_SCRIPT = """cd "$(mktemp -d)"
({command})
code=$?
echo "the container exited with status $code"
curl --silent --request PUT --data "$code" --header "Metadata-Flavor: Google" \\
  "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/{code}"
poweroff
"""
_CLASSIC = {"TPU_V2": "v2", "TPU_V3": "v3"}
_MACHINES = {
    **{f"ct5lp-hightpu-{chips}t": "v5litepod" for chips in (1, 4, 8)},
    **{f"ct6e-standard-{chips}t": "v6e" for chips in (1, 4, 8)},
}
# The machine that slices of several hosts are made of.
_OF_SLICES = "ct5lp-hightpu-4t"
_METRICS = {"v2": "tpu_v2", "v3": "tpu_v3", "v5litepod": "tpu_v5e", "v6e": "tpu_v6e"}
_ENDED = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")


def place(call: Call) -> str:
    """Return the location in the path, which a region's own host serves alone.

    Raises ApiError: 400 for another host than the region's.
    """
    region = call.params["locationsId"]
    if region not in _REGIONS or call.request.host != f"{region}-{_SERVICE}":
        raise invalid(
            f"The location {region} is not served at {call.request.host}: it is a region, whose "
            f"host is REGION-{_SERVICE}."
        )
    return f"projects/{call.project}/locations/{region}"


def _view(cloud: Cloud, name: str, record: Record) -> Json:
    return {"name": projects.numbered(name), **public(record)}


_KIND = kind.Kind(
    collection=JOBS,
    store=JOB,
    items="customJobs",
    missing=lambda name: f"CustomJob {projects.numbered(name)} is not found.",
    parent=place,
    view=_view,
)
kind.serve(_KIND, "get")


@dataclass(frozen=True)
class Pool:
    """A TPU as Cloud TPU names it, the machine type of its hosts, and how many these are."""

    accelerator: catalog.Accelerator
    machine_type: str
    hosts: int = 1
    spot: bool = False

    @property
    def metric(self) -> str:
        """The quota that it counts against."""
        spot = "preemptible_" if self.spot else ""
        return f"custom_model_training_{spot}{_METRICS[self.accelerator.generation]}"


def custom_code_agent(project: str) -> str:
    """Return the account as which jobs run that name none."""
    return f"service-{projects.number(project)}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"


@service_enabled[_SERVICE]
def _begin(cloud: Cloud, project: str) -> None:
    primary = f"service-{projects.number(project)}@gcp-sa-aiplatform.iam.gserviceaccount.com"
    iam_policy.add_account(cloud, project, primary, "roles/aiplatform.serviceAgent")
    custom = custom_code_agent(project)
    iam_policy.add_account(cloud, project, custom, "roles/aiplatform.customCodeServiceAgent")


@JOBS.method("create")
def create_job(cloud: Cloud, call: Call) -> Json:
    """Take a job, and run it soon.

    "A created CustomJob right away will be attempted to be run." Quota is checked under the lock
    that stores the job, so that two jobs cannot both take the last TPU.
    """
    parent = place(call)
    record = _checked(cloud, call)
    now = rfc3339(cloud.clock.now())
    name = f"{parent}/customJobs/{cloud.operations.number()}"
    record |= {"state": "JOB_STATE_PENDING", "createTime": now, "updateTime": now}
    with cloud.store.locked():
        pool = pool_of(record["jobSpec"])
        _require_pool(cloud, call.project, call.params["locationsId"], pool)
        cloud.store.put(JOB, name, record)
    work = Work("aiplatform.job.run", {"name": name}, cloud.seconds("tpu.create"))
    cloud.operations.start(f"aiplatform-internal/{name}", work)
    return _view(cloud, name, record)


@JOBS.method("list")
def list_jobs(cloud: Cloud, call: Call) -> Json:
    """List a region's jobs, the newest first; all, or those that a filter leaves."""
    found = cloud.store.items(JOB, _KIND.prefix(call))
    views = [_view(cloud, name, record) for name, record in found]
    views.sort(key=lambda view: str(view["createTime"]), reverse=True)
    if call.arg("readMask"):
        raise ApiError(501, "the local cloud has no readMask for custom jobs")
    if wanted := call.arg("filter"):
        terms = [_term(text) for text in wanted.split(" AND ")]
        views = [view for view in views if all(fits(view) for fits in terms)]
    return page(call, "customJobs", views)


@JOBS.method("cancel")
def cancel_job(cloud: Cloud, call: Call) -> Json:
    """Begin to end a job's container; one that has ended stays as it is.

    Cancelling is asynchronous and answers nothing; the job becomes one with the error code 1
    (CANCELLED), and is not deleted.
    """
    name = _KIND.name(call)
    with cloud.store.locked():
        record = _KIND.find(cloud, name)
        if "endTime" in record or record["state"] == "JOB_STATE_CANCELLING":
            return {}
        cloud.store.put(JOB, name, record | {"state": "JOB_STATE_CANCELLING"})
    work = Work("aiplatform.job.cancel", {"name": name}, cloud.seconds("tpu.delete"))
    cloud.operations.start(f"aiplatform-internal/cancel/{name}", work)
    return {}


@effect("aiplatform.job.cancel")
def _cancelled(cloud: Cloud, name: str) -> None:
    # End the containers; their files stay.
    for key in _keys(cloud, name):
        cloud.machines.halt(key, grace=_GRACE)
    _finish(cloud, name, "JOB_STATE_CANCELLED", {"code": 1, "message": "CANCELED"})


@JOBS.method("delete")
def delete_job(cloud: Cloud, call: Call) -> Json:
    """Forget a job that has ended.

    A running one is refused, as Google does: its machines would be left without an owner.
    """
    name = _KIND.name(call)
    record = _KIND.find(cloud, name)
    if "endTime" not in record:
        raise failed_precondition(
            f"CustomJob {projects.numbered(name)} is in state {record['state']}: cancel it first."
        )
    operation = f"{name}/operations/{cloud.operations.number()}"
    work = Work("aiplatform.job.delete", {"name": name})
    return _show_operation(operation, cloud.operations.start(_PREFIX + operation, work))


@effect("aiplatform.job.delete")
def _forget(cloud: Cloud, name: str) -> None:
    for key in _keys(cloud, name):
        cloud.machines.remove(key)
    cloud.store.delete(JOB, name)


def _term(text: str) -> Callable[[Json], bool]:
    """Return whether a job is as one comparison of a filter says."""
    compared = _FILTER.fullmatch(text.strip())
    if compared is None:
        raise ApiError(501, f"the local cloud filters custom jobs by state and name, not {text!r}")
    field = "state" if compared[1] == "state" else "displayName"
    return lambda view: (view[field] == compared[3]) == (compared[2] == "=")


# The order is fixed, so that a job with two mistakes always gets the same answer: name, labels,
# container, account. The pool comes later, with the quota.
def _checked(cloud: Cloud, call: Call) -> Record:
    record: Record = call.sent(_KEPT)
    title, spec = record.get("displayName", ""), record.get("jobSpec", {})
    if not 0 < len(title) <= _LONGEST_NAME:
        raise invalid(f"display_name must have 1 to {_LONGEST_NAME} characters.")
    for key, value in record.get("labels", {}).items():
        if not (_LABEL.fullmatch(key) and _LABEL.fullmatch(value)):
            raise invalid(f"Invalid label {key}: {value}.")
    _require_supported(spec)
    _require_account(cloud, call, spec.get("serviceAccount", ""))
    return record


def _require_account(cloud: Cloud, call: Call, email: str) -> None:
    if not email:
        return
    if problem := access.account_problem(cloud, email):
        raise invalid(f"{problem}.")
    # The agent is Google's own choice where a job names no account, so naming it takes no right.
    if email != custom_code_agent(call.project) and not access.may_act_as(cloud, call, email):
        raise ApiError(
            403,
            f"You do not have permission to act as service_account: {email}. (or it may not exist)",
        )


@API.method(f"{_PATH}.get", permission="aiplatform.operations.list")
def get_operation(cloud: Cloud, call: Call) -> Json:
    """Answer where an operation stands; it stays when its job is gone.

    Deletion is the only operation, and its client asks for it after the job has vanished.
    """
    name = f"{_KIND.name(call)}/operations/{call.params['operationsId']}"
    missing = ApiError(404, f"Operation {projects.numbered(name)} is not found.")
    return _show_operation(name, cloud.operations.load(_PREFIX + name, missing))


def _show_operation(name: str, record: Record) -> Json:
    times = {
        "createTime": rfc3339(record["started"]),
        "updateTime": rfc3339(record.get("finished") or record["started"]),
    }
    metadata = {"@type": _TYPE, "genericMetadata": times}
    answer = show_operation(projects.numbered(name), metadata, record, lambda made: made)
    # Vertex AI has the end in `updateTime` alone.
    answer["metadata"].pop("endTime", None)
    return answer


def _require_supported(spec: Json) -> None:
    """Refuse what is no container, or what the local cloud does not run; 400 or 501.

    501 is the local cloud's own: a job that Google would run must not seem to be wrong.
    """
    for field in ("persistentResourceId", "tensorboard", "pscInterfaceConfig", "experiment"):
        if spec.get(field):
            raise ApiError(501, f"the local cloud has no {field} for custom jobs")
    pool = (spec.get("workerPoolSpecs") or [{}])[0]
    if "pythonPackageSpec" in pool:
        raise ApiError(501, "the local cloud runs containerSpec, not pythonPackageSpec")
    container = pool.get("containerSpec", {})
    if not container.get("imageUri"):
        raise invalid("container_spec.image_uri is required.")
    if not container.get("command"):
        raise ApiError(501, "the local cloud has no images: containerSpec needs a command")
    if len(container.get("env", [])) > _MOST_VARIABLES:
        raise invalid(f"container_spec.env may have at most {_MOST_VARIABLES} variables.")


@effect("aiplatform.job.run")
def run_job(cloud: Cloud, name: str) -> None:
    """Start a job's container, unless it was cancelled or the region has no room.

    It is an operation's effect, so that a job that waits survives a restart of the local cloud.
    """
    record = cloud.store.get(JOB, name)
    if record is None or record["state"] != "JOB_STATE_PENDING":
        return
    region, pool = name.split("/")[3], pool_of(record["jobSpec"])
    # Vertex AI takes any zone of the region that has room.
    out, kinds = cloud.setting("stockout"), {pool.accelerator.name, "*"}
    if not any(kinds.isdisjoint(out.get(zone, ())) for zone in _zones(region, pool)):
        message = f"Resources are insufficient in region: {region}. Please try a different region."
        _finish(cloud, name, "JOB_STATE_FAILED", {"code": 8, "message": message})
        return
    now = rfc3339(cloud.clock.now())
    changed = {"state": "JOB_STATE_RUNNING", "startTime": now, "updateTime": now}
    cloud.store.put(JOB, name, record | changed)
    zone = _zones(region, pool)[0]
    for worker, key in enumerate(_keys(cloud, name)):
        cloud.machines.boot(_machine(key, record, zone, pool, worker))


def _keys(cloud: Cloud, name: str) -> list[str]:
    """Return the keys of a job's machines, worker 0 first."""
    hosts = pool_of((cloud.store.get(JOB, name) or {})["jobSpec"]).hosts
    return [name, *(f"{name}/workers/{worker}" for worker in range(1, hosts))]


def _finish(cloud: Cloud, name: str, state: str, error: Json | None = None) -> None:
    """Note how a job has ended."""
    with cloud.store.locked():
        record = cloud.store.get(JOB, name)
        if record is None:
            return
        now = rfc3339(cloud.clock.now())
        ended: Record = {"state": state, "endTime": now, "updateTime": now}
        cloud.store.put(JOB, name, record | ended | ({"error": error} if error else {}))


# The script tells its exit code by a guest attribute and powers the machine off; without a code the
# machine itself has failed.
@machine_powered_off
def _ended(cloud: Cloud, key: str) -> None:
    record = cloud.store.get(JOB, key)
    if record is None or record["state"] != "JOB_STATE_RUNNING":
        return
    for other in _keys(cloud, key)[1:]:
        cloud.machines.halt(other, grace=_GRACE)
    code = cloud.machines.guest_attributes(key).get(_CODE)
    restarts = record.get("_restarts", 0)
    final = record["jobSpec"].get("scheduling", {}).get("disableRetries")
    if code == "0":
        _finish(cloud, key, "JOB_STATE_SUCCEEDED")
    elif code is None and not final and restarts < _RESTARTS:
        # The machine vanished before its container had ended: no fault of the program's.
        again = {"state": "JOB_STATE_PENDING", "_restarts": restarts + 1}
        cloud.store.put(JOB, key, record | again)
        run_job(cloud, key)
    else:
        message = f"The replica workerpool0-0 exited with a non-zero status of {code or 'unknown'}."
        _finish(cloud, key, "JOB_STATE_FAILED", {"code": 3, "message": message})


def _machine(key: str, record: Record, zone: str, pool: Pool, worker: int) -> MachineSpec:
    _, project, _, _, _, number, *_ = key.split("/")
    spec = record["jobSpec"]
    container = spec["workerPoolSpecs"][0]["containerSpec"]
    command = shlex.join([*container["command"], *container.get("args", [])])
    variables = _variables(project, zone, number, container)
    if pool.hosts > 1:
        # What Kubernetes Engine sets there; Google's page on training says nothing of it.
        variables["TPU_WORKER_ID"] = str(worker)
    exports = "".join(f"export {one}={shlex.quote(value)}\n" for one, value in variables.items())
    return MachineSpec(
        key=key,
        project=project,
        zone=zone,
        name=f"training-workerpool0-{number}-{worker}",
        number=int(number) + worker,
        machine_type=pool.machine_type,
        attributes={
            "startup-script": exports + _SCRIPT.format(command=command, code=_CODE),
            "enable-guest-attributes": "TRUE",
        },
        service_account=spec.get("serviceAccount") or custom_code_agent(project),
        scopes=(CLOUD_PLATFORM,),
    )


def _variables(project: str, zone: str, number: str, container: Json) -> dict[str, str]:
    """Return a container's variables: Google's own, then the job's.

    Source: docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/
    training-with-tpu-vm#environment_variables. There the project is a tenant's of Google's.
    """
    node = f"training-{number}"
    own = {
        "CLOUD_ML_JOB_ID": number,
        "CLOUD_ML_PROJECT_ID": project,
        "TPU_CONFIG": json.dumps({"project": project, "zone": zone, "tpu_node_name": node}),
        "TPU_NODE_NAME": node,
    }
    return own | {one["name"]: one.get("value", "") for one in container.get("env", [])}


def pool_of(spec: Json) -> Pool:
    """Return the TPU of a job's only worker pool.

    Raises ApiError: 400 for what is no TPU of Vertex AI's, 501 for machines without one.
    """
    pools = spec.get("workerPoolSpecs", [])
    if not pools:
        raise invalid("List of found errors: 1.Field: job_spec.worker_pool_specs; Message: empty.")
    machine = pools[0].get("machineSpec", {})
    name = machine.get("machineType", "")
    if name != "cloud-tpu" and name not in _MACHINES:
        raise ApiError(501, f"the local cloud runs custom jobs on TPUs, not on {name!r}")
    if len(pools) > 1 or str(pools[0].get("replicaCount", "1")) != "1":
        raise invalid("A job with TPUs must have a single worker pool with one replica.")
    strategy = spec.get("scheduling", {}).get("strategy", "STANDARD")
    if strategy not in ("STANDARD", "SPOT", "STRATEGY_UNSPECIFIED"):
        raise ApiError(501, f"the local cloud gives no capacity by the strategy {strategy}")
    spot = strategy == "SPOT"
    if name != "cloud-tpu":
        pool = _of_topology(machine, name, spot=spot)
    elif (found := _classic(machine)).hosts > 1:
        raise ApiError(501, f"the local cloud runs no custom job on {found.name}")
    else:
        pool = Pool(found, name, spot=spot)
    if pool.spot and pool.hosts > 1:
        raise invalid("Spot VMs are not supported with TPU Pods.")
    return pool


def _classic(machine: Json) -> catalog.Accelerator:
    kind, count = machine.get("acceleratorType"), machine.get("acceleratorCount")
    found = catalog.accelerators().get(f"{_CLASSIC.get(str(kind))}-{count}")
    if found is None:
        raise invalid(f"Machine type cloud-tpu does not support {count} accelerators of {kind}.")
    return found


# A machine type says how many chips a host has, the topology how many there are in all. Several
# hosts are for the one machine type that Google documents for slices.
def _of_topology(machine: Json, name: str, *, spot: bool) -> Pool:
    topology = machine.get("tpuTopology", "")
    chips = int(name.rpartition("-")[2].rstrip("t"))
    for found in catalog.accelerators().values():
        fits = found.generation == _MACHINES[name] and found.topology == topology
        hosts = max(1, found.size // chips)
        if fits and found.size >= chips and (hosts == 1 or name == _OF_SLICES):
            return Pool(found, name, hosts, spot)
    raise invalid(f"Machine type {name} does not support the TPU topology {topology!r}.")


def _require_pool(cloud: Cloud, project: str, region: str, pool: Pool) -> None:
    """Refuse a pool that the region lacks or the quota does not allow.

    Raises ApiError: 400, or 429 naming the quota.
    """
    if not _zones(region, pool):
        raise invalid(
            f"Machine type {pool.machine_type} with TPU {pool.accelerator.name} is not supported "
            f"in region {region}."
        )
    limit, wanted = cloud.setting("quota").get(pool.metric), pool.accelerator.size
    if limit is not None and _used(cloud, project, region, pool.metric) + wanted > limit:
        metric = f"{_SERVICE}/{pool.metric}"
        raise ApiError(429, f"The following quota metrics exceed quota limits: {metric}")


def _zones(region: str, pool: Pool) -> list[str]:
    """Return the zones of a region that have the TPU."""
    return [zone for zone in pool.accelerator.zones if zone.rpartition("-")[0] == region]


def quota_metrics() -> set[str]:
    """Return the quotas that there are."""
    kinds = ("", "preemptible_")
    return {f"custom_model_training_{kind}{name}" for name in _METRICS.values() for kind in kinds}


def _used(cloud: Cloud, project: str, region: str, metric: str) -> int:
    jobs = cloud.store.items(JOB, f"projects/{project}/locations/{region}/")
    pools = [pool_of(record["jobSpec"]) for _, record in jobs if record["state"] not in _ENDED]
    return sum(pool.accelerator.size for pool in pools if pool.metric == metric)
