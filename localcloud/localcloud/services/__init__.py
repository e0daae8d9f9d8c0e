"""The emulated APIs, one package each."""

from __future__ import annotations

from localcloud.core.registry import Api
from localcloud.services import (
    billing,
    compute,
    discovery,
    iam,
    kms,
    monitoring,
    oauth2,
    pubsub,
    resourcemanager,
    serviceusage,
    storage,
    sts,
    tpu,
)


def all_apis() -> list[Api]:
    """Every API that the emulator serves, each with its handlers registered."""
    return [
        billing.API,
        billing.BUDGETS_API,
        compute.API,
        discovery.API,
        iam.API,
        iam.CREDENTIALS_API,
        kms.API,
        monitoring.API,
        oauth2.API,
        pubsub.API,
        resourcemanager.API,
        serviceusage.API,
        storage.API,
        sts.API,
        tpu.API,
    ]
