"""Shows the trials of a sweep: a table, and a picture of their curves and parameters."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.sweep.record import COMPLETE, MAXIMIZE, OPEN, PRUNED, Sweep, Trial
from tpustack.jobs.sweep.space import Parameter, space_of

_COLOURS = {COMPLETE: "#2166ac", PRUNED: "#b0b0b0", OPEN: "#f4a582"}
_FAILED = "#b2182b"
_BEST = "#1b7837"
_STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sweep"}
_METADATA: Mapping[str, Any] = {
    ".png": {"Software": None},
    ".svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
}
_PANEL, _HEIGHT, _DOTS_PER_INCH = 3.4, 3.2, 110


def table(sweep: Sweep) -> Table:
    """Return the trials, the best first, then those that have no value."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    names = [one.name for one in space_of(sweep.params)]
    for name in ("trial", "state", console.line(sweep.metric), *names, "job", "steps"):
        made.add_column(Text(name), no_wrap=True)
    for one in sorted(sweep.trials, key=lambda one: _rank(sweep, one)):
        best = " *" if one == sweep.best else ""
        value = "" if one.value is None else f"{one.value:.6g}"
        steps = str(one.reports[-1][0]) if one.reports else ""
        params = (str(one.params[name]) for name in names)
        cells = (f"{one.number}{best}", one.state, value, *params, one.job, steps)
        made.add_row(*(Text(console.line(cell)) for cell in cells))
    return made


def check_plot(path: Path | None) -> None:
    """Raise UsageError unless a picture can be drawn into a file of that name."""
    if path is None:
        return
    if path.suffix not in _METADATA:
        raise UsageError(f"--plot: {path} ends with neither .png nor .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401 # Asked before hours have passed.
    except ImportError:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: `pip install matplotlib`, or this "
            "package with its extra `sweep`"
        ) from None


def plot(sweep: Sweep, path: Path) -> None:
    """Draw curves and parameters into a file. Raises TpustackError if it can't be written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    space = space_of(sweep.params)
    with rc_context(_STYLE):
        size = (_PANEL * (1 + len(space)), _HEIGHT)
        figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
        curves, *others = figure.subplots(1, 1 + len(space), squeeze=False)[0]
        _draw_curves(curves, sweep)
        for axes, parameter in zip(others, space, strict=True):
            _draw_parameter(axes, sweep, parameter)
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix[1:], metadata=_METADATA[path.suffix])
    try:
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise TpustackError(f"--plot: {path} can't be written: {error.strerror}") from None


def _draw_curves(axes: Any, sweep: Sweep) -> None:
    for one in sweep.trials:
        steps, values = [s for s, _ in one.reports], [v for _, v in one.reports]
        marker = "o" if len(steps) == 1 else None
        axes.plot(steps, values, color=_colour(sweep, one), marker=marker, markersize=3)
    if sweep.best:
        axes.set_title(f"best: trial {sweep.best.number}, {sweep.best.value:.4g}", loc="left")
    axes.set(xlabel="step", ylabel=sweep.metric)


def _draw_parameter(axes: Any, sweep: Sweep, parameter: Parameter) -> None:
    shown = [one for one in sweep.trials if one.value is not None]
    axes.scatter(
        [one.params[parameter.name] for one in shown],
        [one.value for one in shown],
        c=[_colour(sweep, one) for one in shown],
        s=22,
    )
    if parameter.is_log:
        axes.set_xscale("log")
    axes.set(xlabel=parameter.name, ylabel=sweep.metric)


def _colour(sweep: Sweep, trial: Trial) -> str:
    return _BEST if trial == sweep.best else _COLOURS.get(trial.state, _FAILED)


def _rank(sweep: Sweep, trial: Trial) -> tuple[bool, bool, float, int]:
    sign = -1 if sweep.goal == MAXIMIZE else 1
    value = sign * trial.value if trial.value is not None else 0.0
    return trial.value is None, trial.state == PRUNED, value, trial.number
