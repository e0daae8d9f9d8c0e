"""Hold a model directory's lease while a block runs."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tpu_training.checkpoints.lease.holder import Holder
from tpu_training.checkpoints.lease.lease import BucketLease
from tpu_training.checkpoints.lease.local_lease import LocalLease
from tpu_training.cluster.bucket_object import BucketObject
from tpu_training.cluster.endpoint.credentials import bucket_tokens

_OBJECT_NAME = "lease.json"

logger = logging.getLogger(__name__)


class Lease(Protocol):
    """The right to write a model directory."""

    def confirm(self) -> None:
        """Return once it is sure that this process may write now; else raise LeaseError."""

    def check(self) -> None:
        """Raise LeaseError if it is known already that this process may not write any more."""


class NoLease:
    """What a job needs that writes no checkpoints."""

    def confirm(self) -> None:
        """Allow everything."""

    def check(self) -> None:
        """Allow everything."""


@contextmanager
def hold(model_dir: str, trains: bool = True) -> Iterator[Lease]:
    """Hold `model_dir` for a job that `trains`.

    Raises:
        LeaseError: Another trainer holds it.
    """
    folder = model_dir.rstrip("/")
    if not trains:
        yield NoLease()
    elif folder.startswith("gs://"):
        there = BucketObject(f"{folder}/{_OBJECT_NAME}", bucket_tokens())
        lease = BucketLease(folder, there, Holder.this_process())
        lease.acquire()
        lease.keep()
        try:
            yield lease
        finally:
            lease.release()
    elif "://" in folder:
        logger.warning("lease: none for %s: take care that no other job trains there", folder)
        yield NoLease()
    else:
        local = LocalLease(folder, Holder.this_process())
        local.acquire()
        try:
            yield local
        finally:
            local.release()
