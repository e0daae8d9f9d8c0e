"""The report as one HTML page: no script, no file beside it, nothing from the network."""

import base64
import logging
from collections.abc import Mapping
from html import escape
from typing import Any

from tpu_training.errors import InputError
from tpu_training.errors.extras import require_plots
from tpu_training.goodput.account import STATES, account
from tpu_training.goodput.ledger import Ledger
from tpu_training.goodput.picture import draw
from tpu_training.monitoring.report.charts import line_chart, share_chart, stacked_chart
from tpu_training.monitoring.report.classes import classes_picture, classes_table
from tpu_training.monitoring.report.report import Report
from tpu_training.monitoring.step_times import PARTS, TAG

logger = logging.getLogger(__name__)

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
  padding: 0 1rem; color: #1a1a1a; background: #fff }
h1 { font-size: 1.5rem; margin: 0 0 .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem }
.sub { color: #666; margin: 0 0 1.2rem; overflow-wrap: anywhere }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .8rem }
.card { border: 1px solid #ddd; border-radius: 8px; padding: .7rem .9rem }
.card b { display: block; font-size: 1.35rem } .card span { color: #666 }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(420px, 100%), 1fr));
  gap: 1rem }
figure { margin: 0; border: 1px solid #ddd; border-radius: 8px; padding: .7rem }
figcaption { font-weight: 600; margin-bottom: .3rem }
svg { display: block; width: 100%; height: auto } table { border-collapse: collapse }
td { padding: .15rem 1.2rem .15rem 0; vertical-align: top; overflow-wrap: anywhere }
.cost { border-left: 4px solid #d55e00; padding: .3rem .9rem; margin: 0 0 1.2rem }
td:first-child { color: #666 } img { max-width: 100%; image-rendering: pixelated }
"""
_SPLITS = ("train", "validation", "test")
# Metrics shown large, with how they read.
_CARDS = {
    "test_accuracy": ("test accuracy", "{:.2%}"),
    "test_loss": ("test loss", "{:.4f}"),
    "validation_accuracy": ("validation accuracy", "{:.2%}"),
    "train_loss": ("training loss", "{:.4f}"),
    "steps": ("steps", "{:,.0f}"),
    "examples_per_second": ("examples a second", "{:,.0f}"),
    "mfu": ("of the TPU's peak (MFU)", "{:.1%}"),
    "replicas": ("replicas", "{:.0f}"),
}
# Curves of their own.
_NO_METRICS = ("loss", "learning_rate", "examples_per_second", "gradient_norm")


def render(report: Report) -> str:
    """Return the whole page."""
    name = str(report.metrics.get("model") or report.model.get("model") or "model")
    data = str(report.metrics.get("data", ""))
    title = f"Training of {name} on {data}" if data else f"Training of {name}"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{escape(title)}</h1><p class="sub">{escape(report.model_dir)}</p>'
        f"{_cost_note(report.cost_note)}"
        f"{_cards(report.metrics)}{_charts(report)}"
        f"{classes_table(report.classes)}{_picture(report)}"
        f"<h2>Parameters</h2>{_table(_parameters(report))}"
        f"<h2>All metrics</h2>{_table(report.metrics)}</body></html>\n"
    )


def _cost_note(note: str) -> str:
    """Show the note; what stands between backticks is a command."""
    if not note:
        return ""
    parts = escape(note).split("`")
    marked = "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    return f'<p class="cost">{marked}</p>'


def _cards(metrics: Mapping[str, Any]) -> str:
    cards = []
    others = {
        name: (name.replace("_", " "), "{:.4g}")
        for name in metrics
        if name.startswith(("test_", "validation_"))
        and not name.endswith("_examples")
        and name not in _CARDS
    }
    for name, (label, form) in {**others, **_CARDS}.items():
        value = metrics.get(name)
        if isinstance(value, (int, float)):
            text = escape(form.format(value))
            cards.append(f'<div class="card"><b>{text}</b><span>{label}</span></div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _charts(report: Report) -> str:
    """Draw the charts; without the libraries that draw them, how to get them."""
    try:
        require_plots(
            "drawing the charts",
            f", then `tpu-training report --model-dir={report.model_dir}` draws them",
        )
    except InputError as error:
        logger.warning("report: %s", error)
        return f"<h2>Course</h2><p>{escape(str(error))}</p>"
    return (
        _course(report) + _time(report) + _goodput(report.ledger) + classes_picture(report.classes)
    )


def _course(report: Report) -> str:
    charts = [
        line_chart("Loss", _lines(report, "{}/loss", *_SPLITS)),
        *(
            line_chart(_title(name), _lines(report, f"{{}}/{name}", *_SPLITS))
            for name in _metrics(report)
        ),
        line_chart("Learning rate", _lines(report, "train/{}", "learning_rate")),
        line_chart("Examples a second", _lines(report, "train/{}", "examples_per_second")),
        line_chart("Norm of the gradient", _lines(report, "train/{}", "gradient_norm")),
    ]
    return f'<h2>Course</h2><div class="charts">{"".join(charts)}</div>'


def _metrics(report: Report) -> list[str]:
    """Return the names of the task's metrics."""
    tags = [tag.partition("/") for tag in report.series]
    names = dict.fromkeys(name for split, _, name in tags if split in _SPLITS)
    return [name for name in names if name not in _NO_METRICS]


def _title(name: str) -> str:
    return name[:1].upper() + name[1:].replace("_", " ")


def _time(report: Report) -> str:
    if not any(report.seconds.values()):
        return ""
    milliseconds = {
        part: {step: 1000 * value for step, value in points.items()}
        for part, points in _lines(report, f"{TAG}/{{}}", *PARTS).items()
    }
    return (
        "<h2>Where the time went</h2><p class='sub'>Without the first loop of each start, which "
        "compiles. Idle is what lies between the loops.</p><div class='charts'>"
        f"{share_chart('Seconds', report.seconds)}"
        f"{stacked_chart('Milliseconds a step', milliseconds)}</div>"
    )


def _goodput(ledger: Ledger) -> str:
    """Show where the wall time of all starts went, and what is wrong with the ledger."""
    total = account(ledger)
    if not total.wall:
        return ""
    svg = draw(ledger, total, "svg").decode()
    problems = "".join(f"<p>{escape(problem)}.</p>" for problem in ledger.problems)
    spent = {
        meaning: f"{total.seconds[state]:,.1f} s ({total.seconds[state] / total.wall:.1%})"
        for state, meaning in STATES
        if total.seconds[state]
    }
    return (
        "<h2>Goodput</h2><p class='sub'>The part of the wall time in steps that count, over all "
        f"starts.</p>{problems}"
        f"<figure>{svg[svg.index('<svg') :]}</figure>{_table(spent)}"
    )


def _lines(report: Report, tag: str, *names: str) -> dict[str, Mapping[int, float]]:
    """Return the series of `tag` with each of `names` put into it, by that name."""
    return {name: report.series.get(tag.format(name), {}) for name in names}


def _picture(report: Report) -> str:
    if report.picture is None:
        return ""
    data = base64.b64encode(report.picture).decode()
    return (
        "<h2>Examples</h2><p class='sub'>Of the validation set; of the training set where there is "
        "none. Green: recognised. Red: the predicted class, then "
        f'the true one.</p><img alt="examples" src="data:image/png;base64,{data}">'
    )


def _parameters(report: Report) -> Mapping[str, Any]:
    changed = report.model.get("params", {})
    return changed or {"": "all at their defaults"}


def _table(values: Mapping[str, Any]) -> str:
    rows = [
        f"<tr><td>{escape(str(name))}</td><td>{escape(_shown(value))}</td></tr>"
        for name, value in values.items()
        if value not in (None, "")
    ]
    return f"<table>{''.join(rows)}</table>"


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
