"""Google as a function that tests can count, refuse or kill: (method, URL, text) -> answer."""

from __future__ import annotations

import json
from urllib.parse import quote

from tpu_core.google import Answer, Body, Call, Client, Json


class FakeClient(Client):
    """A client whose every call, also of a bucket, goes through one function.

    It sees an object's content alone, whose name is in the URL.
    """

    def __init__(self, call: Call) -> None:
        self.function = call
        super().__init__(self._send)

    def _send(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        text = None if body is None else bytes(body).decode()  # type: ignore[arg-type]
        if text and "uploadType=multipart" in url:
            head, content = (
                part.partition("\r\n\r\n")[2] for part in text.split("--" + _mark(headers))[1:3]
            )
            name = quote(json.loads(head)["name"], safe="/")
            url = url.replace("uploadType=multipart", f"uploadType=media&name={name}")
            text = content.removesuffix("\r\n")
        status, answer = self.function(method, url, text)
        if "uploadType" in url and status == 200:
            answer = {"generation": "1", **answer}
        number = "1"
        if status == 200 and url.endswith("?alt=media"):
            about: Json = self.function("GET", url.removesuffix("?alt=media"), None)[1]
            number = str(about.get("generation", "1"))
        return status, {"x-goog-generation": number}, json.dumps(answer).encode()


def _mark(headers: dict[str, str]) -> str:
    return headers["Content-Type"].partition("boundary=")[2]
