"""A trainer on a TPU VM, whose serial port Google does not show, is followed by the bucket."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from rich.console import Console

from tpu_core.google import Answer
from tpu_core.ledger import PARTS
from tpustack.cloud.google import NotFound
from tpustack.engine import backend
from tpustack.errors import TpustackError
from tpustack.logs import serial

from .conftest import Run

URL = "gs://a-bucket/jobs/train"
OUTPUTS = {
    "project": "p",
    "job_url": URL,
    "tpu_name": "dev-tpu",
    "tpu_zone": "us-central1-a",
    "vm_name": "dev-vm",
    "vm_zone": "us-central1-a",
}


class Google:
    """A bucket with the objects of a job, and a TPU."""

    def __init__(self) -> None:
        self.objects: dict[str, str] = {}

    def write(self, step: int, ending: str = "") -> None:
        steps = {"first_step": 0, "last_step": step, "ending": ending, "machine": "t-w-0"}
        seconds = dict.fromkeys(PARTS, 0.0)
        entry = {"format": 1, "begin": 1e9, "duration": 60.0, "seconds": seconds, **steps}
        self.objects["jobs/train/ledger/a.json"] = json.dumps(entry)

    def content(self, url: str) -> str:
        return self.text(url.removeprefix("gs://a-bucket/"), {})

    def text(self, url: str, parameters: Mapping[str, str]) -> str:
        name = url.rpartition("/o/")[2].replace("%2F", "/")
        if name not in self.objects:
            raise NotFound(url)
        return self.objects[name]

    def exchange(self, method: str, url: str, headers: object, body: object) -> Answer:
        path, _, query = url.partition("?")
        if query == "alt=media":
            return 200, {"x-goog-generation": "1"}, self.text(path, {}).encode()
        names = [name for name in self.objects if name.startswith(parse_qs(query)["prefix"][0])]
        about = {"generation": "1", "updated": "2001-09-09T01:47:40Z"}
        return 200, {}, json.dumps({"items": [{"name": name, **about} for name in names]}).encode()

    def get(self, url: str) -> dict[str, Any]:
        assert url.endswith("/nodes/dev-tpu")
        return {"state": "READY"}


def test_steps_come_from_the_ledger_and_the_end_from_the_mark() -> None:
    google = Google()
    lines = serial.bucket_lines(google, URL, sleep=lambda _: None)  # type: ignore[arg-type]
    assert next(lines) is None
    google.write(60)
    assert [next(lines), next(lines)] == ["start 1: step 60", None]
    google.write(90, "SIGTERM")
    assert next(lines) == "start 1: step 90 (SIGTERM)"
    google.objects["jobs/train/metrics.json"] = '{"test_accuracy": 0.97, "steps": 112}'
    google.objects["jobs/train/finished"] = "2026-11-24T08:00:00Z\n"
    assert list(lines) == ["training finished test_accuracy=0.97"]


def test_after_silence_it_says_how_the_tpu_vm_is_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    google = Google()
    monkeypatch.setattr(serial, "Google", lambda: google)
    monkeypatch.setattr(serial, "SILENCE", -1.0)
    monkeypatch.setattr(serial, "bucket_lines", lambda *_: iter([None]))
    shown = Console(file=io.StringIO(), width=400)
    with pytest.raises(TpustackError, match="ended before the training did"):
        serial.follow(shown, OUTPUTS, advice="Look there", on_tpu=True)
    said = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "dev-tpu is READY. Look there" in said


@pytest.mark.parametrize(("run_on", "on_tpu"), [("vm", False), ("tpu", True)])
def test_the_command_follows_the_machine_that_trains(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch, run_on: str, on_tpu: bool
) -> None:
    asked: list[tuple[bool, bool]] = []
    shell = "`tpustack ssh --stack dev --tpu -- journalctl "
    monkeypatch.setattr(backend, "outputs_of", lambda stack: OUTPUTS)

    def follow(*_: Any, on_tpu: bool, advice: str, **__: Any) -> None:
        asked.append((on_tpu, advice.startswith(shell)))

    monkeypatch.setattr(serial, "follow", follow)
    stack = project / "stacks" / "Pulumi.dev.yaml"
    text = stack.read_text(encoding="utf-8") + f"  tpu-stack:training: {{runOn: {run_on}}}\n"
    stack.write_text(text, encoding="utf-8")
    assert run("follow", "--stack", "dev").code == 0
    assert asked == [(on_tpu, on_tpu)]
