"""Detect the platform that this process runs on, by the variables that the platform sets."""

from collections.abc import Mapping
from dataclasses import dataclass

from tpu_training.cluster.machine import Machine

# Platforms and the variables that only they set. Sources: Colab's and Kaggle's own images;
# https://cloud.google.com/kubernetes-engine/docs/how-to/tpus (TPU_WORKER_*);
# https://cloud.google.com/vertex-ai/docs/training/code-requirements (AIP_*, CLOUD_ML_*);
# https://cloud.google.com/ai-platform/training/docs/using-tpus (TPU_CONFIG).
_VARIABLES = {
    "Colab": ("COLAB_TPU_ADDR", "COLAB_RELEASE_TAG", "COLAB_GPU"),
    "Kaggle": ("KAGGLE_KERNEL_RUN_TYPE",),
    "Vertex AI": ("AIP_MODEL_DIR", "AIP_TENSORBOARD_LOG_DIR", "CLOUD_ML_JOB_ID"),
    "AI Platform Training": ("TPU_CONFIG",),
    "Google Kubernetes Engine with TPUs": (
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
        "TPU_WORKER_HOSTNAMES",
    ),
    "Kubernetes": ("KUBERNETES_SERVICE_HOST",),
    "Paperspace": ("TPU_GRPC_URL",),
}
# A job of a stack's queue finds its TPU by the variables of other platforms, which are none here.
_JOB = ("JOB_NAME", "JOB_TRY", "JOB_DIR")
_OF_JOBS = ("TPU_WORKER_HOSTNAMES", "TPU_GRPC_URL")


@dataclass(frozen=True)
class Platform:
    """A platform and the evidence for it."""

    name: str
    evidence: str


def find_platforms(environ: Mapping[str, str], machine: Machine) -> tuple[Platform, ...]:
    """Return every platform with a trace here: one often runs on top of another."""
    found = []
    is_job = all(environ.get(variable) for variable in _JOB)
    if is_job:
        found.append(Platform("job of a stack", ", ".join(_JOB)))
    given = {name for name, value in environ.items() if value and not (is_job and name in _OF_JOBS)}
    for name, variables in _VARIABLES.items():
        if seen := [variable for variable in variables if variable in given]:
            found.append(Platform(name, ", ".join(seen)))
    if machine.tpu_chips:
        found.append(Platform("TPU VM", f"{machine.tpu_chips} TPU chips on the PCI bus"))
    elif machine.is_google_vm:
        found.append(Platform("Compute Engine", "the product name of this machine"))
    return tuple(found)
