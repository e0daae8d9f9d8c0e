"""The Google APIs that a stack needs."""

from __future__ import annotations

from infra.settings import StackSettings

TPU_API = "tpu.googleapis.com"
COMPUTE_API = "compute.googleapis.com"
STORAGE_API = "storage.googleapis.com"
IAM_API = "iam.googleapis.com"
CREDENTIALS_API = "iamcredentials.googleapis.com"
PROJECTS_API = "cloudresourcemanager.googleapis.com"
KMS_API = "cloudkms.googleapis.com"
BILLING_API = "cloudbilling.googleapis.com"
BUDGETS_API = "billingbudgets.googleapis.com"
LOGGING_API = "logging.googleapis.com"
MONITORING_API = "monitoring.googleapis.com"
PUBSUB_API = "pubsub.googleapis.com"
VERTEX_API = "aiplatform.googleapis.com"


def apis_of(settings: StackSettings) -> tuple[str, ...]:
    """Return the APIs that must be enabled for these settings."""
    apis = [TPU_API, COMPUTE_API, STORAGE_API, IAM_API, PROJECTS_API]
    if settings.bucket.encryption is not None:
        apis.append(KMS_API)
    if settings.budget is not None:
        apis += [BILLING_API, BUDGETS_API]
    if settings.messages.any:
        apis.append(LOGGING_API)
    if settings.messages.any or (settings.budget and settings.budget.emails):
        apis.append(MONITORING_API)
    if settings.messages.pubsub_topic or (settings.budget and settings.budget.own_topic):
        apis.append(PUBSUB_API)
    if settings.jobs.apart:
        apis.append(CREDENTIALS_API)
    if settings.jobs.vertex is not None:
        apis.append(VERTEX_API)
    return tuple(apis)
