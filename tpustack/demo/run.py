"""The demo, phase by phase."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tpustack import project
from tpustack.cloud.google import Google
from tpustack.cloud.local import LocalCloudCommand
from tpustack.demo import dataset
from tpustack.demo.output import EngineOutput
from tpustack.demo.processes import Watch, end_children
from tpustack.demo.summary import Summary
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Stack
from tpustack.errors import TpustackError
from tpustack.logs.follow import follow

_ADVICE = "`make demo KEEP=1` leaves everything up, to look around"
STACKS = {"vm": "local", "node": "local-node"}


class Demo:
    """Brings everything up, trains a model, and takes it all down again.

    Args:
        architecture: `vm` or `node`.
        keep: leave the stack and the local cloud up at the end.
        console: where it reports.
    """

    def __init__(self, architecture: str, *, keep: bool, console: Console) -> None:
        self.keep = keep
        self.stack = STACKS[architecture]
        self.console = console
        self.cloud = LocalCloudCommand()
        self.summary = Summary(architecture)
        self.unfinished = project.demo() / "unfinished"
        self.watch = Watch(self._roots)
        self._cloud_pid: int | None = None

    def run(self) -> None:
        """Run every phase; stop the local cloud afterwards, unless it is to be kept."""
        started = time.monotonic()
        kept = False
        self.watch.start()
        try:
            self._forget_unfinished()
            engine_environment = self._find_engine()
            data = self._prepare_data()
            self._build_wheel()
            before = self._start_cloud()
            engine = Backend(engine_environment, project.root()).select(self.stack)
            outputs = self._up(engine)
            self._train(outputs, data)
            self._up_again(engine)
            if self.keep:
                self._explain(outputs)
                kept = True
            else:
                self._destroy(engine, before)
            self.unfinished.unlink()
        finally:
            if not kept:
                end_children(grace=10.0)
                self._stop_cloud()
            self.watch.stop()
        self._finish(started, kept)

    def _forget_unfinished(self) -> None:
        # What an interrupted demo left is a cloud on this machine and the state that describes
        # it; both are thrown away together, so that they can't disagree.
        if self.unfinished.exists():
            self._say("clearing away what an interrupted demo left")
            self.cloud.run("stop")
            self.cloud.run("reset")
            shutil.rmtree(project.state(), ignore_errors=True)
        self.unfinished.parent.mkdir(parents=True, exist_ok=True)
        self.unfinished.touch()

    def _find_engine(self) -> dict[str, str]:
        with self._phase("toolchain", "Pulumi engine"):
            tools = toolchain.find()
            self._say(tools.description)
        return toolchain.environment(tools, project.state())

    def _prepare_data(self) -> dataset.Source:
        with self._phase("data", "data"):
            source = dataset.obtain(self._say)
            self._say(source.description)
            _convert(source.argument)
        return source

    def _build_wheel(self) -> None:
        with self._phase("wheel", "training wheel"):
            self._say(project.build_wheel().name)

    def _start_cloud(self) -> dict[str, int]:
        with self._phase("cloud", "local Google Cloud"):
            self.cloud.run("start")
            if self.stack == STACKS["node"]:
                self.cloud.run("faults", "set", "deny-tpu-nodes", '{"on": false}')
            status = self.cloud.status()
            self._cloud_pid = status["pid"]
            os.environ.update(self.cloud.environment())
            self._say(f"listens on 127.0.0.1:{status['port']}, project {status['project']}")
        resources: dict[str, int] = status["resources"]
        return resources

    def _up(self, engine: Stack) -> dict[str, Any]:
        with self._phase("up", f"pulumi up, stack {self.stack}"):
            update = engine.up(self._engine_output())
            outputs = update.outputs
            self.summary.endpoint = outputs["tpu_endpoint"]
            self._say(f"{update.changed} resources created")
            self._say(f"TPU {outputs['tpu_name']} at {outputs['tpu_endpoint']}")
        return outputs

    def _train(self, outputs: dict[str, Any], data: dataset.Source) -> None:
        with self._phase("training", "training on the VM"):
            follow(self.console, outputs, advice=_ADVICE)
            metrics = json.loads(Google().content(f"{outputs['job_url']}/metrics.json"))
        self.summary.test_accuracy = metrics["test_accuracy"]
        self.summary.steps_per_second = metrics["steps_per_second"]
        self.summary.replicas = metrics["replicas"]
        self.summary.data = data.description
        self.summary.show(self.console, metrics, outputs)

    def _up_again(self, engine: Stack) -> None:
        with self._phase("second_up", "pulumi up again"):
            update = engine.up(self._engine_output())
            self.summary.second_up_changes = update.changed
            self._say(f"{update.changed} changes")

    def _destroy(self, engine: Stack, before: dict[str, int]) -> None:
        with self._phase("destroy", "pulumi destroy"):
            engine.destroy(self._engine_output())
            after: dict[str, int] = self.cloud.status()["resources"]
            left = {kind: count - before.get(kind, 0) for kind, count in after.items()}
            left = {kind: count for kind, count in left.items() if count > 0}
            self.summary.resources_left = sum(left.values())
            self._say(f"resources left in the local cloud: {_listed(left)}")

    def _explain(self, outputs: dict[str, Any]) -> None:
        self._print(
            "\nEverything is still up. To look around:\n"
            '  eval "$(.venv/bin/tpustack local env --backend)"  # for the local cloud\n'
            f"  pulumi stack output --stack {self.stack}\n"
            f"  gcloud compute instances list\n"
            # TensorBoard's fast loader finds nothing in the buckets of the local cloud.
            "  .venv/bin/tensorboard --load_fast=false --logdir "
            f"{outputs['job_url']}/tensorboard\n"
            f"  .venv/bin/tpustack local logs {outputs['vm_name']}\n"
            "To take it down:\n"
            f"  pulumi destroy --yes --stack {self.stack}\n"
            "  .venv/bin/tpustack local stop"
        )

    def _stop_cloud(self) -> None:
        started = time.monotonic()
        self.cloud.run("stop")
        self.summary.seconds["stop"] = round(time.monotonic() - started, 2)

    def _finish(self, started: float, kept: bool) -> None:
        self.summary.seconds["total"] = round(time.monotonic() - started, 2)
        self.summary.peak_memory_mib = round(self.watch.peak_mib)
        if not kept:
            left = self.watch.left()
            self.summary.processes_left = len(left)
            self._say(f"{len(left)} processes left")
        path = project.demo() / "summary.json"
        self.summary.write(path)
        self._say(f"{self.summary.seconds['total']:.0f} s in all; figures in {path.name}")

    def _roots(self) -> Iterator[int]:
        yield os.getpid()
        if self._cloud_pid is not None:
            yield self._cloud_pid

    @contextmanager
    def _phase(self, name: str, title: str) -> Iterator[None]:
        self._print(f"● {title}", "bold")
        started = time.monotonic()
        yield
        self.summary.seconds[name] = round(time.monotonic() - started, 2)

    def _say(self, text: str, style: str | None = None) -> None:
        self._print(f"  {text}", style)

    def _print(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)

    def _engine_output(self) -> EngineOutput:
        return EngineOutput(lambda line: self._say(line, "dim"))


def _convert(source: str) -> None:
    """Write the TFRecord files, unless those that are there came from the same source and code."""
    target = project.demo() / "data"
    manifest = target / "manifest.json"
    made_of = [
        *Path(source).glob("*"),
        *(project.root() / "training" / "tpu_training" / "data").rglob("*.py"),
    ]
    if manifest.exists() and Path(source).is_dir():
        made = manifest.stat().st_mtime
        if all(path.stat().st_mtime < made for path in made_of):
            return
    # The trainer writes to no folder that holds something.
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "tpu_training", "data", "convert"]
    command += ["--source", source, "--output", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TpustackError((done.stderr or done.stdout).strip())


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "none"
