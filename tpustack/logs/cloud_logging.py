"""Reads what a VM's serial port sent to Cloud Logging, which outlives the VM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tpustack.cloud.google import Forbidden, Google, says_disabled
from tpustack.errors import TpustackError
from tpustack.logs.text import Log
from tpustack.logs.words import Progress, Story

_API = "logging.googleapis.com"
_LIST = f"https://{_API}/v2/entries:list"
# The names and the label of the serial port's entries: "View serial port output",
# cloud.google.com/compute/docs/troubleshooting/viewing-serial-port-output.
_FILTER = (
    'logName="projects/{}/logs/serialconsole.googleapis.com%2Fserial_port_1_output" '
    'AND resource.type="gce_instance" AND labels."compute.googleapis.com/resource_name"="{}"'
)
# The most that Google gives at once.
_PAGE = 1000


@dataclass(frozen=True)
class Line:
    """A line of a serial port: when it was written, and by which of the VMs of that name."""

    time: str
    instance: str
    text: str


def lines(google: Google, project: str, vm: str) -> Iterator[Line]:
    """Yield what all VMs of a name wrote in the last 30 days, oldest first, without colours.

    Lines of progress are put as `tpustack follow` puts them; empty ones are left out.

    Raises:
        TpustackError: when Google refuses.
    """
    story = Story()
    for entry in _entries(google, project, vm):
        instance = entry["resource"]["labels"]["instance_id"]
        for text in Log.of(entry.get("textPayload", "")).lines:
            if text.strip():
                said = story.read(text)
                shown = str(said) if isinstance(said, Progress) else text
                yield Line(entry["timestamp"], instance, shown)


def _entries(google: Google, project: str, vm: str) -> Iterator[dict[str, Any]]:
    body: dict[str, object] = {
        "resourceNames": [f"projects/{project}"],
        "filter": _FILTER.format(project, vm),
        "orderBy": "timestamp asc",
        "pageSize": _PAGE,
    }
    while True:
        try:
            page = google.ask(_LIST, body)
        except Forbidden as error:
            raise _refused(error, project) from None
        # A page may be empty and still have one after it, while Google searches on.
        yield from page.get("entries", ())
        if not page.get("nextPageToken"):
            return
        body["pageToken"] = page["nextPageToken"]


def _refused(error: Forbidden, project: str) -> TpustackError:
    if says_disabled(error):
        enable = f"`gcloud services enable {_API} --project {project}`"
        return TpustackError(f"the Cloud Logging API is disabled in {project}: {enable} enables it")
    return TpustackError(
        f"you may not read the logs of {project}: ask for roles/logging.viewer there (permission "
        f"logging.logEntries.list). Google's answer: {error}"
    )
