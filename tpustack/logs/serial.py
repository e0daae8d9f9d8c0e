"""The serial port of a VM: live, from Cloud Logging, and what its lines say of the training."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as progress_Progress

from tpu_training.goodput.ledger import read
from tpustack.cloud.google import Forbidden, Google, NotFound, look_up, says_disabled
from tpustack.console import unbroken
from tpustack.errors import TpustackError
from tpustack.goodput import files_of
from tpustack.logs import serial
from tpustack.logs.diagnosis import Log

INSTANCE = "https://compute.googleapis.com/compute/v1/projects/{}/zones/{}/instances/{}"
# After this many answers without news, a new VM may have taken the name.
_SILENT = 10


def port_url(project: str, zone: str, vm: str) -> str:
    """Return the address of a VM's serial port."""
    return f"{INSTANCE.format(project, zone, vm)}/serialPort"


def lines(
    google: Google,
    *,
    project: str,
    zone: str,
    vm: str,
    interval: float = 0.5,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str | None]:
    """Yield the serial port's lines of this boot as they come; None whenever there is nothing new.

    When its group replaces the VM, wait for the new one and read it from the beginning.

    Raises:
        TpustackError: when there was never such a VM.
    """
    known, silent = "", _SILENT
    start, rest, backlog = 0, "", True
    while True:
        try:
            if silent >= _SILENT:
                number = _number(google, project, zone, vm)
                if number != known:
                    known, start, rest, backlog = number, 0, "", True
                silent = 0
            answer = google.get(port_url(project, zone, vm), {"port": 1, "start": start})
        except NotFound:
            if not known:
                raise
            silent = _SILENT
            yield None
            sleep(interval)
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
            sleep(interval)


def _number(google: Google, project: str, zone: str, vm: str) -> str:
    """Return the ID that tells a VM from an earlier one of the same name."""
    return str(google.get(INSTANCE.format(project, zone, vm), {"fields": "id"})["id"])


def wait_for_end(
    source: Iterator[str | None],
    *,
    on_line: Callable[[str], None],
    on_progress: Callable[[Progress], None],
    on_silence: Callable[[], None],
    silence: float,
    now: Callable[[], float] = time.monotonic,
) -> Ended:
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
        said = story.read(line)
        if isinstance(said, Ended):
            return said
        if isinstance(said, Progress):
            on_progress(said)
        else:
            on_line(line)
    raise TpustackError("the serial port ended before the training did")


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
_FINISHED_BEFORE = re.compile(r"tpu-stack: (the job \S+ has finished already)")
_NEXT = "set training.job to run another one"
# As agent/tpu_agent/trainer.py says it.
_GAVE_UP = "tpu-stack: the trainer is not started again"
# The guest agent, google_metadata_script_runner/main.go; then that of older images.
_SCRIPT_FAILED = re.compile(
    r'Script "startup-script" failed with error: (.*)'
    r"|startup-script (exit status [1-9]\d*|signal.*)"
)
_SCRIPT_SAID = re.compile(r"startup-script: (.*\S)")


@dataclass(frozen=True)
class Progress:
    """One line of progress: the step, of how many, and the trainer's figures."""

    step: int
    steps: int
    figures: dict[str, str]

    def __str__(self) -> str:
        """Return it in one line."""
        return f"training {self.step}/{self.steps} {self.summary}"

    @property
    def summary(self) -> str:
        """The figures in one line."""
        return " ".join(f"{name}={value}" for name, value in self.figures.items())


@dataclass(frozen=True)
class Ended:
    """The training is over on this VM."""

    succeeded: bool
    message: str


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
        if said := _SCRIPT_SAID.search(line):
            self._script = said[1]
        if found := _PROGRESS.search(line):
            step, steps, rest = found.groups()
            return Progress(int(step), int(steps), dict(_FIELD.findall(rest)))
        if found := _FAILED.search(line):
            # Over only when nothing starts the trainer again.
            self._failure = found[1].strip(" :")
            return None
        return self._end(line)

    def _end(self, line: str) -> Ended | None:
        if found := _FINISHED.search(line):
            return Ended(True, found[1].strip(" :"))
        if found := _FINISHED_BEFORE.search(line):
            return Ended(True, f"earlier: {found[1]}. Nothing was trained now; {_NEXT}")
        if found := _SCRIPT_FAILED.search(line):
            why = found[1] or found[2]
            return Ended(
                False, f"the start-up script failed: {self._script or 'no output'} ({why})"
            )
        if _GAVE_UP in line:
            return Ended(False, self._failure or line.strip())
        return None


# As agent/tpu_agent/startup/common.sh says it.
_BEGINS = re.compile(r"tpu-stack: (starting the job|running the jobs of) ")
_HEALTHY = ("", "HEALTHY", "HEALTH_UNSPECIFIED")


