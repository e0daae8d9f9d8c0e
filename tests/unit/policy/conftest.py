"""Resources as the rules see them, in stack `dev` unless a test says another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_policy.resource import Resource
from tpu_policy.rules import Config

BUCKET = "gcp:storage/bucket:Bucket"
VM = "gcp:compute/instance:Instance"
TEMPLATE = "gcp:compute/instanceTemplate:InstanceTemplate"
TPU = "gcp:tpu/v2Vm:V2Vm"
NODE = "gcp:tpu/node:Node"
QUEUED = "gcp:tpu/v2QueuedResource:V2QueuedResource"
ENTRY = "pulumi-python:dynamic/tpu:QueuedResource"
OF_COMPONENT = "tpu-stack:tpu:QueuedResource"
FULL = "https://www.googleapis.com/auth/cloud-platform"
OWN = "runner@some-project.iam.gserviceaccount.com"
DEFAULT = "123456-compute@developer.gserviceaccount.com"
LABELS = {"managed-by": "pulumi", "tpu-stack": "dev"}


def resource(kind: str, /, stack: str = "dev", protect: bool = False, **props: Any) -> Resource:
    return Resource(kind, "it", f"urn:pulumi:{stack}::p::{kind}::it", props, protect)


def entry(node: Mapping[str, Any], kind: str = ENTRY, **request: Any) -> Resource:
    spec = {"nodeSpec": [{"node": node}]}
    return resource(kind, zone="us-central1-b", request={"tpu": spec, **request})


def with_account(kind: str, email: object, scopes: Sequence[str] = (FULL,)) -> Resource:
    return resource(kind, serviceAccount={"email": email, "scopes": list(scopes)})


@dataclass(frozen=True)
class Case:
    """Resources and a configuration; `says` is what a message must contain, None: it passes."""

    id: str
    rule: str
    resources: Sequence[Resource]
    says: str | None = None
    config: Config = field(default_factory=dict)


def bucket(location: str = "US-CENTRAL1", **props: Any) -> Resource:
    return resource(BUCKET, location=location, name="data", **props)


def tpu(**props: Any) -> Resource:
    machine = {"zone": "us-central1-b", "acceleratorType": "v2-8", "name": "slice"}
    return resource(TPU, **(machine | props))


def vm(**props: Any) -> Resource:
    return resource(VM, **({"zone": "us-central1-b", "machineType": "n1-standard-2"} | props))
