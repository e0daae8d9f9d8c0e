"""`make chaos`: train on the local Google Cloud while a scenario of faults is played.

The local cloud plays the scenario itself (`tpustack local faults run FILE`). This tool brings up a
stack for it, follows the training, and checks what the faults have left behind (docs/capacity.md).
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil
import yaml
from rich.console import Console
from rich.table import Table

from tests.watch import Watch
from tpu_infra.catalog import Catalog
from tpu_infra.checks import find_problems
from tpu_infra.checks.context import Context
from tpu_infra.names import names_of
from tpu_infra.settings.base import SettingsError
from tpu_infra.settings.parse import NAMESPACE, parse, stack_path
from tpustack import project
from tpustack.cloud.google import Google, look_up
from tpustack.console import Interrupted, handled
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Stack
from tpustack.errors import TpustackError, UsageError
from tpustack.local import LocalCloudCommand, pass_on
from tpustack.logs import serial
from tpustack.logs.serial import Ended, Progress


@click.command("chaos")
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option("--soak", metavar="N", type=click.IntRange(1, 1000), help="N faults by chance.")
@click.option("--seed", default=0, show_default=True, help="Of the faults by chance.")
@click.option("--steps", type=click.IntRange(20, 100_000), help="Steps of the job.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where it works; is emptied.")
def command(
    scenario: Path | None, soak: int | None, seed: int, steps: int | None, folder: Path | None
) -> None:
    """Train on the local cloud while things go wrong; show when what went wrong.

    SCENARIO is a file for `tpustack local faults run SCENARIO`; without it, --soak makes one up.
    Exits with 0 only if the job did all its steps and nothing is left over.
    """
    if (scenario is None) == (soak is None):
        raise UsageError("expected either a SCENARIO file or --soak=N")
    console = Console(highlight=False)
    where = folder or project.demo() / "chaos"
    if soak is not None:
        scenario = where.with_name(f"{where.name}-{seed}-{soak}.yaml")
        scenario.parent.mkdir(parents=True, exist_ok=True)
        # JSON is YAML, too.
        written = json.dumps(random_scenario(soak, seed), indent=1)
        scenario.write_text(written, encoding="utf-8")
        steps = steps or steps_for(soak)
        console.print(f"{soak} faults by seed {seed}: {scenario}", soft_wrap=True)
    assert scenario is not None
    _check(scenario)
    chaos = Chaos(where, scenario, steps=steps or 200, compare=soak is not None, console=console)
    try:
        outcome = chaos.run()
    finally:
        written = json.dumps(chaos.outcome.to_dict(), indent=2)
        where.with_name(f"{where.name}.json").write_text(written + "\n", encoding="utf-8")
    console.print(outcome.table())
    if problems := outcome.problems():
        raise TpustackError("\n".join(problems))


def _check(scenario: Path) -> None:
    """Refuse a scenario with anything wrong in it before anything is started."""
    if code := pass_on(["faults", "run", str(scenario), "--check"]):
        sys.exit(code)
    stack_settings(scenario)


_SILENCE = 600.0


def end_children(grace: float) -> None:
    """Interrupt what this process still runs, as Ctrl-C does; kill it after `grace` seconds.

    An interrupted engine finishes the operations that it has begun, so it needs some seconds.
    """
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGINT)
    _, alive = psutil.wait_procs(children, timeout=grace)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(alive, timeout=grace)


class Chaos:
    """Trains on the local cloud while a scenario is played, and checks the outcome.

    Args:
        folder: where it works; emptied first.
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
            shutil.rmtree(self.folder, ignore_errors=True)
            project = make_project(self.folder, self.steps, stack_settings(self.scenario))
            engine_environment = toolchain.environment(toolchain.find(), self.folder / "state")
        with self._part("local Google Cloud"):
            self.cloud.run("start", "--port", "0")
            status = self.cloud.status()
            self._roots.append(status["pid"])
            os.environ.update(self.cloud.environment())
        engine = Backend(engine_environment, project).select(STACK)
        with self._part("pulumi up"):
            engine.up(_ignore)
            outputs = engine.outputs()
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
        from tpu_core.ledger import read
        from tpu_training.goodput.account import account
        from tpustack.goodput import files_of

        metrics = json.loads(Google().content(f"{job_url}/metrics.json"))
        self.outcome.steps, self.outcome.loss = metrics["steps"], metrics["test_loss"]
        ledger = read(files_of(job_url))
        total = account(ledger)
        self.outcome.goodput, self.outcome.starts = total.goodput, total.starts
        self.outcome.lost_steps = total.lost_steps
        self.outcome.ledger = [f"{name} is garbage" for name in ledger.broken]
        if total.steps != self.steps:
            self.outcome.ledger = [*self.outcome.ledger, f"it counts {total.steps} steps"]

    def _undisturbed(self, outputs: dict[str, Any]) -> float:
        """Train the same on the same TPU, from this computer; return the loss on the test set."""
        bucket = outputs["bucket_url"]
        endpoint = self._endpoint(outputs)
        command = [sys.executable, "-m", "tpu_training", "train-and-evaluate", f"--tpu={endpoint}"]
        command += [f"--data={bucket}/data", f"--model-dir={bucket}/jobs/undisturbed"]
        done = subprocess.run(
            [*command, *trainer_arguments(self.steps, self.folder / "project")],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise TpustackError(f"without faults: {(done.stderr or done.stdout).strip()[-2000:]}")
        metrics = json.loads(Google().content(f"{bucket}/jobs/undisturbed/metrics.json"))
        return float(metrics["test_loss"])

    def _endpoint(self, outputs: dict[str, Any]) -> str:
        """Return where the TPU serves now: it may have been recreated."""
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


@dataclass
class Outcome:
    """How a run ended; None where that is not known.

    Attributes:
        wanted: steps that the job had to do.
        steps: steps that it reports.
        missed: faults that could not be put in force.
        faults: faults that were.
        loss, undisturbed: the loss on the test set, and that of a job without faults.
        changes: what a `pulumi up` changes afterwards.
        resources, processes: what is left after `pulumi destroy`.
        ledger: what is wrong with the job's ledger.
        goodput: share of the wall time in steps that count.
        lost_steps: steps that were done again.
        starts: how often the trainer was started.
        seconds: wall time by part.
    """

    wanted: int
    steps: int | None = None
    faults: int = 0
    missed: list[str] = field(default_factory=list)
    loss: float | None = None
    undisturbed: float | None = None
    changes: int | None = None
    resources: dict[str, int] | None = None
    processes: int | None = None
    ledger: Sequence[str] = ()
    goodput: float | None = None
    lost_steps: int | None = None
    starts: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Return what is not as it must be, one sentence each."""
        checks = [
            (self.steps == self.wanted, f"the job did {self.steps} steps, not {self.wanted}"),
            (not self.missed, "not every fault could be put in force: " + "; ".join(self.missed)),
            (self.changes == 0, f"`pulumi up` afterwards changes {self.changes} resources"),
            (self.resources == {}, f"resources are left: {self.resources}"),
            (self.processes == 0, f"{self.processes} processes are left"),
            (not self.ledger, "the ledger: " + "; ".join(self.ledger)),
            (
                self.undisturbed in (None, self.loss),
                f"the loss is {self.loss!r}, that of an undisturbed job {self.undisturbed!r}",
            ),
        ]
        return [said for good, said in checks if not good]

    def table(self) -> Table:
        """Return the figures."""
        rows: list[tuple[str, object]] = [
            ("steps", f"{self.steps} of {self.wanted}"),
            ("faults", self.faults),
            ("starts of the trainer", self.starts),
            ("steps done again", self.lost_steps),
            ("goodput", None if self.goodput is None else f"{self.goodput:.1%}"),
            ("loss on the test set", self.loss),
            ("the same without faults", self.undisturbed),
            ("changes by `pulumi up`", self.changes),
            ("resources left", sum((self.resources or {}).values())),
            ("processes left", self.processes),
        ]
        table = Table(show_header=False, box=None, pad_edge=False)
        for name, value in rows:
            if value is not None:
                table.add_row(name, str(value))
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return all of it for JSON."""
        return {**asdict(self), "problems": self.problems()}


_STYLES = {"happens": "red", "ends": "green", "fails": "bold red", "never": "bold red"}


@dataclass(frozen=True)
class Happening:
    """A line of the scenario's own report; `seconds` since its start."""

    seconds: float
    what: str
    event: str


@dataclass
class Timeline:
    """Steps and faults by the time since the scenario's start."""

    began: float = field(default_factory=time.monotonic)
    happenings: list[Happening] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    """When the training spoke of which step."""

    def note(self, said: Progress) -> None:
        """Note how far the training is."""
        self.steps.append((time.monotonic() - self.began, said.step))

    def faults(self) -> int:
        """Return how many faults were put in force."""
        return sum(happening.what == "happens" for happening in self.happenings)

    def missed(self) -> list[Happening]:
        """Return the faults that were not."""
        return [each for each in self.happenings if each.what in ("fails", "never")]

    def table(self) -> Table:
        """Draw it: each event, how far the training was then, and when it went on."""
        table = Table("s", "step", "", "event", "next step after", box=None, pad_edge=False)
        table.columns[0].justify = table.columns[1].justify = "right"
        times = [seconds for seconds, _ in self.steps]
        for each in self.happenings:
            place = bisect.bisect(times, each.seconds)
            step = str(self.steps[place - 1][1]) if place else "–"
            later = f"{times[place] - each.seconds:.1f} s" if place < len(times) else "–"
            style = _STYLES[each.what]
            table.add_row(f"{each.seconds:.1f}", step, each.what, each.event, later, style=style)
        return table


class Scenario:
    """A scenario that the local cloud plays, in a process of its own.

    Args:
        cloud: where.
        file: the scenario.
        timeline: gets what happens.
    """

    def __init__(self, cloud: LocalCloudCommand, file: str, timeline: Timeline) -> None:
        self._timeline = timeline
        timeline.began = time.monotonic()
        self._process = subprocess.Popen(
            cloud.arguments("faults", "run", file, "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name="scenario", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Lift what is in force; what never happened is told."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(60)
        self._thread.join(60)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._timeline.happenings.append(Happening(**json.loads(line)))


# The folder that a run works in: a project, a stack, data and a wheel of its own.

STACK = "local"
"""As the stack is called, so are its machines: tpu-stack-local-vm-0 and tpu-stack-local-tpu."""
WANTED = "x-stack"
"""Under this key a scenario names settings that its stack needs."""
_OWN = ("training", "recovery", "vm")
BATCH = 32
_INTERVAL = 10


def trainer_arguments(steps: int, made: Path) -> list[str]:
    """Return the trainer's own arguments: small steps, and a checkpoint after every tenth."""
    manifest = json.loads((made / "data" / "manifest.json").read_text(encoding="utf-8"))
    examples = manifest["splits"]["train"]["examples"]
    # Half a step more: the trainer drops what is no whole one.
    epochs = (steps + 0.5) * BATCH / examples
    return [
        f"--epochs={epochs:.6f}",
        f"--global_batch_size={BATCH}",
        f"--steps_per_loop={_INTERVAL}",
        f"--checkpoint_interval={_INTERVAL}",
        "--snapshot_interval=0",
        "--learning_rate=0.001",
    ]


def stack_settings(scenario: Path) -> dict[str, object]:
    """Return the settings that a scenario's stack needs, by their keys in a stack file.

    Raises:
        UsageError: naming all that is wrong with them.
    """
    named = yaml.safe_load(scenario.read_text(encoding="utf-8")).get(WANTED, {})
    if not isinstance(named, dict) or not all(isinstance(name, str) for name in named):
        raise UsageError(f"{scenario}: {WANTED}: expected settings by their names, not {named!r}")
    if own := [name for name in _OWN if name in named]:
        raise UsageError(
            f"{scenario}: {WANTED}: {', '.join(own)}: set by the run itself; remove it"
        )
    found = {f"{NAMESPACE}:{name}": value for name, value in named.items()}
    try:
        settings = parse(_stack_file()["config"] | found, STACK)
    except SettingsError as error:
        problems = [*error.problems]
    else:
        context = Context(STACK, project.root(), Catalog(), names_of(settings, STACK))
        problems = [*find_problems(settings, context)]
    # The data of the stack is only made later.
    wrong = [f"- {each}" for each in problems if each.setting.partition(".")[0] in named]
    if wrong:
        raise UsageError("\n".join([f"{scenario}: {WANTED}:", *wrong]))
    return found


def make_project(folder: Path, steps: int, settings: Mapping[str, object]) -> Path:
    """Make the project in an empty folder and return where it is; `settings` are its stack's."""
    root, made = project.root(), folder / "project"
    (made / "stacks").mkdir(parents=True)
    for name in ("infra", "policy"):
        (made / name).symlink_to(root / name)
    definition = yaml.safe_load((root / "Pulumi.yaml").read_text(encoding="utf-8"))
    definition["runtime"]["options"]["virtualenv"] = sys.prefix
    (made / "Pulumi.yaml").write_text(yaml.safe_dump(definition), encoding="utf-8")
    _convert(made / "data")
    stack = _stack_file()
    stack["config"] |= {**_changes(made, steps, project.build_wheel(folder / "dist")), **settings}
    stack_path(made, STACK).write_text(yaml.safe_dump(stack), encoding="utf-8")
    return made


def _stack_file() -> dict[str, Any]:
    path = stack_path(project.root(), STACK)
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def _changes(made: Path, steps: int, built: Path) -> dict[str, object]:
    """Return the settings that differ from the stack of `make demo`."""
    training = {
        "data": str(made / "data"),
        "wheel": str(built),
        "tensorflowVersion": "2.19.1",
        "args": trainer_arguments(steps, made),
    }
    limitless = {"enabled": True, "preemptionsPerDay": 1000, "failuresPerDay": 1000}
    return {
        "tpu-stack:training": training,
        "tpu-stack:recovery": limitless,
        "tpu-stack:vm": {"machineType": "n1-standard-2", "instanceGroup": {}},
    }


def _convert(target: Path) -> None:
    command = [sys.executable, "-m", "tpu_training", "data", "convert"]
    command += ["--source=digits", f"--output={target}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TpustackError((done.stderr or done.stdout).strip())


# A random scenario: faults spread over a job's steps, the same for the same seed.

VM, TPU = "tpu-stack-local-vm-0", "tpu-stack-local-tpu"
STEPS_A_FAULT = 10
_CALLS = ("storage.*", "storage.objects.get", "storage.objects.insert", "storage.objects.list")
# TensorFlow waits twice as long after each, up to half a minute: ten in a row take two.
_MOST_ERRORS = 3
Event = dict[str, Any]
Draw = Callable[[random.Random], Event]


def _error(status: int) -> Draw:
    def draw(chance: random.Random) -> Event:
        count = chance.randint(1, _MOST_ERRORS)
        return {"error": {"method": chance.choice(_CALLS), "status": status, "count": count}}

    return draw


def _slow(chance: random.Random) -> Event:
    delay, count = round(chance.uniform(0.1, 1.5), 2), chance.randint(1, 8)
    held_back = {"method": chance.choice(_CALLS), "status": 0, "delay": delay, "count": count}
    return {"error": held_back}


def _tpu_error(chance: random.Random) -> Event:
    status = chance.choice((429, 500, 503))
    return {"error": {"method": "tpu.*", "status": status, "count": chance.randint(1, 3)}}


def _stockout(chance: random.Random) -> Event:
    zone = {"zone": "us-central1-b", "types": ["*"]}
    return {"stockout": zone, "for": round(chance.uniform(1, 20), 1)}


def _full_disk(chance: random.Random) -> Event:
    return {"full-disk": VM, "for": round(chance.uniform(0.5, 4), 1)}


def _hang(chance: random.Random) -> Event:
    return {"hang": TPU, "for": round(chance.uniform(0.2, 4), 1)}


# How often each comes, of 200: rarely what takes a minute to be over.
_WEIGHTS: tuple[tuple[int, Draw], ...] = (
    (32, _error(429)),
    (32, _error(500)),
    (32, _error(503)),
    (32, _slow),
    (18, _tpu_error),
    (4, lambda chance: {"expire-tokens": VM}),
    (12, _stockout),
    (10, _hang),
    (6, _full_disk),
    (10, lambda chance: {"kill": {"machine": VM, "process": "agent.py"}}),
    (7, lambda chance: {"kill": {"machine": VM, "process": "-m tpu_training"}}),
    (1, lambda chance: {"delete-objects": "*/lease.json"}),
    (3, lambda chance: {"preempt": TPU}),
    (1, lambda chance: {"preempt": VM}),
)


def steps_for(faults: int) -> int:
    """Return how many steps a job needs for so many faults: the last come before its end."""
    return (faults + 3) * STEPS_A_FAULT


def random_scenario(faults: int, seed: int) -> dict[str, list[Event]]:
    """Return a scenario with so many events; each waits for a step, and then for a moment more."""
    chance = random.Random(seed)
    weights, draws = zip(*_WEIGHTS, strict=True)
    events = []
    for number in range(1, faults + 1):
        [draw] = chance.choices(draws, weights)
        when = {"serial": VM, "says": f"progress step={number}\\d/"}
        moment = {"when": when, "after": round(chance.uniform(0, 1.5), 2)}
        events.append({**moment, **draw(chance)})
    return {"events": events}


def main() -> None:
    """Run the tool; print an expected error as one message, without a traceback."""
    try:
        with handled():
            command.main(prog_name="chaos")
    except TpustackError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except Interrupted as interruption:
        toolchain.end_own()
        sys.exit(interruption.exit_code)


if __name__ == "__main__":
    main()
