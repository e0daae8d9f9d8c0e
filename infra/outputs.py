"""The stack's outputs: the name, meaning and value of each."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.components.bucket import Bucket
from infra.components.identity import Identity
from infra.components.tpu import Tpu
from infra.components.vm import InstanceGroup, Vm
from infra.settings import StackSettings

OUTPUTS: Mapping[str, str] = {
    "architecture": "vm or node",
    "bucket_name": "Name of the bucket",
    "bucket_url": "gs://BUCKET",
    "job_url": "gs://BUCKET/jobs/JOB: checkpoints, TensorBoard events and metrics of this run",
    "project": "Google Cloud project",
    "region": "Region of everything",
    "service_account": "E-mail address of the account of VM and TPU VM",
    "tpu_accelerator_type": "Type and size of the TPU",
    "tpu_endpoint": "grpc://IP:PORT of worker 0 (of the first slice)",
    "tpu_endpoints": "grpc://IP:PORT of every worker, in worker order, slice by slice",
    "tpu_name": "Name of the TPU (the first slice), by which the training looks its endpoint up",
    "tpu_names": "Names of all slices",
    "tpu_zone": "Zone of the TPU, at the last update",
    "tpu_zones": "Zones that the TPU may be in, in the order in which they are tried",
    "vm_name": "Name of the VM",
    "vm_zone": "Zone of the VM",
}


def export(
    settings: StackSettings,
    job: str,
    bucket: Bucket,
    identity: Identity,
    vm: Vm | InstanceGroup,
    tpu: Tpu,
) -> dict[str, pulumi.Input[object]]:
    """Export every output and return them."""
    values: dict[str, pulumi.Input[object]] = {
        "architecture": settings.architecture.value,
        "bucket_name": bucket.name,
        "bucket_url": bucket.url,
        "job_url": pulumi.Output.concat(bucket.url, "/jobs/", job),
        "project": settings.project,
        "region": settings.region,
        "service_account": identity.email,
        "tpu_accelerator_type": settings.tpu.accelerator_type,
        "tpu_endpoint": tpu.endpoints.apply(lambda endpoints: endpoints[0] if endpoints else ""),
        "tpu_endpoints": tpu.endpoints,
        "tpu_name": tpu.name,
        "tpu_names": tpu.names,
        "tpu_zone": tpu.zone,
        "tpu_zones": list(settings.tpu_zones),
        "vm_name": vm.name,
        "vm_zone": settings.vm_zone,
    }
    for name in OUTPUTS:
        pulumi.export(name, values[name])
    return values
