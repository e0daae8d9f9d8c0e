"""`tpustack demo`: every step from an empty machine to a trained model, then deletes all of it.

It uses the same stack files, engine, agent and trainer as a real deployment; only the environment
leads Google's clients to the local cloud. What it measures is written to .demo/summary.json.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil
from rich.console import Console

import tpu_training
from tpu_core.words import duration, plural
from tpu_infra.cost import aligned
from tpustack import datasets, errors, local, project
from tpustack.cloud.google import Google
from tpustack.commands.new import create
from tpustack.engine import backend, stack, toolchain
from tpustack.logs.serial import follow


@click.command("demo")
@click.option(
    "--architecture",
    type=click.Choice(["vm", "node"]),
    default="vm",
    show_default=True,
    help="A TPU VM, or a TPU Node (legacy).",
)
@click.option("--keep", is_flag=True, help="Keep the stack and the local cloud running.")
@click.option("--verbose", "-v", is_flag=True, help="Also print what the VM writes as it boots.")
def command(architecture: str, keep: bool, verbose: bool) -> None:
    """Run the whole project on this machine: cloud, `pulumi up`, training, `pulumi destroy`.

    Outside a clone it first creates a project in the folder tpu-stack-demo, as `tpustack new` does.
    It installs Pulumi in your cache folder where PATH has none, and needs the packages of
    `tpustack` or `tpu-stack[demo]`.
    """
    _take_older_python()
    errors.require("localcloud.cli", "tensorflow")
    _enter_project(architecture)
    Demo(architecture, keep=keep, console=Console(highlight=False), verbose=verbose).run()


_ADVICE = "`--keep` (`make demo KEEP=1`) keeps the stack running, to explore it"
STACKS = {"vm": "local", "node": "local-node"}
_FOLDER = "tpu-stack-demo"


def _take_older_python() -> None:
    """Run uvx's command again with a Python that TensorFlow has a wheel for.

    uv takes the newest on the machine, whatever upper bound a distribution has.
    """
    older = {"UV_PYTHON": f">=3.10,<{'.'.join(map(str, errors.WITHOUT_TENSORFLOW))}"}
    tried = older.items() <= os.environ.items()
    if sys.version_info < errors.WITHOUT_TENSORFLOW or tried or "UV" not in os.environ:
        return
    uv = psutil.Process(os.getppid())
    if "tool" in uv.cmdline():
        click.echo(f"starting again with Python {older['UV_PYTHON']}, for TensorFlow", err=True)
        os.execve(uv.exe(), uv.cmdline(), os.environ | older)


def _enter_project(architecture: str) -> None:
    """Change into the project of the demo, which is made where there is neither clone nor project.

    Raises:
        UsageError: in a project of the user's, or when there can be none.
    """
    try:
        around = project.root()
    except errors.UsageError:
        around = None
    if around and around == project.clone():
        return
    if around:
        raise errors.UsageError(
            f"{around} is a project of your own, which the demo would change. Run it in another "
            "folder, or `pulumi up --stack local` here"
        )
    folder = Path.cwd() / _FOLDER
    if not project.is_project(folder):
        create(folder)
    stack = STACKS[architecture]
    file = Path(__file__).with_name(f"demo-{stack}.yaml")
    shutil.copyfile(file, folder / "stacks" / f"Pulumi.{stack}.yaml")
    # The engine runs the program in the environment of this command, and installs nothing.
    link = folder / ".venv"
    if link.is_symlink() or not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(sys.prefix)
    os.chdir(folder)


class Demo:
    """Brings everything up, trains a model, and takes it all down again.

    Args:
        keep: leave the stack and the local cloud up at the end.
        console: where it reports.
        verbose: show also what the VM writes as it boots.
    """

    def __init__(
        self, architecture: str, *, keep: bool, console: Console, verbose: bool = False
    ) -> None:
        self.keep = keep
        self.verbose = verbose
        self.stack = STACKS[architecture]
        self.console = console
        self.cloud = local.LocalCloudCommand()
        self.summary = Summary(architecture)
        self.unfinished = project.demo() / "unfinished"
        self._engine_output = engine_output(lambda line: self._say(line, "dim"))

    def run(self) -> None:
        """Run every phase; stop the local cloud afterwards, unless it is to be kept."""
        started = time.monotonic()
        kept = False
        try:
            self._forget_unfinished()
            with self._phase("toolchain", "Pulumi engine"):
                if toolchain.lacking():
                    self._say("PATH has no pulumi. Downloading it, which may take a minute …")
                    toolchain.install()
                tools = toolchain.find()
                self._say(tools.description)
                toolchain.fetch_provider(tools)
            with self._phase("data", "data"):
                data = datasets.mnist(self._say)
                self._say(data.description)
                _convert(data.argument)
            with self._phase("wheel", "training wheel"):
                self._say(project.build_wheel().name)
            before = self._start_cloud()
            environment = toolchain.environment(tools, project.state())
            engine = backend.Backend(environment, project.root()).select(self.stack)
            outputs = self._up(engine)
            self._train(outputs, data)
            with self._phase("second_up", "pulumi up again"):
                self.summary.second_up_changes = engine.up(self._engine_output).changed
                self._say(plural(self.summary.second_up_changes, "change"))
            if self.keep:
                self._explain(outputs)
                kept = True
            else:
                self._destroy(engine, before)
            # Not in `finally`: after an error or Ctrl-C the mark tells the next demo to clear up.
            self.unfinished.unlink()
        finally:
            if not kept:
                stopping = time.monotonic()
                self.cloud.run("stop")
                self.summary.seconds["stop"] = round(time.monotonic() - stopping, 2)
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

    def _start_cloud(self) -> dict[str, int]:
        with self._phase("cloud", "local Google Cloud"):
            self.cloud.run("start")
            # Like Google, the local cloud creates no classic nodes for new projects.
            if self.stack == STACKS["node"]:
                self.cloud.run("faults", "set", "deny-tpu-nodes", '{"on": false}')
            status = self.cloud.status()
            # The engine, the provider and our own calls find the local cloud by these alone.
            os.environ.update(self.cloud.environment())
            self._say(f"listens on 127.0.0.1:{status['port']}, project {status['project']}")
        resources: dict[str, int] = status["resources"]
        return resources

    # The phases.

    def _up(self, engine: stack.Stack) -> dict[str, Any]:
        with self._phase("up", f"pulumi up, stack {self.stack}"):
            update = engine.up(self._engine_output)
            outputs = engine.outputs()
            self.summary.endpoint = outputs["tpu_endpoint"]
            self._say(f"{plural(update.changed, 'resource')} created")
            self._say(f"TPU {outputs['tpu_name']} at {outputs['tpu_endpoint']}")
        return outputs

    def _train(self, outputs: dict[str, Any], data: datasets.Source) -> None:
        with self._phase("training", "training on the VM"):
            follow(self.console, outputs, advice=_ADVICE, verbose=self.verbose)
            metrics = json.loads(Google().content(f"{outputs['job_url']}/metrics.json"))
        for name in ("test_accuracy", "steps_per_second", "replicas"):
            setattr(self.summary, name, metrics[name])
        self.summary.data = data.description
        self.summary.show(self.console, metrics, outputs)

    def _destroy(self, engine: stack.Stack, before: dict[str, int]) -> None:
        with self._phase("destroy", "pulumi destroy"):
            engine.destroy(self._engine_output)
            left = Counter(self.cloud.status()["resources"]) - Counter(before)
            self.summary.resources_left = sum(left.values())
            listed = ", ".join(f"{kind} ({count})" for kind, count in left.items())
            self._say(f"resources left in the local cloud: {listed or 'none'}")

    def _explain(self, outputs: dict[str, Any]) -> None:
        self._print(
            "\nThe stack is still running. To explore it:\n"
            f"  cd {shlex.quote(str(project.root()))}\n"
            '  eval "$(.venv/bin/tpustack local env --backend)"  # for the local cloud\n'
            f"  .venv/bin/tpustack dashboard --stack {self.stack}\n"
            f"  pulumi stack output --stack {self.stack}\n"
            f"  gcloud compute instances list\n"
            # TensorBoard's fast loader finds nothing in the buckets of the local cloud.
            "  .venv/bin/tensorboard --load_fast=false --logdir "
            f"{outputs['job_url']}/tensorboard\n"
            f"  .venv/bin/tpustack local logs {outputs['vm_name']}\n"
            "To delete it:\n"
            f"  pulumi destroy --yes --stack {self.stack}\n"
            "  .venv/bin/tpustack local stop"
        )

    def _finish(self, started: float, kept: bool) -> None:
        self.summary.seconds["total"] = round(time.monotonic() - started, 2)
        path = project.demo() / "summary.json"
        path.write_text(json.dumps(asdict(self.summary), indent=2) + "\n", encoding="utf-8")
        self._say(f"{duration(self.summary.seconds['total'])} in all; figures in {path.name}")

    @contextlib.contextmanager
    def _phase(self, name: str, title: str) -> Iterator[None]:
        self._print(f"● {title}", "bold")
        started = time.monotonic()
        yield
        self.summary.seconds[name] = round(time.monotonic() - started, 2)

    def _say(self, text: str, style: str | None = None) -> None:
        self._print(f"  {text}", style)

    def _print(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _convert(source: str) -> None:
    """Write the TFRecord files, unless those that are there came from the same source and code."""
    target = project.demo() / "data"
    manifest = target / "manifest.json"
    code = Path(tpu_training.__file__).parent / "data"
    if manifest.exists() and json.loads(manifest.read_text("utf-8"))["name"] == Path(source).name:
        made = manifest.stat().st_mtime
        sources = (*Path(source).glob("*"), *code.rglob("*.py"))
        if all(each.stat().st_mtime < made for each in sources):
            return
    # The trainer writes to no folder that holds something.
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "tpu_training", "data", "convert"]
    command += ["--source", source, "--output", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise errors.TpustackError((done.stderr or done.stdout).strip())


@dataclass
class Summary:
    """The demo's figures; a figure that a step did not reach is None.

    Attributes:
        test_accuracy: share of the test images that the model classifies correctly, 0 to 1.
        steps_per_second: training steps a second, without start-up and evaluation.
        endpoint: the TPU's, as the stack exports it.
        architecture: `vm` or `node`.
        data: which images it trained on.
        seconds: wall time per phase and in all.
        second_up_changes: resources that a second `pulumi up` would not leave as they are.
        resources_left: resources that the cloud holds after destroy.
    """

    architecture: str
    test_accuracy: float | None = None
    steps_per_second: float | None = None
    replicas: int | None = None
    endpoint: str | None = None
    data: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    second_up_changes: int | None = None
    resources_left: int | None = None

    def show(self, console: Console, metrics: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Print the training's result and where its files are in the bucket."""
        job = outputs["job_url"]
        rows = [
            ("test accuracy", f"{self.test_accuracy:.2%}" if self.test_accuracy else "–"),
            ("steps/s", f"{self.steps_per_second:.1f}" if self.steps_per_second else "–"),
            ("replicas in sync", str(self.replicas)),
            ("strategy", str(metrics.get("strategy", "–"))),
            ("endpoint", str(self.endpoint)),
            ("data", str(self.data)),
            ("metrics", f"{job}/metrics.json"),
            ("checkpoints", f"{job}/checkpoints/"),
            ("TensorBoard events", f"{job}/tensorboard/"),
        ]
        for row in aligned(rows, left=2):
            console.print(row, markup=False, soft_wrap=True)


# A line of the engine about a resource that is finished, such as " +  gcp:storage:Bucket bucket
# created (0.14s)"; lines about what has only begun are passed over.
_DONE = re.compile(
    r"^ ?(?P<sign>[-+~]+) +(?P<kind>\S+) (?P<name>\S+) "
    r"(?P<what>created|updated|deleted|replaced)(?P<time> \([\d.ms]+\))?"
)


def engine_output(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a listener that passes on what the engine has finished, and its diagnostics.

    The engine also writes lines about what it has begun or waits for, which would bury these.
    """
    diagnosing = False

    def listen(line: str) -> None:
        nonlocal diagnosing
        text = line.rstrip()
        if text in ("Diagnostics:", "Outputs:", "Resources:"):
            diagnosing = text == "Diagnostics:"
        elif diagnosing and text:
            say(text)
        elif done := _DONE.match(text):
            kind = done["kind"].replace("gcp:", "")
            say(f"{done['sign']} {kind} {done['name']} {done['what']}{done['time'] or ''}")

    return listen
