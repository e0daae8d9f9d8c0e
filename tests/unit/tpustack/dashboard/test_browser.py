"""The page in a real browser, where one is installed: hostile text, fast logs, a phone."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.names import names_of
from localcloud import faults
from localcloud.testing import Client
from tests.browser import Page, browsing, find_browser, serving
from tests.unit.tpustack.dashboard.conftest import TOKEN, Write, a_stack, engine, make_tpu
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpustack.cloud.google import Google
from tpustack.dashboard.server import Application
from tpustack.dashboard.sources import Place
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
        for changes, words in (((), "no change"), ((change,), "update bucket (labels.team); Put")):
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
