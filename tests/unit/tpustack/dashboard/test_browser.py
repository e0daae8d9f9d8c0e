"""The page in a real browser, where one is installed: hostile text, fast logs, a phone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings, strategies as st

from localcloud import faults
from localcloud.testing import Client
from tests.browser import PICTURES, Page, browsing, find_browser, serving
from tests.unit.tpustack.dashboard.conftest import TOKEN, Write, a_stack, engine, make_tpu
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpu_core import ledger
from tpu_infra.names import names_of
from tpu_training.goodput import account
from tpustack.cloud.google import ApiError, Google
from tpustack.dashboard.server import Application
from tpustack.dashboard.sources import Place, Source
from tpustack.engine.stack import Change

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed"),
    pytest.mark.xdist_group("browser"),
]
HOSTILE = "<img src=x onerror=document.title='won'>"
BUTTONS = "[...document.querySelectorAll('#jobs-rows button')]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with browsing() as page:
        yield page


@pytest.fixture
def url(queue: Queue, google: Google, place: Place) -> Iterator[str]:
    with serving(Application([place], google).asgi, TOKEN) as found:
        yield found


@pytest.fixture
def shown(browser: Page, url: str) -> Page:
    """The page with its jobs."""
    browser.open("about:blank")
    browser.open(url)
    browser.wait("document.querySelectorAll('#jobs-rows tr').length >= 2")
    return browser


def opened(page: Page, job: str) -> None:
    page.value(f"{BUTTONS}.find((button) => button.textContent === '{job}').click()")
    page.wait("document.querySelector('#job').open")


def test_without_the_token_the_page_says_how_to_get_in(browser: Page, url: str) -> None:
    browser.open("about:blank")
    browser.open(url.partition("#")[0])
    browser.wait("document.querySelector('#alert')?.textContent.includes('open the address')")


def test_hostile_names_commands_and_lines_stay_text(
    shown: Page, queue: Queue, write: Write
) -> None:
    spec = Spec(HOSTILE, env={HOSTILE: "x"}, source=HOSTILE)
    queue.add(Job("hostile", "3", spec, time.time(), by=HOSTILE, reason=HOSTILE))
    write("hostile", f"{HOSTILE}\n\x1b[31mred\x1b[0m\nold\rnew\n\x07\u202etrick\n".encode())
    shown.wait("document.querySelectorAll('#jobs-rows tr').length === 3")
    opened(shown, "hostile")
    shown.wait("document.querySelector('#log').textContent.includes('trick')")
    shown.wait("document.querySelector('#job-facts').textContent.includes('onerror')")
    log = shown.value("document.querySelector('#log').textContent")
    assert f"{HOSTILE}\nred\nnew\n\ufffd\ufffdtrick" in log
    assert shown.value("document.querySelectorAll('img').length") == 0
    assert shown.value("document.title") == "(1 running) tpu-stack"


MARKUP = st.text(st.sampled_from("<>&\"'`/=!-[]{}abisvgon \x00\n\u2028é")) | st.text()


@settings(max_examples=40)
@given(st.lists(MARKUP, min_size=1, max_size=20))
def test_no_text_becomes_an_element_or_gets_lost(browser: Page, texts: list[str]) -> None:
    # Half a pair of surrogates has no JSON that both ends write the same way.
    texts = [text.encode(errors="replace").decode() for text in texts]
    made = browser.value(
        f"""(async () => {{
          const {{ h, cell }} = await import("/dom.js");
          return {json.dumps(texts)}.map((text) => {{
            const made = cell(text, h("b", {{ title: text }}, text));
            return [made.textContent, made.querySelectorAll("*").length];
          }});
        }})()"""
    )
    assert made == [[text, 1] for text in texts]


def test_a_fast_log_is_bounded_and_does_not_scroll_away_from_the_reader(
    shown: Page, write: Write
) -> None:
    count = 0

    def second() -> None:
        nonlocal count
        rows = [f"row {number}" for number in range(count, count + 3000)]
        count += len(rows)
        write("runs", ("\n".join(rows) + "\n" + "x" * 1_000_000 + "\n").encode())

    for _ in range(2):
        second()
    opened(shown, "runs")
    shown.wait("document.querySelector('#log').textContent.includes('row 5999')")
    assert shown.value("document.querySelector('#log').textContent.split('\\n').length") <= 2300
    assert "(1,000,000 characters)" in shown.value("document.querySelector('#log').textContent")
    shown.value("document.querySelector('#log').scrollTop = 0")
    shown.wait("!document.querySelector('#log-follow').hidden")
    before = shown.value("document.querySelector('#log').textContent")
    second()
    shown.wait("document.querySelector('#log-follow').textContent.startsWith('Follow, ')")
    assert shown.value("document.querySelector('#log').textContent") == before
    shown.value("document.querySelector('#log-follow').click()")
    shown.wait("document.querySelector('#log').textContent.includes('row 8999')")


def test_a_preemption_appears_without_a_reload(
    browser: Page, client: Client, queue: Queue, google: Google
) -> None:
    stack = a_stack("dev")
    tpu = names_of(stack.settings, "dev").tpu if stack.settings else ""
    make_tpu(client, tpu)
    with serving(Application([stack], google).asgi, TOKEN) as url:
        browser.open(url)
        browser.wait("document.querySelector('#tpus-rows .state')?.textContent === 'READY'")
        faults.put(client.local_cloud.cloud, "preempt", {"name": tpu})
        news = f"TPU {tpu}: READY → PREEMPTED"
        browser.wait(f"document.querySelector('#news').textContent.includes('{news}')")
        assert browser.value("document.querySelector('#tpus-rows .state').textContent") == (
            "PREEMPTED"
        )


def test_compare_shows_what_was_changed_by_hand(
    browser: Page, google: Google, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    change = Change("update", "gcp:storage/bucket:Bucket", "bucket", ("labels.team",))
    cell = "document.querySelector('#stacks-rows td:last-child')"
    with serving(Application([a_stack("dev")], google).asgi, TOKEN) as url:
        browser.open(url)
        for changes, words in (((), "no change"), ((change,), "update bucket (labels.team); Rev")):
            engine(monkeypatch, project, *changes)
            browser.wait(f"!!{cell}?.querySelector('button')")
            browser.value(f"{cell}.querySelector('button').click()")
            browser.wait(f"{cell}.textContent.includes({words!r})")
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_the_screen(shown: Page, url: str, dark: bool) -> None:
    shown.open("about:blank")
    shown.open(url, width=360, height=740, dark=dark)
    shown.wait("document.querySelectorAll('#jobs-rows tr').length >= 2")
    assert shown.value("document.documentElement.scrollWidth") <= 360
    paper = shown.value("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
    opened(shown, "runs")
    assert shown.value("document.querySelector('#job').scrollWidth") <= 360


def test_a_job_is_found_and_opened_by_keyboard(shown: Page) -> None:
    shown.press("/")
    for letter in "waits":
        shown.press(letter)
    shown.wait("document.querySelectorAll('#jobs-rows tr').length === 1")
    for _ in range(2):
        shown.press("Tab")
    assert shown.value("document.activeElement.textContent") == "waits"
    shown.press("Enter")
    shown.wait("document.querySelector('#job').open")
    shown.press("Escape")
    shown.wait("!document.querySelector('#job').open")
    assert shown.value("document.activeElement.textContent") == "waits"


CURVES = {
    "goodput/away": [[703, 0.1]],
    "gradient_norm/dense": [[1, 0.5], [703, 0.2]],
    "seconds_per_step/input": [[1, 0.01], [703, 0.02]],
    "test/accuracy": [[703, 0.95]],
    "train/accuracy": [[1, 0.1], [703, 0.97]],
    "train/examples_per_second": [[1, 900.0], [703, 4000.0]],
    "train/learning_rate": [[1, 0.001], [350, 0.01], [703, 0.0]],
    "train/loss": [[1, 2.3], [100, 0.8], [300, 0.3], [703, 0.09]],
    "validation/loss": [[100, 0.9], [300, 0.4], [703, 0.15]],
}
DRAWN = "[...document.querySelectorAll('#job-charts > .charts > figure')]"


def with_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpustack.dashboard.server.curves", lambda *_: CURVES)


def opened_curves(page: Page) -> None:
    opened(page, "runs")
    page.value("document.querySelector('#job-curves').open = true")
    page.wait(f"{DRAWN}.length === 4")


def test_loss_comes_first_splits_share_a_picture_and_the_rest_is_folded(
    shown: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_curves(monkeypatch)
    opened_curves(shown)
    names = shown.value(f"{DRAWN}.map((each) => each.dataset.id)")
    assert names == ["loss", "accuracy", "learning_rate", "examples_per_second"]
    assert shown.value(f"{DRAWN}[0].querySelectorAll('polyline').length") == 2
    # A single point is a dot.
    assert shown.value(f"{DRAWN}[1].querySelectorAll('circle').length") == 1
    folded = "[...document.querySelectorAll('#job-charts details')]"
    assert shown.value(f"{folded}.map((each) => [each.dataset.group, each.open])") == [
        ["goodput", False],
        ["gradient_norm", False],
        ["seconds_per_step", False],
    ]
    # Its one step has one label.
    assert shown.value(f"{folded}[0].querySelectorAll('svg text').length") == 2


def test_a_lost_server_is_told_in_the_dialog_whose_buttons_rest(
    browser: Page, queue: Queue, google: Google, place: Place
) -> None:
    with serving(Application([place], google).asgi, TOKEN) as url:
        browser.open("about:blank")
        browser.open(url)
        browser.wait("document.querySelectorAll('#jobs-rows tr').length >= 2")
        opened(browser, "runs")
        browser.wait("!document.querySelector('#job-stop').hidden")
        assert not browser.value("document.querySelector('#job-stop').matches(':disabled')")
    browser.wait("document.querySelector('#job-link').textContent.startsWith('Lost the conn')")
    assert browser.value("document.querySelector('#job-stop').matches(':disabled')")
    assert not browser.value("document.querySelector('#job-close').matches(':disabled')")
    assert "Failed to fetch" not in browser.value("document.body.textContent")


class Refusing(Google):
    """Refuses one bucket."""

    refused, status = "", 403

    def exchange(self, method: str, url: str, *rest: Any) -> Any:
        if f"/b/{self.refused}/" in url:
            raise ApiError(self.status, "no access")
        return super().exchange(method, url, *rest)


def test_one_stack_of_ten_refused_is_one_line_and_the_others_are_not_deployed(
    browser: Page, client: Client, queue: Queue
) -> None:
    stacks = [a_stack(f"stack{number}") for number in range(10)]
    google = Refusing(client.session)
    google.refused = stacks[3].bucket
    with serving(Application(stacks, google).asgi, TOKEN) as url:
        browser.open("about:blank")
        browser.open(url)
        states = "[...document.querySelectorAll('#stacks-rows .state')].map((e) => e.textContent)"
        browser.wait(f"{states}.length === 10")
        assert browser.value(states) == ["not deployed"] * 3 + ["no access"] + ["not deployed"] * 6
        browser.wait("document.querySelector('#stacks-rows').textContent.includes('objectUser')")
        for part in ("stacks", "jobs", "goodput"):
            browser.wait(f"document.querySelector('#{part}-problems').textContent === ''")
        assert "running now $0.00/h" in browser.value(
            "document.querySelector('#stacks-count').textContent"
        )


def test_a_stack_whose_bucket_cannot_be_read_is_not_called_deployed(
    browser: Page, client: Client
) -> None:
    stack = a_stack("stack")
    google = Refusing(client.session)
    google.refused, google.status = stack.bucket, 500
    with serving(Application([stack], google).asgi, TOKEN) as url:
        browser.open("about:blank")
        browser.open(url)
        browser.wait("document.querySelector('#stacks-rows .state')?.textContent === 'unknown'")
        browser.wait("document.querySelector('#jobs-problems').textContent.includes('no access')")


def test_the_page_is_there_long_before_ten_thousand_jobs_are(
    browser: Page, google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"state": "succeeded", "submitted": 1.0, "tries": 1, "command": "python main.py"}
    rows = [{"name": f"job-{number}", **row} for number in range(10_000)]
    source = Source("jobs", "a-bucket", 999.0, lambda: rows)
    monkeypatch.setattr("tpustack.dashboard.server.sources", lambda *_: [source])
    with serving(Application([], google).asgi, TOKEN) as url:
        browser.open("about:blank")
        browser.open(url)
        browser.wait("document.querySelector('#jobs-count').textContent.includes('10000 in all')")
        painted = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        print("first paint", browser.wait(painted), "all", browser.value("performance.now()"))
        assert browser.value(painted) < browser.value("performance.now()") / 2


def test_every_part_of_the_time_is_seen_on_light_and_dark_paper() -> None:
    def light(colour: str) -> float:
        values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return sum(map(float.__mul__, (0.2126, 0.7152, 0.0722), linear))

    for part in account.PARTS:
        for paper in ("#ffffff", "#14171b"):
            low, high = sorted((light(part.colour), light(paper)))
            assert (high + 0.05) / (low + 0.05) >= 3, (part, paper)
    assert len({part.colour for part in account.PARTS}) == len(account.PARTS)


def a_training(queue: Queue) -> None:
    """Two starts of a job, between which its TPU was away."""
    begin = time.time() - 7200
    for number, (after, hours) in enumerate(((0, 0.8), (3600, 0.9))):
        seconds = dict.fromkeys(ledger.PARTS, 0.0)
        seconds |= {"compute": hours * 2400, "input": hours * 500, "load": hours * 300}
        ending = "finished" if number else "TPU preempted"
        entry = ledger.Entry(
            begin + after, hours * 3600, 300 * number, 300 + 400 * number, seconds, "vm", ending
        )
        queue.store.write(f"jobs/runs/model/ledger/{number}.json", entry.to_json().encode())


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_pictures_are_legible_and_ask_no_other_host(
    browser: Page,
    client: Client,
    queue: Queue,
    google: Google,
    place: Place,
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    dark: bool,
) -> None:
    """Each picture stays in build/pictures, for people to look at."""
    with_curves(monkeypatch)
    a_training(queue)
    write("runs", b"".join(b"progress step=%d/703 loss=0.09\n" % row for row in range(200)))
    # The TPUs of one cloud last over all pictures.
    own = f"{'night' if dark else 'day'}-{width}"
    stacks = [a_stack(own), a_stack("prod")]
    name = names_of(stacks[0].settings, own).tpu if stacks[0].settings else ""
    make_tpu(client, name)
    faults.put(client.local_cloud.cloud, "preempt", {"name": name})
    bucket = {"name": stacks[0].bucket, "location": "US-CENTRAL1"}
    client.post("storage.googleapis.com/storage/v1/b", bucket, project="tpu-stack-local")
    kind = f"{width}-{'dark' if dark else 'light'}.png"
    with serving(Application([place, *stacks], google).asgi, TOKEN) as url:
        browser.open("about:blank")
        browser.requests.clear()
        browser.open(url, width=width, dark=dark)
        browser.wait("document.querySelectorAll('#jobs-rows tr').length >= 2")
        browser.wait("document.querySelector('.bar') !== null")
        browser.wait("document.querySelector('#tpus-rows').textContent.includes('recover --st')")
        browser.wait("document.querySelectorAll('#stacks-rows .state').length === 2")
        assert browser.faint() == []
        browser.picture(PICTURES / f"dashboard-{kind}")
        assert browser.value("document.documentElement.scrollWidth") <= width
        opened_curves(browser)
        assert browser.faint() == []
        browser.picture(PICTURES / f"dashboard-job-{kind}")
        # Sources of modules are asked for by the page as well.
        hosts = {urlsplit(asked).netloc for asked in browser.requests}
        assert hosts == {urlsplit(url).netloc}
        assert browser.errors == []
