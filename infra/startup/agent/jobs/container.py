"""What a container of Vertex AI (or another host) gives, and what it runs of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping

from . import variables
from .record import Job
from .variables import Tpu

WORKER = "TPU_WORKER_ID"
"""The variable with the number of a host within its slice."""
# Vertex AI sets what a slice's hosts must know of each other.
_NOT_OURS = (WORKER, "TPU_WORKER_HOSTNAMES", "TPU_GRPC_URL", "XRT_TPU_CONFIG")


def content_of(job: Job, bucket: str, environment: Mapping[str, str]) -> dict[str, object]:
    """Return what a container with these variables runs of a job's last try."""
    content = variables.content_of(job, bucket, tpu_of(environment))
    made = content["variables"]
    kept = {name: made[name] for name in made if name in job.spec.env or name not in _NOT_OURS}
    return {**content, "variables": kept, "sees_packages": True}


def tpu_of(environment: Mapping[str, str]) -> Tpu:
    """Return the TPU that a container has, as Vertex AI tells it by `TPU_CONFIG`.

    AI Platform's containers had to wait for the node of that name; today's are on the TPU's own
    machine, where it is there before they are.
    """
    try:
        config = dict(json.loads(environment.get("TPU_CONFIG") or "{}"))
    except ValueError:
        config = {}
    name = str(config.get("tpu_node_name") or "local")
    zone, project = str(config.get("zone", "")), str(config.get("project", ""))
    return Tpu(name, zone, project, (), "", is_here=True)
