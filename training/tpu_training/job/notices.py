"""Hear from the metadata server that this machine is about to stop.

One request waits for any change below `instance/`, so that a notice is heard as it is given.
https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
https://docs.cloud.google.com/compute/docs/metadata/getting-live-migration-notice
"""

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tpu_training.cluster.endpoint.metadata import MetadataServer
from tpu_training.loop.shutdown import ShutdownRequest

# A server that can't be reached is asked again after so long.
_PAUSE_SECONDS = 1.0
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
    """Listen on a thread until `over` is set, if this is one of Google's machines."""
    server = server or MetadataServer.from_environment()
    if server == MetadataServer() and not _is_google(_PRODUCT):
        return
    about = Notices(shutdown), over, server
    threading.Thread(target=_listen, args=about, name="notices", daemon=True).start()


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
