"""Hand a job of the queue over to Vertex AI, as a custom job with one container."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from infra.names import JOB_ID_LABEL, JOB_LABEL
from tpu_agent.bundle import program
from tpu_agent.jobs.queue import Job, Queue
from tpu_core import paths
from tpu_core.google import GoogleError
from tpustack.errors import TpustackError
from tpustack.jobs.pack import Archive
from tpustack.jobs.place import google
from tpustack.jobs.submit import upload
from tpustack.jobs.vertex.api import CustomJobs, Unanswered
from tpustack.jobs.vertex.options import SPOT

if TYPE_CHECKING:
    from infra.catalog.vertex import ManagedTpu

# What the container begins with: the agent, by its digest, as the account that it runs as.
_BOOT = """import hashlib, json, os, sys, tempfile, urllib.request
bucket, digest, job = sys.argv[1:]
def read(url, **headers):
    request = urllib.request.Request(url)
    request.unredirected_hdrs.update(headers)
    return urllib.request.urlopen(request, timeout=60).read()
account = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default"
token = json.loads(read(account + "/token", **{"Metadata-Flavor": "Google"}))["access_token"]
archive = "https://storage.googleapis.com/storage/v1/b/%s/o/archives%%2F%s?alt=media"
program = read(archive % (bucket, digest), Authorization="Bearer " + token)
if hashlib.sha256(program).hexdigest() != digest:
    sys.exit("the agent in the bucket is not what was uploaded")
path = os.path.join(tempfile.mkdtemp(), "agent.py")
with open(path, "wb") as file:
    file.write(program)
os.execv(sys.executable, [sys.executable, path, "managed", bucket, job])
"""
_LONGEST_LABEL = 63


def hand_over(queue: Queue, job: Job, where: Mapping[str, str]) -> Job:
    """Have Vertex AI run a queued job at this place, if it has one; return the job.

    Raises:
        TpustackError: Vertex AI refuses it, and its record is taken back; or no answer says whether
            Vertex AI has it, and the record stays.
        StoreError: the bucket refuses.
    """
    if not where:
        return job
    jobs = CustomJobs(google(), where["project"], where["region"])
    tpu = _tpu(where["tpu"])
    quota = tpu.spot_quota if where.get("strategy") == SPOT else tpu.quota
    try:
        name = jobs.create(custom_job(job, where, queue.store.bucket, _upload_agent(queue)), quota)
    except Unanswered as error:
        raise TpustackError(
            f"it is not known whether Vertex AI has the job {job.name}: {error}. `tpustack job "
            f"show {job.name}` tells within ten minutes"
        ) from None
    except (TpustackError, GoogleError):
        _withdraw(queue, job)
        raise
    named = queue.change(job.name, lambda there: dataclasses.replace(there, custom_job=name))
    if named is None or (named.is_over and not named.tries):
        # It was stopped before Vertex AI had it.
        jobs.cancel({"name": name})
    return named or job


def custom_job(job: Job, where: Mapping[str, str], bucket: str, agent: str) -> dict[str, Any]:
    """Return a job as Vertex AI takes it; `agent` is the agent's SHA-256 in the bucket."""
    container = {
        "imageUri": where["image"],
        "command": ["python3", "-c", _BOOT],
        "args": [bucket, agent, job.name],
    }
    pool = {
        "machineSpec": dict(_tpu(where["tpu"]).machine),
        "replicaCount": "1",
        "containerSpec": container,
    }
    spec: dict[str, Any] = {
        "workerPoolSpecs": [pool],
        "serviceAccount": where["account"],
        "baseOutputDirectory": {"outputUriPrefix": f"gs://{bucket}/{paths.folder(job.name)}"},
        "scheduling": {
            "disableRetries": job.spec.preemptions == 0,
            **({"strategy": where["strategy"]} if "strategy" in where else {}),
        },
    }
    if where.get("network"):
        spec["network"] = where["network"]
    label = job.name.replace(".", "-")[:_LONGEST_LABEL]
    labels = {JOB_LABEL: label, JOB_ID_LABEL: job.id}
    return {"displayName": job.name, "jobSpec": spec, "labels": labels}


def _tpu(name: str) -> ManagedTpu:
    # A job of a stack's own machine is handed over to nobody, and needs no table.
    from infra.catalog.vertex import managed_tpus

    return managed_tpus()[name]


def _upload_agent(queue: Queue) -> str:
    """Bring the agent into the bucket unless it is there; return its digest."""
    content = program().encode()
    digest = hashlib.sha256(content).hexdigest()
    upload(queue, Archive(io.BytesIO(content), len(content), digest, frozenset()))
    return digest


def _withdraw(queue: Queue, job: Job) -> None:
    """Take back the record of a job that nobody runs."""
    found = queue.store.look(paths.record(job.name))
    if found is not None:
        queue.store.delete(paths.record(job.name), found.generation)
