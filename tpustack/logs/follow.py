"""Shows the training: on the VM by its serial port, on a TPU VM by what it writes to the bucket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tpu_training.goodput.ledger import read
from tpustack.cloud.google import Google, NotFound, look_up
from tpustack.errors import TpustackError
from tpustack.goodput import files_of
from tpustack.logs import serial
from tpustack.logs.serial import Progress as Step

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
        outputs: the stack's, as infra/program.py names them.
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
    bar = Progress(
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

        def on_progress(said: Step) -> None:
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
