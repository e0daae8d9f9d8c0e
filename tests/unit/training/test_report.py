from __future__ import annotations

import html
import itertools
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpu_training.__main__ import main
from tpu_training.monitoring.report.charts import line_chart, share_chart, stacked_chart
from tpu_training.monitoring.report.classes import classes_picture, classes_table
from tpu_training.monitoring.report.events import read_series
from tpu_training.monitoring.summaries import Summaries

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Notes what a page refers to, and whether its tags are closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attributes if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_a_training_leaves_a_page_that_needs_nothing_else_and_the_same_as_json(
    digits_model: Path,
) -> None:
    pytest.importorskip("matplotlib", reason="an optional library")
    text = (digits_model / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert page.tags.count("img") == 1
    assert page.tags.count("svg") >= 5
    assert "script" not in page.tags
    assert "mnist_cnn on digits" in text
    titles = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert len([title for title in titles if "gradient" in title.lower()]) == 1
    assert len(set(titles)) == len(titles)
    content = json.loads((digits_model / "report.json").read_text())
    metrics = json.loads((digits_model / "metrics.json").read_text())
    assert content["metrics"] == metrics
    assert content["model"]["params"]["global_batch_size"] == 64
    assert content["series"]["train/loss"][str(metrics["steps"])] == pytest.approx(
        metrics["train_loss"], rel=1e-3
    )
    classes = json.loads((digits_model / "classes.json").read_text())
    assert content["classes"] == classes
    assert sum(map(sum, classes["confusion"])) == 360
    right = sum(row[number] for number, row in enumerate(classes["confusion"]))
    assert right / 360 == pytest.approx(metrics["test_accuracy"])
    assert "<td>mostly taken for</td>" in text
    assert set(content["seconds"]) == {"compute", "input", "checkpoint", "idle"}
    assert content["seconds"]["compute"] > 0
    assert content["cost_note"] == ""
    assert 'class="cost"' not in text


def test_the_page_says_what_goes_on_costing_where_the_machine_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by tf.summary.scalar, which needs TensorBoard from TensorFlow 2.20 on.
    summaries = Summaries(f"{tmp_path}/tensorboard")
    summaries.scalars(1, {"train/loss": 1.0})
    summaries.close()
    monkeypatch.setenv("TPU_TRAINING_COST_NOTE", "<TPU> costs until `pulumi destroy`.")
    assert main(["report", f"--model-dir={tmp_path}"]) == 0
    text = (tmp_path / "report.html").read_text()
    assert '<p class="cost">&lt;TPU&gt; costs until <code>pulumi destroy</code>.</p>' in text
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["cost_note"] == "<TPU> costs until `pulumi destroy`."


def test_a_directory_without_a_training_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", f"--model-dir={tmp_path}"]) == 2
    assert "no training has written its course there" in capsys.readouterr().err


def test_a_course_over_two_starts_is_one_and_the_later_start_counts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same second, and as the ninth and the tenth of a process."""
    monkeypatch.setattr("tpu_training.monitoring.summaries._numbers", itertools.count(9))
    for start, steps in ((0, (10, 20, 30)), (1, (20, 40))):
        summaries = Summaries(str(tmp_path))
        for step in steps:
            summaries.scalars(step, {"train/loss": step + start / 2})
        summaries.close()
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes() + b"half a record")
    series = read_series(str(tmp_path))
    assert series == {"train/loss": {10: 10.0, 20: 20.5, 30: 30.0, 40: 40.5}}


def test_without_matplotlib_the_page_says_how_its_charts_are_drawn_later(
    digits_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(digits_model, tmp_path / "model")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", f"--model-dir={tmp_path}/model"]) == 0
    text = (tmp_path / "model" / "report.html").read_text()
    page = Page(text)
    assert page.open == []
    assert "svg" not in page.tags
    assert "mnist_cnn on digits" in text
    assert html.escape("pip install 'tpu-stack-training[plots]'") in text
    assert html.escape(f"tpu-training report --model-dir={tmp_path}/model") in text
    assert (tmp_path / "model" / "report.json").exists()


def test_classes_are_shown_by_name_the_worst_first_with_what_they_are_taken_for() -> None:
    pytest.importorskip("matplotlib", reason="an optional library")
    classes = {
        "class_names": ["cat", "<dog>", "emu"],
        "confusion": [[9, 1, 0], [5, 2, 3], [0, 0, 0]],
    }
    cells = re.findall(r"<td>([^<]*)</td>", classes_table(classes))
    assert cells[4:] == [
        *("emu", "0", "", ""),
        *("&lt;dog&gt;", "10", "20.00%", "cat (5)"),
        *("cat", "10", "90.00%", "&lt;dog&gt; (1)"),
    ]
    picture = classes_picture(classes)
    assert shown(picture) >= {"cat", "emu", "true", "predicted", "9", "5", "3"}
    assert picture == classes_picture(classes)
    assert (classes_table({}), classes_picture({})) == ("", "")


def test_charts_hold_every_line_and_survive_odd_values() -> None:
    pytest.importorskip("matplotlib", reason="an optional library")
    chart = line_chart("<Loss>", {"train": {1: 2.0, 2: float("nan"), 3: 1.0}, "test": {3: 1.5}})
    assert shown(chart) >= {"train", "test", "step", "1", "2", "3"}
    assert "&lt;Loss&gt;" in chart
    assert line_chart("empty", {"train": {}}) == ""
    one = line_chart("one", {"train": {5: 0.0}})
    assert "5" in shown(one)
    assert "5.2" not in shown(one)
    parts = {"a": {1: 1.0, 2: 2.0}, "b": {1: 0.0, 2: 1.0}}
    stacked = stacked_chart("parts", parts)
    assert shown(stacked) >= {"a", "b", "1", "2"}
    assert stacked == stacked_chart("parts", parts), "the same course gives the same page"
    assert shown(share_chart("parts", {"a": 3.0, "b": 1.0})) >= {"a", "3.0 s (75%)", "1.0 s (25%)"}
    assert share_chart("parts", {"a": 0.0}) == ""


def shown(chart: str) -> set[str]:
    """The texts in a chart."""
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", chart))


def test_the_profile_command_wants_addresses_and_a_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["profile", "--worker=my-tpu", "--output=o", "--seconds=0"]) == 2
    message = capsys.readouterr().err
    assert "--worker=my-tpu: expected grpc://HOST:PORT" in message
    assert "--seconds=0: must be above 0" in message
    assert main(["profile", "--worker=127.0.0.1:1", "--output=o", "--seconds=0.1"]) == 1
    assert "grpc://127.0.0.1:1 gave no profile" in capsys.readouterr().err