def stack_texts(google: Google, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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


# Cloud Logging keeps what a VM's serial port wrote, also after the VM is gone.
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
class LogLine:
    """A line of a serial port: when it was written, and by which of the VMs of that name."""

    time: str
    instance: str
    text: str


def logged_lines(google: Google, project: str, vm: str) -> Iterator[LogLine]:
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
                yield LogLine(entry["timestamp"], instance, shown)


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


# --- Shows the training: on the VM by its serial port, on a TPU VM by what it writes to the bucket.

# Seconds after which the VM is looked at. TensorFlow compiles a large model for longer than that,
# and a VM installs packages without a word.
SILENCE = 300.0
_SECONDS = 10.0
_OFF = ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED")


def follow(
    console: Console, outputs: Mapping[str, Any], *, advice: str, on_tpu: bool = False
) -> None:
    """Show the trainer's output and the training's progress until it ends.

    Args:
        console: where to show it.
        outputs: the stack's, as infra/outputs.py names them.
        advice: what to do about a failure, as a sentence.
        on_tpu: whether the TPU VM runs the trainer.

    Raises:
        TpustackError: when the training has failed for good, or the VM is off.
    """
    google = Google()
    vm = outputs["tpu_name" if on_tpu else "vm_name"]
    port = {"project": outputs["project"], "zone": outputs["vm_zone"], "vm": vm}
    source = bucket_lines(google, outputs["job_url"]) if on_tpu else serial.lines(google, **port)
    why_silent = _say_why_tpu_is_silent if on_tpu else _say_why_silent
    bar = progress_Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )
    plain = not console.is_terminal
    with bar:
        task = bar.add_task("training", total=None, figures=f"waiting for {vm}")

        def on_progress(said: Progress) -> None:
            bar.update(task, completed=said.step, total=said.steps, figures=said.summary)
            if plain:
                console.print(f"  {said}", highlight=False, markup=False)

        def show(line: str) -> None:
            console.print(f"  {line}", style="dim", highlight=False, markup=False, soft_wrap=True)

        def look_at_vm() -> None:
            show(why_silent(google, outputs, advice))

        ended = serial.wait_for_end(
            source,
            on_line=show,
            on_progress=on_progress,
            on_silence=look_at_vm,
            silence=SILENCE,
        )
    said = f"training {'finished' if ended.succeeded else 'failed'} {ended.message}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)
    if not ended.succeeded:
        raise TpustackError(f"the training on {vm} failed: {ended.message}. {advice}")


def _say_why_silent(google: Google, outputs: Mapping[str, Any], advice: str) -> str:
    """Return what a VM that writes nothing may be doing. Raises TpustackError if it is off."""
    vm = outputs["vm_name"]
    url = serial.INSTANCE.format(outputs["project"], outputs["vm_zone"], vm)
    try:
        status = str(google.get(url, {"fields": "status"})["status"])
    except NotFound:
        return f"{vm} is gone; waiting for the one that its group makes"
    if status in _OFF:
        raise TpustackError(f"{vm} is {status} and writes nothing more. {advice}")
    return (
        f"nothing new for {SILENCE / 60:.0f} minutes; {vm} is {status}. Compiling or installing "
        "can take longer than that. Ctrl-C ends the display, not the training"
    )


def _say_why_tpu_is_silent(google: Google, outputs: Mapping[str, Any], advice: str) -> str:
    """Return how to read what a TPU VM writes. Raises TpustackError if it is gone."""
    name = outputs["tpu_name"]
    zone, node = look_up(google, outputs, name)
    return (
        f"nothing new for {SILENCE / 60:.0f} minutes; {name} is {node.get('state')}. `gcloud alpha "
        f"compute tpus tpu-vm ssh {name} --zone={zone} --tunnel-through-iap --command='journalctl "
        f"--unit=google-startup-scripts --unit=tpu-stack-agent'` shows what it writes. {advice}"
    )


def bucket_lines(
    google: Google, job_url: str, sleep: Callable[[float], None] = time.sleep
) -> Iterator[str | None]:
    """Yield what a TPU VM, whose serial port Google does not show, writes to the bucket.

    The lines are as the trainer would print them; None whenever there is nothing new.
    The ledger has the step once a minute. The agent marks a job that has finished.
    """
    said = ""
    while True:
        if _object(google, f"{job_url}/finished") is not None:
            metrics = json.loads(_object(google, f"{job_url}/metrics.json") or "{}")
            figures = {name: value for name, value in metrics.items() if name.startswith("test_")}
            yield f"training finished {' '.join(f'{n}={v}' for n, v in figures.items())}"
            return
        entries = read(files_of(job_url, google)).entries
        ending = f" ({entries[-1].ending})" if entries and entries[-1].ending else ""
        now = f"start {len(entries)}: step {entries[-1].last_step}{ending}" if entries else ""
        yield now if now != said else None
        said = now
        sleep(_SECONDS)


def _object(google: Google, url: str) -> str | None:
    try:
        return google.content(url)
    except NotFound:
        return None
