"""The emulated APIs, one package each."""

from __future__ import annotations

from localcloud.core.registry import Api
from localcloud.services import (
    compute,
    discovery,
    iam,
    kms,
    oauth2,
    resourcemanager,
    serviceusage,
    storage,
    sts,
    tpu,
)


def all_apis() -> list[Api]:
    """Every API that the emulator serves, each with its handlers registered."""
    return [
        compute.API,
        discovery.API,
        iam.API,
        iam.CREDENTIALS_API,
        kms.API,
        oauth2.API,
        resourcemanager.API,
        serviceusage.API,
        storage.API,
        sts.API,
        tpu.API,
    ]
