"""The variables that a job finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import layout
from .record import Job, Spec

_GRPC_PORT = 8470


@dataclass(frozen=True)
class Tpu:
    """A TPU that is ready.

    Attributes:
        name: its name.
        zone: its zone.
        project: its project.
        hosts: the addresses of its workers, in their order.
        port: where they serve gRPC.
        created: when it was made: another of the same name is another TPU.
        is_here: whether this machine is one of its workers.
        worker: the number of this machine among them.
    """

    name: str
    zone: str
    project: str
    hosts: tuple[str, ...]
    created: str
    port: int = _GRPC_PORT
    is_here: bool = False
    worker: int = 0


def content_of(job: Job, bucket: str, tpu: Tpu) -> dict[str, Any]:
    """Return what a supervisor has to know of a job's last try."""
    number = job.tries[-1].number
    return {
        "job": job.name,
        "number": number,
        "bucket": bucket,
        "spec": vars(job.spec),
        "created": tpu.created,
        "variables": variables(job.name, number, bucket, job.spec, tpu),
    }


def variables(job: str, number: int, bucket: str, spec: Spec, tpu: Tpu) -> dict[str, str]:
    """Return what every job gets, what its framework wants, and what it was submitted with."""
    folder = f"gs://{bucket}/{layout.folder(job)}".rstrip("/")
    return {
        "JOB_NAME": job,
        "JOB_TRY": str(number),
        "JOB_DIR": folder,
        "MODEL_DIR": f"{folder}/model",
        "DATA_DIR": f"gs://{bucket}/data",
        "TPU_NAME": tpu.name,
        "TPU_ZONE": tpu.zone,
        "TPU_PROJECT": tpu.project,
        "TPU_GRPC_URL": f"grpc://{tpu.hosts[0]}:{tpu.port}" if tpu.hosts else "",
        "TPU_WORKER_ID": str(tpu.worker),
        "TPU_WORKER_HOSTNAMES": ",".join(tpu.hosts),
        "PYTHONUNBUFFERED": "1",
        **_of_framework(spec.framework, tpu),
        **spec.env,
    }


def _of_framework(framework: str, tpu: Tpu) -> Mapping[str, str]:
    """Return how a framework is told of the TPU.

    PJRT drives chips of its own machine only: beside a TPU there is the CPU. PyTorch/XLA before 2.1
    reaches a TPU by gRPC (XRT) if `XRT_TPU_CONFIG` names it, but not where `PJRT_DEVICE` is set,
    which counts first; later ones take the CPU by themselves if neither chips nor it are there.
    """
    device = "TPU" if tpu.is_here else "CPU"
    if framework == "tensorflow" and tpu.is_here:
        # What TensorFlow calls the TPU of its own machine.
        return {"PJRT_DEVICE": device, "TPU_NAME": "local"}
    if framework == "pytorch" and not tpu.is_here:
        workers = enumerate(f"{host}:{tpu.port}" for host in tpu.hosts)
        return {"XRT_TPU_CONFIG": "|".join(f"tpu_worker;{index};{at}" for index, at in workers)}
    if framework == "jax":
        return {"PJRT_DEVICE": device, "JAX_PLATFORMS": "tpu,cpu" if tpu.is_here else "cpu"}
    return {"PJRT_DEVICE": device}
