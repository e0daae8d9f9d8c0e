"""What the dashboard tells its page, and what its buttons do."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.unit.tpustack.dashboard.conftest import BUCKET, Write, asset, lines
from tpu_agent.jobs.queue import Outcome, Queue
from tpu_core.words import duration
from tpustack.dashboard.server import assets

JOBS = f"/api/places/{BUCKET}/jobs"


def ends(queue: Queue, name: str, outcome: Outcome) -> None:
    queue.change(name, lambda job: job.after_try(outcome, time.time()))


def test_the_page_loads_existing_files_of_this_server_only(page: TestClient) -> None:
    index = page.get("/").text
    named = re.findall(r'(?:src|href)="([^#"]+)"', index)
    scripts = [name for name in assets() if name.endswith(".js")]
    imported = {name for each in scripts for name in re.findall(r'from "\./(.+?)"', asset(each))}
    assert {"icon.svg", "main.js", "style.css"} == set(named)
    assert imported == set(scripts) - {"main.js"}
    kinds = {name: page.get(f"/{name}").headers["Content-Type"] for name in {*named, *imported}}
    assert kinds["style.css"].startswith("text/css")
    assert all(kinds[name].startswith("text/javascript") for name in imported)


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js is installed")
def test_the_page_writes_times_as_the_command_line_does(tmp_path: Path) -> None:
    (tmp_path / "format.mjs").write_text(asset("format.js"))
    seconds = [-3, 0, 59.4, 59.6, 60, 599.6, 630, 3569, 3570, 3599, 3600, 5430, 172799, 10**6]
    script = "import {span} from './format.mjs'; console.log(JSON.stringify(SECONDS.map(span)))"
    node = ["node", "--input-type=module", "-e", script.replace("SECONDS", str(seconds))]
    shown = subprocess.run(node, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == [duration(math.floor(each + 0.5)) for each in seconds]


def test_no_script_of_the_page_makes_markup_of_text() -> None:
    for name in assets():
        if name.endswith(".js"):
            markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
            assert not re.search(markup, asset(name)), name


@pytest.mark.parametrize("path", ["/../server.py", "/..%2fserver.py", "/page", "/index.html.bak"])
def test_no_other_file_is_served(page: TestClient, path: str) -> None:
    assert page.get(path).status_code == 404


def test_a_job_is_shown_without_the_values_of_its_variables(page: TestClient) -> None:
    answer = page.get(f"{JOBS}/waits")
    assert answer.json()["spec"]["env"] == ["KEY"]
    assert "secret" not in answer.text
    assert answer.json()["waiting"].startswith(f"no machine runs the jobs of gs://{BUCKET}")


def test_the_stop_button_ends_a_queued_job_and_asks_a_running_one(
    page: TestClient, queue: Queue
) -> None:
    assert page.post(f"{JOBS}/waits/stop").json() == {"name": "waits", "state": "stopped"}
    assert page.post(f"{JOBS}/runs/stop").json() == {"name": "runs", "state": "stopping"}
    job = queue.read("runs")
    assert job is not None
    assert job.stop


def test_resubmit_queues_the_same_once_more(page: TestClient, queue: Queue) -> None:
    ends(queue, "runs", Outcome("exited", 1))
    assert page.post(f"{JOBS}/runs/resubmit").json() == {"name": "runs-r2", "state": "queued"}
    old, new = queue.read("runs"), queue.read("runs-r2")
    assert old is not None
    assert new is not None
    assert new.spec == old.spec


def test_a_log_is_streamed_until_the_job_ends(page: TestClient, queue: Queue, write: Write) -> None:
    write("runs", b"one\ntw\xc3")
    write("runs", b"\xb6\nbroken \xff\n")
    ends(queue, "runs", Outcome("exited", 3))
    said = lines(page.get(f"{JOBS}/runs/log").text)
    assert said[0] == {"try": 1}
    assert "".join(each.get("text", "") for each in said) == "one\ntwö\nbroken �\n"
    assert said[-1] == {"state": "failed", "code": 3, "reason": "exit code 3"}

    behind = next(each["at"] for each in said if each.get("text", "").startswith("one"))
    again = lines(page.get(f"{JOBS}/runs/log", params={"behind": behind}).text)
    assert "one" not in "".join(each.get("text", "") for each in again)
    assert page.get(f"{JOBS}/runs/log.txt").content == b"one\ntw\xc3\xb6\nbroken \xff\n"


def test_foreign_objects_among_the_pieces_of_a_log_are_ignored(
    page: TestClient, queue: Queue, write: Write
) -> None:
    write("runs", b"one\n")
    for name in ("x/000", "000", "0001/x"):
        queue.store.write(f"jobs/runs/logs/{name}", b"evil")
    ends(queue, "runs", Outcome("exited", 0))
    said = lines(page.get(f"{JOBS}/runs/log").text)
    assert "".join(each.get("text", "") for each in said) == "one\n"


def test_a_long_log_starts_at_its_end_and_says_how_much_is_left_out(
    page: TestClient, queue: Queue, write: Write
) -> None:
    for _ in range(4):
        write("runs", b"x" * 200_000)
    write("runs", b"the end")
    ends(queue, "runs", Outcome("exited", 0))
    said = lines(page.get(f"{JOBS}/runs/log").text)
    assert said[0] == {"skipped": 400_000}
    assert "".join(each.get("text", "") for each in said).endswith("xthe end")


@pytest.mark.parametrize(
    ("verb", "path", "said"),
    [
        ("GET", f"{JOBS}/missing", "there is no job missing in gs://a-bucket"),
        ("GET", f"{JOBS}/missing/log", "there is no job missing"),
        ("GET", f"{JOBS}/missing/log.txt", "there is no job missing"),
        ("POST", f"{JOBS}/missing/stop", "there is no job missing"),
        ("POST", f"{JOBS}/missing/resubmit", "there is no job missing"),
        ("GET", f"{JOBS}/%22%3Cb%3E", "is not a job name"),
        ("GET", "/api/places/other/jobs/runs", "the dashboard does not look into 'other'"),
        ("POST", "/api/places/other/drift", "the dashboard does not look into 'other'"),
        ("POST", f"/api/places/{BUCKET}/drift", "a-bucket is a bucket, not a stack"),
        ("GET", f"/api/places/{BUCKET}/curves", "'' is not a folder of a training"),
        ("GET", f"/api/places/{BUCKET}/curves?training=../x", "is not a folder of a training"),
    ],
)
def test_wrong_input_is_answered_with_one_message(
    page: TestClient, verb: str, path: str, said: str
) -> None:
    answer = page.request(verb, path)
    assert answer.status_code == 400
    assert said in answer.json()["problem"]


def test_a_bucket_that_is_gone_is_a_message_that_says_what_to_do(
    page: TestClient, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tpustack.jobs.queue.Bucket", lambda _name, send: type(queue.store)("gone", send)
    )
    answer = page.get(f"{JOBS}/runs")
    assert answer.status_code == 400
    assert "there is no bucket gs://gone: the stack is down" in answer.json()["problem"]
