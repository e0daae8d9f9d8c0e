"""Draw a training's course for a recipe's page: loss, and the task's metric, over the steps.

.venv/bin/python tools/draw_curve.py MODEL_DIR PICTURE.png [METRIC]
"""

from __future__ import annotations

import sys
from pathlib import Path

from tpu_training.monitoring.summaries import Series, read_series

_INCHES, _DOTS = (8.0, 2.8), 100
_COLOURS = {"train": "#0072b2", "validation": "#009e73", "test": "#d55e00"}


def main(model_dir: str, picture: str, metric: str = "accuracy") -> None:
    """Draw the series of `model_dir` into the file `picture`."""
    from matplotlib.figure import Figure

    series = read_series(f"{model_dir}/tensorboard")
    figure = Figure(figsize=_INCHES, layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", metric), strict=True):
        for split, colour in _COLOURS.items():
            _draw(axes, series.get(f"{split}/{name}", {}), split, colour)
        axes.set(xlabel="step", title=name)
        axes.grid(color="#e5e5e5")
        axes.legend(frameon=False)
    # No version or date: the same course gives the same file.
    figure.savefig(picture, dpi=_DOTS, metadata={"Software": None})


def _draw(axes: object, points: Series, label: str, colour: str) -> None:
    if points:
        marker = "o" if len(points) == 1 else ""
        axes.plot(  # type: ignore[attr-defined]
            list(points), list(points.values()), label=label, color=colour, marker=marker
        )


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"), str(Path(sys.argv[2])), *sys.argv[3:])
