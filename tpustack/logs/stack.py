"""Reads a stack's logs from Google: the states of its machines, and the VM's serial port."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpustack.cloud.google import Google
from tpustack.cloud.tpu import look_up
from tpustack.errors import TpustackError
from tpustack.logs.serial import INSTANCE, port_url
from tpustack.logs.words import current_boot

# As agent/tpu_agent/startup/common.sh says it.
_BEGINS = re.compile(r"tpu-stack: (starting the job|running the jobs of) ")
_HEALTHY = ("", "HEALTHY", "HEALTH_UNSPECIFIED")


def texts(google: Google, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each log; where Google refuses, its answer is the text.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/outputs.py names them.
    """
    project = outputs["project"]
    vm = (project, outputs["vm_zone"], outputs["vm_name"])
    yield f"TPU {outputs['tpu_name']}", _said(lambda: _tpu(google, outputs))
    yield f"VM {vm[2]}", _said(lambda: _vm(google, *vm))
    yield f"serial port of {vm[2]}", _said(lambda: _serial(google, *vm))


def _said(read: Callable[[], str]) -> str:
    try:
        return read()
    except TpustackError as error:
        return f"error: {error}"


def _tpu(google: Google, outputs: Mapping[str, Any]) -> str:
    name = outputs["tpu_name"]
    zone, node = look_up(google, outputs, name)
    said = [f"the TPU {name} in {zone} is {node.get('state')}"]
    if (health := node.get("health", "")) not in _HEALTHY:
        said.append(f"the TPU's health is {health}: {node.get('healthDescription', '')}")
    return "\n".join(said)


def _vm(google: Google, project: str, zone: str, name: str) -> str:
    instance = google.get(INSTANCE.format(project, zone, name))
    return f"the VM {name} in {zone} is {instance.get('status')}"


def _unresolved(text: str) -> str:
    """Return what a serial port holds since the trainer or the jobs began, or since the last boot.

    The start-up script waits out what went wrong before, such as grants that did not count yet.
    """
    boot = current_boot(text)
    began = [found.start() for found in _BEGINS.finditer(boot)]
    return boot[began[-1] :] if began else boot


def _serial(google: Google, project: str, zone: str, name: str) -> str:
    url = port_url(project, zone, name)
    pieces: list[str] = []
    start = 0
    while True:
        answer = google.get(url, {"port": 1, "start": start})
        if not answer.get("contents"):
            return _unresolved("".join(pieces))
        pieces.append(answer["contents"])
        start = int(answer["next"])
