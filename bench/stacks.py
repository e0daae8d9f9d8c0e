"""Pulumi on whole stacks: previews, many slices, a pull request, the critical path of an update."""

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pulumi import automation

from bench.measure import Result, compare, in_turn, write_mnist
from tests.sandbox import (
    Previews,
    make_project,
    make_trainer,
    preview_environment,
    running,
    session,
    write_stack,
)
from tpustack.ci.deployment import Preview, preview
from tpustack.ci.result import Outcome, Run
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.project import root

# --- `pulumi preview` of this stack against a bare program with the same Google resources.

_RUNS = 5
_BARE = (root() / "bench" / "bare", "bare")


def measure_preview() -> list[Result]:
    """Both in today's environment, in turn, after one of each; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        previews = Previews(folder / "state", TPUSTACK_BENCH_FILES=str(folder))
        ours = (make_project(folder), "local")
        training = {"wheel": str(make_trainer(folder)), "data": str(write_mnist(folder))}
        write_stack(ours[0], Path(training["wheel"]), training=training)
        for program in (ours, _BARE):
            previews.add(*program)
            previews.seconds(*program)
        took = in_turn(lambda: previews.seconds(*ours), lambda: previews.seconds(*_BARE), _RUNS)
    return [Result("preview: this stack against a bare program", took.ratio, "ratio", goal=1.1)]


# --- `pulumi preview` of a stack with 256 slices against the same with one.

_SLICES_RUNS, _MANY = 3, 256
_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}


def measure_slices() -> list[Result]:
    """Both previews in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        previews = Previews(folder / "state")
        project, trainer = make_project(folder), make_trainer(folder)
        previews.add(project, "local")

        def preview(slices: int) -> float:
            write_stack(project, trainer, tpu={**_TPU, "slices": slices})
            return previews.seconds(project, "local")

        for slices in (1, _MANY):
            preview(slices)
        took = in_turn(lambda: preview(_MANY), lambda: preview(1), _SLICES_RUNS)
    return [Result(f"preview: {_MANY} slices against one", took.ratio, "ratio", goal=5.0)]


# --- `tpustack ci preview` of a request that touches four stacks, against the slowest of them.

_STACKS = ("local", "dev", "staging", "prod")


def measure_request() -> list[Result]:
    """Side by side, after one run to warm up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project, trainer = make_project(folder), make_trainer(folder)
        for stack in _STACKS:
            write_stack(project, trainer, stack)
        backend = Backend(preview_environment(folder / "state"), project)
        job = Run(backend, project, folder, lambda line: None)
        _run(job)
        took = compare([_run(job) for _ in range(_RUNS)])
    return [Result("request: four previews against the slowest", took.ratio, "ratio", goal=1.5)]


def _run(job: Run) -> tuple[float, float]:
    """Seconds of all, and of the slowest."""
    started = time.perf_counter()
    results = preview(job, _STACKS, Preview())
    seconds = time.perf_counter() - started
    for result in results:
        if result.outcome is not Outcome.CHANGES:
            raise TpustackError(f"the preview of {result.stack} failed: {result.problem}")
    return seconds, max(result.seconds for result in results)


# --- `pulumi up` with the latencies of real life against its longest chain of dependent resources.

_ENABLE = "https://serviceusage.googleapis.com/v1/projects/tpu-stack-local/services:batchEnable"
_APIS = ("tpu", "compute", "storage", "iam", "cloudresourcemanager")
# When the creation of a resource began, and how long it took, in seconds.
Timing = tuple[float, float]


def measure_criticalpath() -> list[Result]:
    """The full vm stack once, and what it waited for."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cloud = LocalCloudCommand(folder / "cloud")
        # The project is one that has been used before: its APIs are enabled, and that counts.
        with running(cloud):
            wanted = {"serviceIds": [f"{api}.googleapis.com" for api in _APIS]}
            session(cloud).post(_ENABLE, json=wanted, timeout=30).raise_for_status()
        with running(cloud, "--latency", "real"):
            seconds, timings, needs = _up(folder, cloud)
    path = sum(timings[urn][1] for urn in longest(timings, needs))
    return [Result("up against its critical path", seconds / path, "ratio", goal=1.05)]


def longest(timings: Mapping[str, Timing], needs: Mapping[str, list[str]]) -> list[str]:
    """The chain of resources, each of which needs the one before, that takes longest in all.

    `needs` has every resource's dependencies; those without a timing (components) take no time.
    """
    best: dict[str, tuple[float, list[str]]] = {}

    def until(urn: str) -> tuple[float, list[str]]:
        if urn not in best:
            before = max((until(need) for need in needs.get(urn, ())), default=(0.0, []))
            own = timings.get(urn)
            best[urn] = (before[0] + own[1], [*before[1], urn]) if own else before
        return best[urn]

    return max((until(urn) for urn in timings), default=(0.0, []))[1]


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
            timings[event.resource_pre_event.metadata.urn] = now, 0.0
        elif event.res_outputs_event and event.res_outputs_event.metadata.urn in timings:
            urn = event.res_outputs_event.metadata.urn
            timings[urn] = timings[urn][0], now - timings[urn][0]
        elif event.summary_event:
            # What the Automation API asks for afterwards is no part of `pulumi up`.
            seconds = now

    stack.up(on_event=note, color="never")
    state: dict[str, Any] = dict(stack.export_stack().deployment or {})
    needs = {
        each["urn"]: [*each.get("dependencies", []), each.get("provider", "").rpartition("::")[0]]
        for each in state["resources"]
    }
    custom = {resource["urn"] for resource in state["resources"] if resource.get("custom")}
    stack.destroy(color="never")
    return seconds, {urn: timing for urn, timing in timings.items() if urn in custom}, needs
