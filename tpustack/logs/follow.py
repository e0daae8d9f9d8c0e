"""Shows the training on the VM as a progress bar, from its serial port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tpustack.cloud.google import Google
from tpustack.errors import TpustackError
from tpustack.logs import serial

# A VM on Google installs TensorFlow from the package index, which can be silent for a while.
SILENCE = 300.0


def follow(console: Console, outputs: Mapping[str, Any]) -> None:
    """Show the VM's output and the training's progress until it ends.

    Raises:
        TpustackError: when the training fails or falls silent.
    """
    vm = outputs["vm_name"]
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

        def on_progress(said: serial.Progress) -> None:
            figures = " ".join(f"{name}={value}" for name, value in said.figures.items())
            bar.update(task, completed=said.step, total=said.steps, figures=figures)
            if plain:
                console.print(f"  training {said.step}/{said.steps} {figures}", highlight=False)

        ended = serial.wait_for_end(
            serial.lines(Google(), project=outputs["project"], zone=outputs["vm_zone"], vm=vm),
            on_line=lambda line: console.print(
                f"  {line}", style="dim", highlight=False, markup=False, soft_wrap=True
            ),
            on_progress=on_progress,
            deadline=SILENCE,
        )
    if not ended.succeeded:
        raise TpustackError(f"the training on {vm} failed: {ended.message}")
