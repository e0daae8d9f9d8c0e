"""Writes the report beside what it reports on."""

import os

from tpu_training.data import files
from tpu_training.monitoring.report.page import render
from tpu_training.monitoring.report.report import read_report

COST_NOTE = "TPU_TRAINING_COST_NOTE"
"""The variable with what the machines go on costing, for the head of the report."""


def write_report(model_dir: str) -> str:
    """Write report.html and report.json to `model_dir` and return the page's path."""
    report = read_report(model_dir, cost_note=os.environ.get(COST_NOTE, ""))
    base = model_dir.rstrip("/")
    files.write_text(f"{base}/report.json", report.to_json())
    files.write_text(f"{base}/report.html", render(report))
    return f"{base}/report.html"
