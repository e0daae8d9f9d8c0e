"""What a stack's machines write: followed live, read for errors, or from Cloud Logging.

A VM writes to its serial port. Google shows none of a TPU VM: a trainer there is followed by what
it writes to the bucket.
"""

import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpu_core import words
from tpu_core.compute import INSTANCE
from tpu_core.ledger import read
from tpustack import errors, goodput
from tpustack.cloud.google import Forbidden, Google, NotFound, look_up, why_unreadable
from tpustack.console import unbroken
from tpustack.logs.diagnosis import Log

if TYPE_CHECKING:
    from rich.console import Console

# Seconds after which the VM is looked at. TensorFlow compiles a large model for longer than that,
# and a VM installs packages without a word.
SILENCE = 300.0
# Seconds between two reads: the port is free to read, and the ledger has a step once a minute.
_PORT_PAUSE, _BUCKET_PAUSE = 0.5, 10.0
# After this many answers without news, a new VM may have the name.
_SILENT = 10
# https://docs.cloud.google.com/compute/docs/instances/instance-lifecycle
_OFF = ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED")


def follow(
    console: "Console",
    outputs: Mapping[str, Any],
    *,
    advice: str,
    on_tpu: bool = False,
    verbose: bool = False,
) -> None:
    """Show the trainer's output and the training's progress until it ends.

    Args:
        console: where to show it.
        outputs: the stack's, as infra/tpu_infra/program.py names them.
        advice: what to do about a failure, as a sentence.
        on_tpu: whether the TPU VM runs the trainer.
        verbose: show also what the machine writes before the first step of the training.

    Raises:
        TpustackError: when the training has failed for good, or the VM is off.
    """
    from rich import progress

    google = Google()
    vm = outputs["tpu_name" if on_tpu else "vm_name"]
    if on_tpu:
        source = bucket_lines(google, outputs["job_url"])
    else:
        source = lines(google, project=outputs["project"], zone=outputs["vm_zone"], vm=vm)
    bar = progress.Progress(
        progress.TextColumn("training"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        # Text of the trainer, which may have rich's markup in it.
        progress.TextColumn("{task.fields[figures]}", markup=False),
        progress.TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("training", total=None, figures=f"waiting for {vm}")

        def show(line: str, style: str | None = "dim") -> None:
            console.print(f"  {line}", style=style, highlight=False, markup=False, soft_wrap=True)

        boot = Boot(vm)

        def on_line(line: str) -> None:
            if verbose or on_tpu or not boot.holds(line):
                show(line)
                return
            bar.update(task, figures=boot.title)
            if not console.is_terminal and len(boot.lines) == 1:
                show(boot.title)

        def on_progress(step: Progress) -> None:
            boot.over()
            bar.update(task, completed=step.step, total=step.steps, figures=step.summary)
            if not console.is_terminal:
                show(str(step), None)

        def look() -> None:
            for line in boot.last():
                show(line)
            why_silent = _say_why_tpu_is_silent if on_tpu else _say_why_silent
            show(why_silent(google, outputs, advice))

        ended = wait_for_end(
            source, on_line=on_line, on_progress=on_progress, on_silence=look, silence=SILENCE
        )
    for line in () if ended.succeeded else boot.last():
        show(line)
    outcome = f"training {'finished' if ended.succeeded else 'failed'} {ended.message}"
    console.print(outcome, highlight=False, markup=False, soft_wrap=True)
    if not ended.succeeded:
        raise errors.TpustackError(f"the training on {vm} failed: {ended.message}. {advice}")


def _say_why_silent(google: Google, outputs: Mapping[str, Any], advice: str) -> str:
    """Return what a VM that writes nothing may be doing. Raises TpustackError if it is off."""
    vm = outputs["vm_name"]
    url = INSTANCE.format(outputs["project"], outputs["vm_zone"], vm)
    try:
        status = str(google.get(url, {"fields": "status"})["status"])
    except NotFound:
        if outputs.get("architecture") == "compute":
            error = f"{vm} is gone: Google has deleted it. `tpustack recover` recreates a spot one"
            raise errors.TpustackError(f"{error}. {advice}") from None
        return f"{vm} is gone; waiting for the one that its group makes"
    if status in _OFF:
        raise errors.TpustackError(f"{vm} is {status} and writes nothing more. {advice}")
    return (
        f"nothing new for {SILENCE / 60:.0f} minutes; {vm} is {status}. Compiling or installing "
        "can take longer than that. Ctrl-C ends the display, not the training"
    )


def _say_why_tpu_is_silent(google: Google, outputs: Mapping[str, Any], advice: str) -> str:
    """Return the state of a TPU VM that writes nothing. Raises TpustackError if it is gone."""
    name = outputs["tpu_name"]
    _, node = look_up(google, outputs, name)
    return f"nothing new for {SILENCE / 60:.0f} minutes; {name} is {node.get('state')}. {advice}"


def bucket_lines(
    google: Google, job_url: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | None]:
    """Yield what a TPU VM, whose serial port Google does not show, writes to the bucket.

    The lines are as the trainer would print them; None whenever there is nothing new.
    The ledger has the step once a minute. The agent marks a job that has finished.
    """

    def content(name: str) -> str | None:
        try:
            return google.content(f"{job_url}/{name}")
        except NotFound:
            return None

    shown = ""
    while True:
        if content("finished") is not None:
            metrics = json.loads(content("metrics.json") or "{}")
            figures = [f"{name}={metrics[name]}" for name in metrics if name.startswith("test_")]
            yield f"training finished {' '.join(figures)}"
            return
        entries = read(goodput.files_of(job_url, google)).entries
        ending = f" ({entries[-1].ending})" if entries and entries[-1].ending else ""
        now = f"start {len(entries)}: step {entries[-1].last_step}{ending}" if entries else ""
        yield now if now != shown else None
        shown = now
        sleep(_BUCKET_PAUSE)


def lines(
    google: Google,
    *,
    project: str,
    zone: str,
    vm: str,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str | None]:
    """Yield the serial port's lines of this boot as they come; None whenever there is nothing new.

    When its group replaces the VM, wait for the new one and read it from the beginning.

    Raises:
        TpustackError: when there was never such a VM.
    """
    url = INSTANCE.format(project, zone, vm)
    known, silent = "", _SILENT
    start, rest, backlog = 0, "", True
    while True:
        try:
            if silent >= _SILENT:
                # The ID tells a VM from an earlier one of the same name.
                number = str(google.get(url, {"fields": "id"})["id"])
                if number != known:
                    known, start, rest, backlog = number, 0, "", True
                silent = 0
            answer = google.get(f"{url}/serialPort", {"port": 1, "start": start})
        except NotFound:
            if not known:
                raise
            silent = _SILENT
            yield None
            sleep(_PORT_PAUSE)
            continue
        start = int(answer["next"])
        text = rest + answer.get("contents", "")
        if backlog and answer.get("contents"):
            # The buffer may begin with earlier boots, which are over.
            rest = text
            continue
        *whole, rest = (current_boot(text) if backlog else text).split("\n")
        backlog = False
        yield from whole
        if not whole:
            silent += 1
            yield None
            sleep(_PORT_PAUSE)


def wait_for_end(
    source: Iterator[str | None],
    *,
    on_line: Callable[[str], None],
    on_progress: Callable[["Progress"], None],
    on_silence: Callable[[], None],
    silence: float,
    now: Callable[[], float] = time.monotonic,
) -> "Ended":
    """Follow until the training has succeeded, or nothing on the VM will start it again.

    Args:
        source: as `lines` gives them.
        on_line: gets every line that is not progress.
        on_progress: gets every line that is.
        on_silence: is called every `silence` seconds without a line; raises an error to give up.
        silence: in seconds; long compilations and installations write nothing for minutes.
        now: the clock.
    """
    last = now()
    story = Story()
    for line in source:
        if line is None:
            if now() - last > silence:
                on_silence()
                last = now()
            continue
        last = now()
        line = unbroken(line)
        event = story.read(line)
        if isinstance(event, Ended):
            return event
        if isinstance(event, Progress):
            on_progress(event)
        else:
            on_line(line)
    raise errors.TpustackError("the serial port ended before the training did")


# --- What lines mean.

# What the buffer holds of earlier boots is before the last of these: it "persists across in-place
# reboots", and a stop wipes it. Google's own list, in its order (Google Cloud CLI, googlecloudsdk/
# command_lib/compute/troubleshoot: boot session markers of the SSH troubleshooter).
_BOOTS = (
    r"SeaBIOS \(version",
    r"BdsDxe: loading Boot",
    r"UEFI: Attempting to start image",
    r"Welcome to GRUB!",
    r"Linux version \d",
)
_BOOT = re.compile("|".join(_BOOTS))
_PROGRESS = re.compile(r"progress step=(\d+)/(\d+)(.*)")
_FIELD = re.compile(r"(\w+)=(\S+)")
_FINISHED = re.compile(r"training finished(.*)")
_FAILED = re.compile(r"training failed(.*)")
# As agent/tpu_agent/trainer.py says them.
_FINISHED_BEFORE = re.compile(r"tpu-stack: (the job \S+ has finished already)")
_GAVE_UP = "tpu-stack: the trainer is not restarted"
# The guest agent, google_metadata_script_runner/main.go; then that of older images.
_SCRIPT_FAILED = re.compile(
    r'Script "startup-script" failed with error: (.*)'
    r"|startup-script (exit status [1-9]\d*|signal.*)"
)
_SCRIPT_LINE = re.compile(r"startup-script: (.*\S)")


@dataclass(frozen=True)
class Progress:
    """One line of progress: the step, of how many, and the trainer's figures."""

    step: int
    steps: int
    figures: dict[str, str]

    def __str__(self) -> str:
        """Return it in one line."""
        return f"training {self.step}/{self.steps} · {self.summary}".rstrip(" ·")

    @property
    def summary(self) -> str:
        """The figures in one line."""
        return " · ".join(_figure(name, value) for name, value in self.figures.items())


def _figure(name: str, value: str) -> str:
    """Return a figure of the trainer as its own progress bar has it."""
    try:
        number = float(value.removesuffix("s"))
        if name == "examples_per_second":
            return words.pace(number)
        if name == "eta":
            return f"{words.duration(number)} left"
        return f"{name} {number:.3f}"
    except (ValueError, OverflowError):
        return f"{name} {value}"


@dataclass(frozen=True)
class Ended:
    """The training is over on this VM."""

    succeeded: bool
    message: str


class Boot:
    """The lines between a boot and the first step: a start is one line, unless it fails.

    Args:
        vm: the machine's name.
    """

    def __init__(self, vm: str) -> None:
        # The last ones say why it fails.
        self.lines: deque[str] = deque(maxlen=20)
        self.title = f"{vm} is booting; --verbose shows what it writes"
        self._booting = True

    def holds(self, line: str) -> bool:
        """Return whether the line belongs to a boot; it is kept then. A failure is none."""
        self._booting = self._booting or bool(_BOOT.search(line))
        if not self._booting or _FAILED.search(line):
            return False
        self.lines.append(line)
        return True

    def over(self) -> None:
        """Forget the boot: the training makes steps."""
        self._booting = False
        self.lines.clear()

    def last(self) -> list[str]:
        """Return the last lines of a boot that came to nothing, and forget them."""
        lines = list(self.lines)
        self.lines.clear()
        return lines


def current_boot(text: str) -> str:
    """Return what a serial port holds of the last boot; all of it if it shows no boot."""
    for marker in _BOOTS:
        if found := list(re.finditer(marker, text)):
            return text[found[-1].start() :]
    return text


class Story:
    """Reads lines in order: some mean something only after others."""

    def __init__(self) -> None:
        self._failure = ""
        self._script = ""

    def read(self, line: str) -> Progress | Ended | None:
        """Return what a line says about the training, or None."""
        if _BOOT.search(line):
            self._failure = self._script = ""
        if script := _SCRIPT_LINE.search(line):
            self._script = script[1]
        if found := _PROGRESS.search(line):
            step, steps, rest = found.groups()
            return Progress(int(step), int(steps), dict(_FIELD.findall(rest)))
        if found := _FAILED.search(line):
            # Over only when nothing starts the trainer again.
            self._failure = found[1].strip(" :")
            return None
        if found := _FINISHED.search(line):
            return Ended(True, found[1].strip(" :"))
        if found := _FINISHED_BEFORE.search(line):
            cure = "set training.job to run another one"
            return Ended(True, f"earlier: {found[1]}. Nothing was trained now; {cure}")
        if found := _SCRIPT_FAILED.search(line):
            why = f"{self._script or 'no output'} ({found[1] or found[2]})"
            return Ended(False, f"the start-up script failed: {why}")
        return Ended(False, self._failure or line.strip()) if _GAVE_UP in line else None


# --- A stack's texts, for `tpustack doctor`.

# As agent/tpu_agent/startup/common.sh says it.
_BEGINS = re.compile(r"tpu-stack: (starting the job|running the jobs of) ")
_HEALTHY = ("", "HEALTHY", "HEALTH_UNSPECIFIED")


def stack_texts(google: Google, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each log; where Google refuses, its answer is the text.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/tpu_infra/program.py names them.
    """
    zone, vm = outputs["vm_zone"], outputs["vm_name"]
    url = INSTANCE.format(outputs["project"], zone, vm)

    def tpu_state() -> str:
        name = outputs["tpu_name"]
        place, node = look_up(google, outputs, name)
        text = f"the TPU {name} in {place} is {node.get('state')}"
        if (health := node.get("health", "")) not in _HEALTHY:
            text += f"\nthe TPU's health is {health}: {node.get('healthDescription', '')}"
        return text

    def vm_state() -> str:
        return f"the VM {vm} in {zone} is {google.get(url).get('status')}"

    def port() -> str:
        pieces: list[str] = []
        start = 0
        while True:
            answer = google.get(f"{url}/serialPort", {"port": 1, "start": start})
            if not answer.get("contents"):
                return _unresolved("".join(pieces))
            pieces.append(answer["contents"])
            start = int(answer["next"])

    texts: dict[str, Callable[[], str]] = {f"TPU {outputs['tpu_name']}": tpu_state}
    if vm:
        texts |= {f"VM {vm}": vm_state, f"serial port of {vm}": port}
    for name, text in texts.items():
        try:
            yield name, text()
        except errors.TpustackError as error:
            yield name, f"error: {error}"


def _unresolved(text: str) -> str:
    """Return what a serial port holds since the trainer or the jobs began, or since the last boot.

    The start-up script waits out what went wrong before, such as grants that did not count yet.
    """
    boot = current_boot(text)
    began = [found.start() for found in _BEGINS.finditer(boot)]
    return boot[began[-1] :] if began else boot


# --- Cloud Logging, which keeps what a VM's serial port wrote, also after the VM is gone.

_API = "logging.googleapis.com"
# The names and the label of the serial port's entries: "View serial port output",
# cloud.google.com/compute/docs/troubleshooting/viewing-serial-port-output.
_FILTER = (
    'logName="projects/{}/logs/serialconsole.googleapis.com%2Fserial_port_1_output" '
    'AND resource.type="gce_instance" AND labels."compute.googleapis.com/resource_name"="{}"'
)
# The most entries that Google gives at once.
_PAGE = 1000


def logged_lines(google: Google, project: str, vm: str) -> Iterator[tuple[str, str, str]]:
    """Yield what all VMs of a name wrote in the last 30 days, oldest first, without colours.

    Each is a VM's number, the time and the line. Lines of progress are put as `tpustack follow`
    puts them; empty ones are left out.

    Raises:
        TpustackError: when Google refuses.
    """
    story = Story()
    for entry in _entries(google, project, vm):
        instance = entry["resource"]["labels"]["instance_id"]
        for text in filter(str.strip, Log.of(entry.get("textPayload", "")).lines):
            event = story.read(text)
            shown = str(event) if isinstance(event, Progress) else text
            yield instance, entry["timestamp"], shown


def _entries(google: Google, project: str, vm: str) -> Iterator[dict[str, Any]]:
    body: dict[str, object] = {
        "resourceNames": [f"projects/{project}"],
        "filter": _FILTER.format(project, vm),
        "orderBy": "timestamp asc",
        "pageSize": _PAGE,
    }
    while True:
        try:
            page = google.post(f"https://{_API}/v2/entries:list", body)
        except Forbidden as error:
            grant = "roles/logging.viewer there (permission logging.logEntries.list)"
            why = why_unreadable(error, project, _API, "logs", grant)
            raise errors.TpustackError(why) from None
        # A page may be empty and still have one after it, while Google searches on.
        yield from page.get("entries", ())
        if not page.get("nextPageToken"):
            return
        body["pageToken"] = page["nextPageToken"]
