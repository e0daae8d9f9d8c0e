"""The containers of a job: a machine for each host of its TPU, with the job's account.

The job's machine is worker 0, whose end is the job's; the others go with it.
"""

from __future__ import annotations

import json
import shlex

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.hooks import machine_powered_off
from localcloud.core.machines import MachineSpec
from localcloud.core.operations import effect
from localcloud.core.store import Record
from localcloud.core.tokens import CLOUD_PLATFORM
from localcloud.services.aiplatform import pools
from localcloud.services.aiplatform.api import JOB, custom_code_agent

_CODE = "vertex/exit-code"
_MOST_VARIABLES = 100
# Between the polite request to end and force.
_GRACE = 10.0
# A machine that goes away by itself is replaced so often.
_RESTARTS = 3
_SCRIPT = """cd "$(mktemp -d)"
({command})
code=$?
echo "the container exited with status $code"
curl --silent --request PUT --data "$code" --header "Metadata-Flavor: Google" \\
  "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/{code}"
poweroff
"""


def require_supported(spec: Json) -> None:
    """Refuse what is no container, or what the local cloud does not run.

    Raises:
        ApiError: 400 or 501.
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
def run(cloud: Cloud, name: str) -> None:
    """Start a job's container, unless it was cancelled or the region has no room."""
    record = cloud.store.get(JOB, name)
    if record is None or record["state"] != "JOB_STATE_PENDING":
        return
    region, pool = name.split("/")[3], pools.pool_of(record["jobSpec"])
    if not pools.in_stock(cloud, region, pool):
        said = f"Resources are insufficient in region: {region}. Please try a different region."
        finish(cloud, name, "JOB_STATE_FAILED", {"code": 8, "message": said})
        return
    now = rfc3339(cloud.clock.now())
    changed = {"state": "JOB_STATE_RUNNING", "startTime": now, "updateTime": now}
    cloud.store.put(JOB, name, record | changed)
    zone = pools.zones(region, pool)[0]
    for worker in range(pool.hosts):
        cloud.machines.boot(_machine(name, record, zone, pool, worker))


def halt(cloud: Cloud, name: str) -> None:
    """End a job's containers; their files stay."""
    for key in _keys(cloud, name):
        cloud.machines.halt(key, grace=_GRACE)


def remove(cloud: Cloud, name: str) -> None:
    """Delete a job's containers."""
    for key in _keys(cloud, name):
        cloud.machines.remove(key)


def _keys(cloud: Cloud, name: str) -> list[str]:
    """Return the keys of a job's machines, worker 0 first."""
    hosts = pools.pool_of((cloud.store.get(JOB, name) or {})["jobSpec"]).hosts
    return [_key(name, worker) for worker in range(hosts)]


def _key(name: str, worker: int) -> str:
    return f"{name}/workers/{worker}" if worker else name


def finish(cloud: Cloud, name: str, state: str, error: Json | None = None) -> None:
    """Note how a job has ended."""
    with cloud.store.locked():
        record = cloud.store.get(JOB, name)
        if record is None:
            return
        now = rfc3339(cloud.clock.now())
        ended: Record = {"state": state, "endTime": now, "updateTime": now}
        cloud.store.put(JOB, name, record | ended | ({"error": error} if error else {}))


@machine_powered_off
def _ended(cloud: Cloud, key: str) -> None:
    record = cloud.store.get(JOB, key)
    if record is None or record["state"] != "JOB_STATE_RUNNING":
        return
    for other in _keys(cloud, key)[1:]:
        cloud.machines.halt(other, grace=_GRACE)
    code = cloud.machines.guest_attributes(key).get(_CODE)
    if code == "0":
        finish(cloud, key, "JOB_STATE_SUCCEEDED")
    elif code is None and _may_restart(record):
        again = {"state": "JOB_STATE_PENDING", "_restarts": record.get("_restarts", 0) + 1}
        cloud.store.put(JOB, key, record | again)
        run(cloud, key)
    else:
        said = f"The replica workerpool0-0 exited with a non-zero status of {code or 'unknown'}."
        finish(cloud, key, "JOB_STATE_FAILED", {"code": 3, "message": said})


def _may_restart(record: Record) -> bool:
    forbidden = record["jobSpec"].get("scheduling", {}).get("disableRetries")
    return not forbidden and record.get("_restarts", 0) < _RESTARTS


def _machine(name: str, record: Record, zone: str, pool: pools.Pool, worker: int) -> MachineSpec:
    _, project, _, _, _, number = name.split("/")
    spec = record["jobSpec"]
    container = spec["workerPoolSpecs"][0]["containerSpec"]
    command = shlex.join([*container["command"], *container.get("args", [])])
    variables = _variables(project, zone, number, container)
    if pool.hosts > 1:
        # What Kubernetes Engine sets there; Google's page on training says nothing of it.
        variables["TPU_WORKER_ID"] = str(worker)
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in variables.items())
    return MachineSpec(
        key=_key(name, worker),
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
    config = {"project": project, "zone": zone, "tpu_node_name": node}
    own = {
        "CLOUD_ML_JOB_ID": number,
        "CLOUD_ML_PROJECT_ID": project,
        "TPU_CONFIG": json.dumps(config),
        "TPU_NODE_NAME": node,
    }
    return own | {one["name"]: one.get("value", "") for one in container.get("env", [])}
