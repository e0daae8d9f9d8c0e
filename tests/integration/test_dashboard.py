"""The dashboard of a stack on a real engine and in a browser: what a person sees and does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.browser import Page, browsing, find_browser
from tests.patience import PATIENCE
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

REPOSITORY = Path(__file__).parents[2]
TPUSTACK = (sys.executable, "-m", "tpustack")
BUCKET = "https://storage.googleapis.com/storage/v1/b/tpu-stack-local-tpu-stack-local"
COUNTS = 'for i in $(seq 600); do echo "line $i <b>bold</b>"; sleep 0.1; done'


def ignore(line: str) -> None:
    """The engine's output is not what this test looks at."""


@pytest.fixture
def address(
    deploy: Callable[..., Stack],
    environment: dict[str, str],
    project: Path,
) -> Iterator[str]:
    """A stack that runs jobs, one of which writes, and its dashboard."""
    engine = deploy(jobs={"enabled": True})
    engine.up(ignore)
    outputs = engine.outputs()
    # What finds the engine.
    (project / "tools").symlink_to(REPOSITORY / "tools")
    environment = {**os.environ, **environment}
    submit = ["job", "submit", "--command", COUNTS, "--name", "counts"]
    submit += ["--bucket", outputs["bucket_url"]]
    subprocess.run([*TPUSTACK, *submit], env=environment, check=True, timeout=PATIENCE)
    with subprocess.Popen(
        [*TPUSTACK, "dashboard", "--stack", "local"],
        cwd=project,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as dashboard:
        assert dashboard.stdout is not None
        yield dashboard.stdout.readline().strip()
        dashboard.terminate()


def text(page: Page, selector: str) -> str:
    return str(page.value(f"document.querySelector({selector!r}).textContent"))


def compared(address: str) -> dict[str, Any]:
    """What Compare shows of the stack."""
    root, _, token = address.partition("#token=")
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.post(f"{root}api/places/local/drift", headers=headers, timeout=PATIENCE)
    assert answer.ok, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_person_sees_drift_and_a_log_live_stops_the_job_and_hears_of_a_preemption(
    address: str, cloud: LocalCloudCommand, google: requests.Session
) -> None:
    found = compared(address)
    assert (found["outcome"], found["changes"]) == ("no change", []), found
    labels = google.get(BUCKET).json()["labels"] | {"managed-by": "hand"}
    google.patch(BUCKET, json={"labels": labels}).raise_for_status()
    found = compared(address)
    assert found["outcome"] == "drift"
    assert [change["properties"] for change in found["changes"]] == [['labels["managed-by"]']]
    assert google.get(BUCKET).json()["labels"] == labels

    if find_browser() is None:
        pytest.skip("the rest takes Chromium, which is not installed")
    with browsing() as page:
        page.open(address)
        page.wait("document.querySelector('#jobs-rows .state')?.textContent === 'running'")
        page.wait("document.querySelector('#tpus-rows .state')?.textContent === 'READY'")
        assert page.value("location.hash") == ""

        page.value("document.querySelector('#jobs-rows button').click()")
        page.wait("document.querySelector('#log').textContent.includes('line 3 <b>bold</b>')")
        last = int(text(page, "#log").rpartition("line ")[2].split()[0])
        page.wait(f"document.querySelector('#log').textContent.includes('line {last + 5} ')")
        assert page.value("document.querySelectorAll('#log b').length") == 0

        # Stop, by keyboard: it wants a second press.
        page.value("document.querySelector('#job-stop').focus()")
        page.press("Enter")
        assert text(page, "#job-stop") == "Stop for good?"
        page.press("Enter")
        page.wait("document.querySelector('#job-state').textContent === 'stopped (143)'")
        page.wait("document.querySelector('#log-state').textContent.startsWith('ended: stopped')")
        page.press("Escape")
        page.wait("!document.querySelector('#job').open")

        tpu = text(page, "#tpus-rows b")
        cloud.run("faults", "preempt", tpu)
        page.wait(f"document.querySelector('#news').textContent.includes('TPU {tpu}: READY → ')")
        assert page.errors == []
