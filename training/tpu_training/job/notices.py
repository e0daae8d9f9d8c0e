"""Hear that this machine, or the TPU VM that it drives, is about to stop.

The TPU VM writes an object to the bucket. That there is another one is all that counts, and makes
the training save: who else may write there can't end it.

Of this machine the metadata server tells. One request waits for any change below `instance/`, so
that a notice is heard as it is given.
https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
https://docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice
"""

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tpu_training.cluster.google import BucketObject, MetadataServer, Refused, bucket_tokens
from tpu_training.errors import TrainingError
from tpu_training.loop.callbacks import ShutdownRequest

# A server that can't be reached is asked again after so long.
_PAUSE_SECONDS = 1.0
# Of a preempted TPU VM's 30 seconds; one list of objects costs 0.0005 cents.
_LOOK_SECONDS = 5.0
# So long no further notice of the TPU VM's makes the training save.
_DEAF_SECONDS = 60.0
_OBJECT = "TPU_TRAINING_NOTICES"
# How Google's own library tells its machines from others (google.auth.compute_engine._metadata).
_PRODUCT = Path("/sys/class/dmi/id/product_name")

logger = logging.getLogger(__name__)


class Notices:
    """Turns the metadata server's notices into requests to save or to end."""

    def __init__(self, shutdown: ShutdownRequest) -> None:
        """Tell `shutdown`."""
        self._shutdown = shutdown
        self._had: dict[str, str] = {}

    def look(self, instance: Mapping[str, Any]) -> None:
        """React to what is new in the metadata of the instance."""
        if self._is_new("preempted", instance.get("preempted"), quiet=("", "FALSE")):
            self._shutdown.request("Google takes this machine away (instance/preempted)")
        event = instance.get("maintenanceEvent")
        if self._is_new("maintenance-event", event, quiet=("", "NONE")):
            self._shutdown.request_save()
        if self._is_new("upcoming-maintenance", instance.get("upcomingMaintenance")):
            self._shutdown.request_save()

    def _is_new(self, name: str, value: object, quiet: tuple[str, ...] = ("",)) -> bool:
        text = "" if value is None else str(value)
        had, self._had[name] = self._had.get(name, ""), text
        if text == had or text in quiet:
            return False
        logger.info("notice: %s is %s; saving a checkpoint", name, text)
        return True


def hear_notices(
    shutdown: ShutdownRequest, over: threading.Event, server: MetadataServer | None = None
) -> None:
    """Listen on threads until `over` is set, if this or the TPU's is one of Google's machines."""
    if path := os.environ.get(_OBJECT):
        look = partial(_generation, BucketObject(path, bucket_tokens()), path.rpartition("/")[2])
        about_tpu = shutdown, over, look
        threading.Thread(
            target=hear_of_tpu, args=about_tpu, name="tpu-notices", daemon=True
        ).start()
    server = server or MetadataServer.from_environment()
    if server == MetadataServer() and not _is_google(_PRODUCT):
        return
    about = Notices(shutdown), over, server
    threading.Thread(target=_listen, args=about, name="notices", daemon=True).start()


def hear_of_tpu(
    shutdown: ShutdownRequest, over: threading.Event, look: Callable[[], int | None]
) -> None:
    """Ask for a checkpoint whenever `look` finds something else, None apart, until `over`."""
    had = None
    while not over.wait(_LOOK_SECONDS):
        found = look()
        if None not in (had, found) and found != had:
            logger.info("notice: the TPU VM may be about to stop; saving a checkpoint")
            shutdown.request_save()
            over.wait(_DEAF_SECONDS)
        had = had if found is None else found


def _generation(there: BucketObject, name: str) -> int | None:
    """Return which object is there, 0 for none; None if that is not known now.

    A list needs the least of rights, and a job's own account may have no other there.
    """
    try:
        return there.siblings("generation").get(name, 0)
    except (TrainingError, Refused):
        return None


def _listen(notices: Notices, over: threading.Event, server: MetadataServer) -> None:
    etag = "0"
    while not over.is_set():
        found = server.wait_for_change("instance/", etag)
        if found is None:
            over.wait(_PAUSE_SECONDS)
            continue
        text, etag = found
        try:
            if not over.is_set():
                notices.look(json.loads(text))
        except (ValueError, AttributeError):
            logger.warning("notice: the metadata server answers with something that is no JSON")
            over.wait(_PAUSE_SECONDS)


def _is_google(product: Path) -> bool:
    try:
        return product.read_text(encoding="ascii", errors="replace").startswith("Google")
    except OSError:
        return False
