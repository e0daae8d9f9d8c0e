"""A headless Chromium, driven over a pipe by its DevTools protocol: no driver, no further library.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from tpustack.dashboard.server import address, listen, server

PICTURES = Path(__file__).parents[1] / "build" / "pictures"
"""Pictures of pages, for people to look at."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE = 30.0
_END = b"\0"
_FAINT = """(least) => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const part = (value) =>
    value <= 10 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const light = ([red, green, blue]) =>
    0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
  const mix = (over, under) => {
    const [red, green, blue, alpha = 1] = over;
    return [red, green, blue].map((value, at) => alpha * value + (1 - alpha) * under[at]);
  };
  const behind = (element) =>
    element
      ? mix(parse(getComputedStyle(element).backgroundColor), behind(element.parentElement))
      : [255, 255, 255];
  const opacity = (element) =>
    element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3);
    const own = texts.map((node) => node.data.trim()).join("");
    const hidden = ":disabled, noscript, [aria-hidden=true]";
    if (!own || element.closest(hidden) || !element.checkVisibility({checkOpacity: true})) continue;
    const style = getComputedStyle(element);
    const [red, green, blue, alpha = 1] = parse(
      element instanceof SVGElement ? style.fill : style.color
    );
    const paper = behind(element);
    const ink = mix([red, green, blue, alpha * opacity(element)], paper);
    const [high, low] = [light(ink), light(paper)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < least) faint.push([own.slice(0, 40), Math.round(ratio * 100) / 100]);
  }
  return faint;
}"""


def find_browser() -> str | None:
    """Return the path of a Chromium; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab of a browser that is driven here."""

    def __init__(self, sending: int, receiving: int) -> None:
        self._out, self._in = sending, receiving
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Network.enable")

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show an address in a window of that size."""
        mobile = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """Return what JavaScript makes of an expression, waited for. Raises RuntimeError."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait(self, expression: str, patience: float = _PATIENCE) -> Any:
        """Return an expression's value as soon as it is true. Raises TimeoutError."""
        deadline = time.monotonic() + patience
        while not (found := self.value(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} is not true after {patience} s; {self.errors}")
            time.sleep(0.05)
        return found

    def press(self, key: str) -> None:
        """Press a key, and let go of it."""
        text = {"Enter": "\r", "Tab": ""}.get(key, key if len(key) == 1 else "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27}.get(key, 0)
        about = {"key": key, "text": text, "windowsVirtualKeyCode": code}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **about)

    def picture(self, path: Path) -> None:
        """Write what is seen as a PNG, in a folder that it makes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def faint(self, least: float = 4.5) -> list[Any]:
        """Return the texts that are seen with less than a contrast of `least`, by WCAG 2.2."""
        return list(self.value(f"({_FAINT})({least})"))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol on this tab. Raises RuntimeError."""
        return self._call(method, sessionId=self._session, **parameters)

    def _call(self, method: str, sessionId: str = "", **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if sessionId and self._session:
            message["sessionId"] = sessionId
        os.write(self._out, json.dumps(message).encode() + _END)
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer = self._next(deadline)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
            if answer.get("method") == "Runtime.exceptionThrown":
                details = answer["params"]["exceptionDetails"]
                self.errors.append(json.dumps(details)[:1000])

    def _next(self, deadline: float) -> dict[str, Any]:
        while _END not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self._rest += piece
        message, _, self._rest = self._rest.partition(_END)
        return dict(json.loads(message))


@contextlib.contextmanager
def browsing() -> Iterator[Page]:
    """Start a browser, and end it.

    Raises:
        FileNotFoundError: there is none.
    """
    browser = find_browser()
    if browser is None:
        raise FileNotFoundError(f"no browser is installed: {', '.join(NAMES)}")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # It reads from its file descriptor 3 and writes to 4.
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            ["bash", "-c", script, browser, *_options(profile), "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Page(ours_out, ours_in)
        finally:
            os.close(ours_out)
            os.close(ours_in)
            process.terminate()
            process.wait()


def _options(profile: str) -> list[str]:
    return [
        "--headless=new",
        "--remote-debugging-pipe",
        # In a container it has no namespaces of its own; it sees only pages of the tests.
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--proxy-server=direct://",
        f"--user-data-dir={profile}",
    ]


@contextlib.contextmanager
def serving(app: ASGIApp, token: str) -> Iterator[str]:
    """Serve on a port of this machine, and give the address that opens the page."""
    with listen(0) as listener:
        running = server(app, listener, token)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address(listener, token)
        finally:
            running.should_exit = True
            thread.join()
