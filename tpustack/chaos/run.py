"""One chaos run, part by part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tpustack.chaos import place
from tpustack.chaos.outcome import Outcome
from tpustack.chaos.timeline import Scenario, Timeline
from tpustack.cloud.google import Google, look_up
from tpustack.demo import Watch, end_children
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Stack
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.logs import serial
from tpustack.logs.words import Ended

if TYPE_CHECKING:
    from tpu_training.goodput.account import Account
    from tpu_training.goodput.ledger import Ledger

_SILENCE = 600.0


class Chaos:
    """Trains on the local cloud while a scenario is played, and checks what has come of it.

    Args:
        folder: where all of it lies; emptied first.
        scenario: the scenario file.
        steps: how many steps the job does.
        compare: train once more without faults, and compare the loss.
        console: where it reports.
    """

    def __init__(
        self, folder: Path, scenario: Path, *, steps: int, compare: bool, console: Console
    ) -> None:
        self.folder, self.scenario, self.steps = folder, scenario, steps
        self.compare, self.console = compare, console
        self.cloud = LocalCloudCommand(folder / "cloud")
        self.outcome = Outcome(steps)
        self.timeline = Timeline()
        self._roots = [os.getpid()]
        self._watch = Watch(lambda: list(self._roots))

    def run(self) -> Outcome:
        """Return how it ended.

        Raises:
            TpustackError: when the stack or the training fails for good.
        """
        self._watch.start()
        try:
            self._live()
        finally:
            end_children(grace=10.0)
            self.cloud.run("stop")
            self._watch.stop()
            if self.timeline.happenings:
                self.console.print(self.timeline.table())
        self.outcome.processes = len(self._watch.left())
        return self.outcome

    def _live(self) -> None:
        with self._part("project, data and training wheel"):
            place.clear(self.folder)
            project = place.make(self.folder, self.steps, place.wanted(self.scenario))
            engine_environment = toolchain.environment(toolchain.find(), self.folder / "state")
        with self._part("local Google Cloud"):
            self.cloud.run("start", "--port", "0")
            status = self.cloud.status()
            self._roots.append(status["pid"])
            os.environ.update(self.cloud.environment())
        engine = Backend(engine_environment, project).select(place.STACK)
        with self._part("pulumi up"):
            outputs = engine.up(_ignore).outputs
        with self._part("training"):
            self._train(outputs)
        self._read(outputs["job_url"])
        if self.compare:
            with self._part("the same training, undisturbed"):
                self.outcome.undisturbed = self._undisturbed(outputs)
        with self._part("pulumi up again"):
            engine.refresh(_ignore)
            self.outcome.changes = engine.up(_ignore).changed
        with self._part("pulumi destroy"):
            self._destroy(engine, status["resources"])

    def _train(self, outputs: dict[str, Any]) -> None:
        playing = Scenario(self.cloud, str(self.scenario.absolute()), self.timeline)
        try:
            ended = self._follow(outputs)
        finally:
            playing.end()
            missed = self.timeline.missed()
            self.outcome.missed = [f"{each.event} ({each.what})" for each in missed]
            self.outcome.faults = self.timeline.faults()
        if not ended.succeeded:
            raise TpustackError(f"the training failed: {ended.message}")

    def _follow(self, outputs: dict[str, Any]) -> Ended:
        def give_up() -> None:
            raise TpustackError(f"the VM has said nothing for {_SILENCE / 60:.0f} minutes")

        lines = serial.lines(
            Google(), project=outputs["project"], zone=outputs["vm_zone"], vm=outputs["vm_name"]
        )
        return serial.wait_for_end(
            lines,
            on_line=lambda line: self._say(line, "dim"),
            on_progress=self.timeline.note,
            on_silence=give_up,
            silence=_SILENCE,
        )

    def _read(self, job_url: str) -> None:
        """Read the job's results and its ledger."""
        from tpu_training.goodput.account import account
        from tpu_training.goodput.ledger import read
        from tpustack.goodput.files import files_of

        metrics = json.loads(Google().content(f"{job_url}/metrics.json"))
        self.outcome.steps, self.outcome.loss = metrics["steps"], metrics["test_loss"]
        ledger = read(files_of(job_url))
        total = account(ledger)
        self.outcome.goodput, self.outcome.starts = total.goodput, total.starts
        self.outcome.lost_steps = total.lost_steps
        self.outcome.ledger = [f"{name} is garbage" for name in (*ledger.broken, *ledger.aside)]
        if total.steps != self.steps:
            self.outcome.ledger = [*self.outcome.ledger, f"it counts {total.steps} steps"]
        self._draw(ledger, total)

    def _draw(self, ledger: Ledger, total: Account) -> None:
        """Draw where the time went, with a dashed line for each fault."""
        from tpu_training.errors import InputError
        from tpu_training.goodput.picture import draw

        picture = self.folder.with_name(f"{self.folder.name}.png")
        try:
            picture.write_bytes(draw(ledger, total, picture.suffix[1:], self.timeline.moments()))
        except (InputError, OSError) as error:
            self._say(f"no picture: {error}", "yellow")
        else:
            self._say(f"where the time went: {picture}", "bold")

    def _undisturbed(self, outputs: dict[str, Any]) -> float:
        """Train the same on the same TPU, from this computer; return the loss on the test set."""
        bucket = outputs["bucket_url"]
        endpoint = self._endpoint(outputs)
        command = [sys.executable, "-m", "tpu_training", "train-and-evaluate", f"--tpu={endpoint}"]
        command += [f"--data={bucket}/data", f"--model-dir={bucket}/jobs/undisturbed"]
        done = subprocess.run(
            [*command, *place.arguments(self.steps, self.folder / "project")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise TpustackError(f"without faults: {(done.stderr or done.stdout).strip()[-2000:]}")
        metrics = json.loads(Google().content(f"{bucket}/jobs/undisturbed/metrics.json"))
        return float(metrics["test_loss"])

    def _endpoint(self, outputs: dict[str, Any]) -> str:
        """Return where the TPU serves now: it may have been made anew."""
        deadline = time.monotonic() + _SILENCE
        while True:
            _, node = look_up(Google(), outputs, outputs["tpu_name"])
            if node["state"] == "READY" or time.monotonic() >= deadline:
                break
            time.sleep(1)
        worker = node["networkEndpoints"][0]
        return f"grpc://{worker['ipAddress']}:{worker['port']}"

    def _destroy(self, engine: Stack, before: dict[str, int]) -> None:
        engine.destroy(_ignore)
        after: dict[str, int] = self.cloud.status()["resources"]
        left = {kind: count - before.get(kind, 0) for kind, count in after.items()}
        self.outcome.resources = {kind: count for kind, count in left.items() if count > 0}

    @contextmanager
    def _part(self, title: str) -> Iterator[None]:
        self._say(f"● {title}", "bold")
        started = time.monotonic()
        yield
        self.outcome.seconds[title] = round(time.monotonic() - started, 1)

    def _say(self, text: str, style: str) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _ignore(line: str) -> None:
    """Leave the engine's output out."""
