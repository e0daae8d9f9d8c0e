"""The report as one HTML page: no script, no file beside it, nothing from the network."""

import base64
from collections.abc import Mapping
from html import escape
from typing import Any

from tpu_training.monitoring.report.charts import line_chart, share_bar, stacked_chart
from tpu_training.monitoring.report.report import Report
from tpu_training.monitoring.step_times import PARTS, TAG

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px;
  padding: 0 1rem; color: #1a1a1a; background: #fff }
h1 { font-size: 1.5rem; margin: 0 0 .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem }
.sub { color: #666; margin: 0 0 1.2rem; overflow-wrap: anywhere }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .8rem }
.card { border: 1px solid #ddd; border-radius: 8px; padding: .7rem .9rem }
.card b { display: block; font-size: 1.35rem } .card span { color: #666 }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); gap: 1rem }
figure { margin: 0; border: 1px solid #ddd; border-radius: 8px; padding: .7rem }
figcaption { font-weight: 600; margin-bottom: .3rem }
svg text { font-size: 11px; fill: #555 } .grid { stroke: #e5e5e5 }
.legend span { margin-right: 1rem; white-space: nowrap; color: #444 }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .35em }
table { border-collapse: collapse } td { padding: .15rem 1.2rem .15rem 0; vertical-align: top }
td:first-child { color: #666 } img { max-width: 100%; image-rendering: pixelated }
"""
# Metrics shown large, with how they read.
_CARDS = {
    "test_accuracy": ("test accuracy", "{:.2%}"),
    "test_loss": ("test loss", "{:.4f}"),
    "train_loss": ("training loss", "{:.4f}"),
    "steps": ("steps", "{:,.0f}"),
    "examples_per_second": ("examples a second", "{:,.0f}"),
    "replicas": ("replicas", "{:.0f}"),
}


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
        f"{_cards(report.metrics)}<h2>Course</h2>"
        f'<div class="charts">{_course(report)}</div>{_time(report)}{_picture(report)}'
        f"<h2>Parameters</h2>{_table(_parameters(report))}"
        f"<h2>All metrics</h2>{_table(report.metrics)}</body></html>\n"
    )


def _cards(metrics: Mapping[str, Any]) -> str:
    cards = []
    for name, (label, form) in _CARDS.items():
        value = metrics.get(name)
        if isinstance(value, (int, float)):
            text = escape(form.format(value))
            cards.append(f'<div class="card"><b>{text}</b><span>{label}</span></div>')
    return f'<div class="cards">{"".join(cards)}</div>'


def _course(report: Report) -> str:
    series = report.series
    charts = [
        line_chart("Loss", _lines(report, "loss")),
        line_chart("Accuracy", _lines(report, "accuracy")),
        line_chart("Learning rate", {"rate": series.get("train/learning_rate", {})}),
        line_chart("Examples a second", {"rate": series.get("train/examples_per_second", {})}),
        line_chart("Norm of the gradients", {"norm": series.get("gradient_norm/all", {})}),
    ]
    return "".join(charts)


def _lines(report: Report, what: str) -> dict[str, Mapping[int, float]]:
    return {part: report.series.get(f"{part}/{what}", {}) for part in ("train", "test")}


def _time(report: Report) -> str:
    if not any(report.seconds.values()):
        return ""
    layers = {
        part: {step: 1000 * value for step, value in report.series.get(f"{TAG}/{part}", {}).items()}
        for part in PARTS
    }
    chart = stacked_chart("Milliseconds a step", layers)
    return (
        "<h2>Where the time went</h2>"
        f"{share_bar(report.seconds)}<p class='sub'>Without the first loop of each start, which "
        f"compiles. Idle is what lies between the loops.</p><div class='charts'>{chart}</div>"
    )


def _picture(report: Report) -> str:
    if report.picture is None:
        return ""
    data = base64.b64encode(report.picture).decode()
    return (
        "<h2>Test examples</h2><p class='sub'>Green: recognised. Red: the predicted class, then "
        f'the true one.</p><img alt="test examples" src="data:image/png;base64,{data}">'
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
