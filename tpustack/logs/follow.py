"""Shows the training on the VM as a progress bar, from its serial port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError
from tpustack.logs import serial
from tpustack.logs.words import Progress as Step

# Seconds after which the VM is looked at. TensorFlow compiles a large model for longer than that,
# and a VM installs packages without a word.
SILENCE = 300.0
_OFF = ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED")


def follow(console: Console, outputs: Mapping[str, Any], *, advice: str) -> None:
    """Show the VM's output and the training's progress until it ends.

    Args:
        console: where to show it.
        outputs: the stack's, as infra/outputs.py names them.
        advice: what to do about a failure, as a sentence.

    Raises:
        TpustackError: when the training has failed for good, or the VM is off.
    """
    vm, google = outputs["vm_name"], Google()
    bar = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        console=console,
    )
    plain = not console.is_terminal
    with bar:
        task = bar.add_task("training", total=None, figures="waiting for the VM")

        def on_progress(said: Step) -> None:
            bar.update(task, completed=said.step, total=said.steps, figures=said.summary)
            if plain:
                console.print(f"  {said}", highlight=False)

        def show(line: str) -> None:
            console.print(f"  {line}", style="dim", highlight=False, markup=False, soft_wrap=True)

        def look_at_vm() -> None:
            show(_say_why_silent(google, outputs, advice))

        ended = serial.wait_for_end(
            serial.lines(google, project=outputs["project"], zone=outputs["vm_zone"], vm=vm),
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
