"""`pulumi up` with the latencies of real life against its longest chain of dependent resources."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulumi import automation
from rich.console import Console

from bench.result import Result
from bench.sandbox import make_project, make_trainer, session, write_stack
from tpustack.engine import toolchain
from tpustack.local import LocalCloudCommand

_APIS = ("tpu", "compute", "storage", "iam", "cloudresourcemanager")


@dataclass
class Timing:
    """When the creation of a resource began and ended, in seconds since the update began."""

    began: float
    ended: float

    @property
    def took(self) -> float:
        """How long it took."""
        return self.ended - self.began


def measure() -> list[Result]:
    """The full vm stack once, and what it waited for."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cloud = LocalCloudCommand(folder / "cloud")
        _enable_apis(cloud)
        with cloud.running("--latency", "real"):
            seconds, timings, needs = _up(folder, cloud)
    chain = longest(timings, needs)
    path = sum(timings[urn].took for urn in chain)
    console = Console(soft_wrap=True, highlight=False)
    for urn in chain:
        timing, name = timings[urn], urn.rpartition("::")[2]
        console.print(f"[dim]{timing.began:7.1f} s + {timing.took:5.1f} s  {name}[/]")
    return [
        Result("up against its critical path", seconds / path, "ratio", goal=1.05),
        Result("up: critical path", path, "s"),
        Result("up with the latencies of real life", seconds, "s"),
        Result("up: before the first resource", timings[chain[0]].began, "s"),
    ]


def longest(timings: Mapping[str, Timing], needs: Mapping[str, list[str]]) -> list[str]:
    """The chain of resources, each of which needs the one before, that takes longest in all.

    `needs` has every resource's dependencies; those without a timing (components) take no time.
    """
    best: dict[str, tuple[float, list[str]]] = {}

    def until(urn: str) -> tuple[float, list[str]]:
        if urn not in best:
            before = max((until(need) for need in needs.get(urn, ())), default=(0.0, []))
            own = timings.get(urn)
            best[urn] = (before[0] + own.took, [*before[1], urn]) if own else before
        return best[urn]

    return max((until(urn) for urn in timings), default=(0.0, []))[1]


def _enable_apis(cloud: LocalCloudCommand) -> None:
    """The project is one that has been used before: its APIs are enabled, and that counts."""
    with cloud.running():
        project = cloud.status()["project"]
        answer = session(cloud).post(
            f"https://serviceusage.googleapis.com/v1/projects/{project}/services:batchEnable",
            json={"serviceIds": [f"{api}.googleapis.com" for api in _APIS]},
            timeout=30,
        )
        answer.raise_for_status()


def _up(
    folder: Path, cloud: LocalCloudCommand
) -> tuple[float, dict[str, Timing], dict[str, list[str]]]:
    project = make_project(folder)
    write_stack(project, make_trainer(folder))
    environment = toolchain.environment(toolchain.find(), folder / "state") | cloud.environment()
    # The Automation API looks the `pulumi` binary up on this process' own PATH.
    os.environ["PATH"] = environment["PATH"]
    stack = automation.create_or_select_stack(
        "local",
        work_dir=str(project),
        opts=automation.LocalWorkspaceOptions(env_vars=environment),
    )
    timings: dict[str, Timing] = {}

    started, seconds = time.monotonic(), 0.0

    def note(event: automation.EngineEvent) -> None:
        nonlocal seconds
        now = time.monotonic() - started
        if event.resource_pre_event and event.resource_pre_event.metadata.op == "create":
            timings[event.resource_pre_event.metadata.urn] = Timing(now, now)
        elif event.res_outputs_event and event.res_outputs_event.metadata.urn in timings:
            timings[event.res_outputs_event.metadata.urn].ended = now
        elif event.summary_event:
            # What the Automation API asks for afterwards is no part of `pulumi up`.
            seconds = now

    stack.up(on_event=note, color="never")
    state: dict[str, Any] = dict(stack.export_stack().deployment or {})
    needs = {resource["urn"]: _needs(resource) for resource in state["resources"]}
    custom = {resource["urn"] for resource in state["resources"] if resource.get("custom")}
    stack.destroy(color="never")
    return seconds, {urn: timing for urn, timing in timings.items() if urn in custom}, needs


def _needs(resource: Mapping[str, Any]) -> list[str]:
    provider = str(resource.get("provider", "")).rpartition("::")[0]
    return [*resource.get("dependencies", []), *([provider] if provider else [])]
