"""The lines of a serial port as log entries.

Their form (name of the log, kind of resource, label with the VM's name) is that of the entries in
the tests of GoogleCloudPlatform/khi, which reads them from real projects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import SerialLog

_LOG = "projects/{}/logs/serialconsole.googleapis.com%2Fserial_port_1_output"
# Seconds since the boot, before each line that is not the firmware's.
_ELAPSED = re.compile(r"\[ *(\d+\.\d+)\] ")


def entries_of(log: SerialLog) -> Iterator[Json]:
    """Yield an entry for each whole line that is not empty."""
    labels = {"instance_id": str(log.number), "project_id": log.project, "zone": log.zone}
    common: Json = {
        "logName": _LOG.format(log.project),
        "resource": {"type": "gce_instance", "labels": labels},
        "labels": {"compute.googleapis.com/resource_name": log.name},
    }
    number = count()
    for line, when in _timed(log):
        yield {
            **common,
            "textPayload": line,
            "timestamp": rfc3339(when),
            "receiveTimestamp": rfc3339(when),
            "insertId": f"{log.number:x}-{next(number):010d}",
        }


def _timed(log: SerialLog) -> Iterator[tuple[str, float]]:
    ends = [begin for begin, _ in log.boots[1:]] + [len(log.output)]
    for (begin, booted), end in zip(log.boots, ends, strict=False):
        *lines, _ = log.output[begin:end].decode("utf-8", "replace").split("\n")
        elapsed = 0.0
        for line in lines:
            if found := _ELAPSED.match(line):
                elapsed = float(found[1])
            if line.strip():
                yield line, booted + elapsed
