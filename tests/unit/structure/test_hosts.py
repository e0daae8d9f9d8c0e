"""Credentials go to Google's APIs only, whatever an address says, and no host comes from data."""

from __future__ import annotations

import ast
import email.message
import io
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.response import addinfourl

import pytest
import requests
from requests.adapters import HTTPAdapter

from tests.unit.structure.modules import ROOT, sources
from tpu_agent.main import Machine
from tpu_core.google import MachineToken, Transport, vertex_root
from tpu_infra import credentials
from tpu_infra.credentials import Given
from tpu_infra.rest import Api
from tpu_training.cluster import google
from tpustack.ci.forge import forge_of
from tpustack.cloud.google import Google
from tpustack.jobs.vertex import _BOOT

# Google warns of credentials from elsewhere, as those here are.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
TOKEN = "ya29.SECRET"
_PERSON = (
    '{"type": "authorized_user", "refresh_token": "r", "client_id": "i", "client_secret": "s"}'
)
GOOGLE = "https://storage.googleapis.com/storage/v1/b/x"
EVIL = "https://evil.example/collect"
HOSTILE = [
    "https://evil.example/collect?-aiplatform.googleapis.com/v1/projects",
    "https://evil.example/.googleapis.com/v1",
    "https://evil.example#.googleapis.com/v1",
    "https://evil.example\\.googleapis.com/v1",
    "https://evil.example\\@storage.googleapis.com/v1",
    "https://evilgoogleapis.com/v1",
    "https://googleapis.com.evil.example/v1",
    "https://storage.googleapis.com@evil.example/v1",
    "https://storage.googleapis.com:443@evil.example/v1",
    "https://storage.googleapis.com:8443/v1",
    "https://storage.googleapis.com%2eevil.example/v1",
    "http://storage.googleapis.com/v1",
    "ftp://storage.googleapis.com/v1",
]


def of_the_command_line(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", TOKEN)
        patch.setattr("tpustack.cloud.google._PATIENCE", 0.0)
        Google().get(url)


def of_infra(url: str) -> None:
    Api(url, "API", credentials.client(Given(token=TOKEN)), sleep=lambda _: None).get("")


def as_another_account(url: str) -> None:
    """With google-auth's own session, as `gcloud auth application-default login` gives it."""
    given = Given(key=_PERSON)
    session: Any = credentials.session(given)
    session.credentials.token = TOKEN
    session.get(url)


def of_the_agent(url: str) -> None:
    machine: Any = Machine()
    machine.metadata = lambda path: (f'{{"access_token": "{TOKEN}"}}', "")
    status, _ = machine.client.call("GET", url, None)
    assert status >= 300


def of_the_jobs(url: str) -> None:
    answer = f'{{"access_token": "{TOKEN}", "expires_in": 3600}}'
    assert Transport(MachineToken(lambda path: answer))("GET", url, {}, None)[0] >= 300


def of_a_training(url: str) -> None:
    """With the token that its environment names, as TensorFlow takes it."""
    bucket = google.bucket("b", {"GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN})
    assert bucket._send("GET", url, {}, None)[0] >= 300


CLIENTS: list[Callable[[str], object]] = [
    of_the_command_line,
    as_another_account,
    of_infra,
    of_the_agent,
    of_the_jobs,
    of_a_training,
]
NAMES = ["tpustack", "google-auth", "infra", "agent", "jobs", "training"]


def of_a_container(url: str) -> None:
    """What Vertex AI starts in a container; all of its addresses are constants."""
    read = _BOOT[_BOOT.index("def read") : _BOOT.index("account =")]
    scope: dict[str, Any] = {"urllib": urllib}
    exec(read, scope)
    scope["read"](url, Authorization=f"Bearer {TOKEN}")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The requests that leave this process, each with its credentials; all are redirected."""
    found: list[tuple[str, str]] = []

    def note(url: str, headers: Any) -> dict[str, str]:
        found.append((url, str(sorted(headers.items()))))
        return {"Location": f"{EVIL}/{len(found)}"}

    def send(self: object, request: requests.PreparedRequest, *_: Any, **__: Any) -> Any:
        answer = requests.Response()
        answer.status_code, answer.raw = 302, io.BytesIO()
        answer.request, answer.url = request, str(request.url)
        answer.headers.update(note(str(request.url), request.headers))
        return answer

    def opened(self: object, request: urllib.request.Request) -> addinfourl:
        headers = email.message.Message()
        given = {**request.headers, **request.unredirected_hdrs}
        headers["Location"] = note(request.full_url, given)["Location"]
        answer: Any = addinfourl(io.BytesIO(), headers, request.full_url, 302)
        answer.msg = "Found"
        return answer  # type: ignore[no-any-return]

    def refuse(*_: object) -> None:
        raise AssertionError("the test reaches the network")

    monkeypatch.setattr(HTTPAdapter, "send", send)
    monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", opened)
    monkeypatch.setattr(urllib.request.HTTPHandler, "http_open", opened)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return found


def to_others(sent: list[tuple[str, str]], secret: str = TOKEN) -> list[str]:
    return [url for url, headers in sent if secret in headers and not url.startswith(GOOGLE)]


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.parametrize("ask", CLIENTS, ids=NAMES)
def test_no_client_sends_credentials_to_another_host(
    ask: Callable[[str], object], url: str, sent: list[tuple[str, str]]
) -> None:
    with pytest.raises(Exception, match=r"the only host that gets|connection adapters"):
        ask(url)
    assert to_others(sent) == []


@pytest.mark.parametrize("ask", [*CLIENTS, of_a_container], ids=[*NAMES, "container"])
def test_no_client_takes_them_along_where_an_answer_leads_elsewhere(
    ask: Callable[[str], object], sent: list[tuple[str, str]]
) -> None:
    with suppress(Exception):
        ask(GOOGLE)
    assert TOKEN in sent[0][1]
    assert to_others(sent) == []


@pytest.mark.parametrize(
    "forge",
    [
        {"GITHUB_REPOSITORY": "o/n", "GITHUB_TOKEN": TOKEN},
        {
            "GITLAB_CI": "true",
            "CI_API_V4_URL": "https://gitlab.example/api/v4",
            "CI_PROJECT_ID": "1",
            "GITLAB_TOKEN": TOKEN,
        },
    ],
)
def test_a_forges_token_stays_with_the_forge(
    forge: dict[str, str], sent: list[tuple[str, str]]
) -> None:
    with suppress(Exception):
        forge_of(forge)._api.bytes("/artifacts/1/zip")
    assert TOKEN in sent[0][1]
    assert [url for url, headers in sent if TOKEN in headers and url.startswith(EVIL)] == []


@pytest.mark.parametrize(
    "region", ["evil.example/collect?", "us-central1.evil", "", "us-central1\n"]
)
def test_a_regions_host_is_that_of_a_region(region: str) -> None:
    with pytest.raises(ValueError, match="is not a region of Google's"):
        vertex_root(region)


# Each was looked at: what stands in the host, and why no credentials can get to it.
REVIEWED = {
    "tools/docs_site.py": "the git remote of this checkout, for a link; nothing is sent",
    "core/tpu_core/google.py": "a region that matches a pattern; the metadata server, no token",
    "tpustack/dashboard/server.py": "the names of this machine, to compare with; a printed line",
}
_HOST = re.compile(r"https?://[^/?#]*\{")


def hosts_from_data(path: Path) -> Iterator[int]:
    """The lines with a text that begins as a URL and has something else within its host."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        text = ""
        if isinstance(node, ast.JoinedStr):
            # A name in capitals is a constant of its module.
            text = "".join(map(_shown, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = re.sub(r"%[sd(]", "{", node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left = node.left.value if isinstance(node.left, ast.Constant) else ""
            text = f"{left}{{" if isinstance(left, str) else ""
        if _HOST.match(text):
            yield getattr(node, "lineno", 0)


def _shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else part
    is_constant = isinstance(value, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z_]+", value.id)
    return "constant" if is_constant else "{"


@pytest.mark.parametrize("text", ['f"https://{x}-a.b/c"', '"https://%s/c" % x', '"https://" + x'])
def test_a_host_from_data_is_found(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.py"
    path.write_text(f"u = {text}\n")
    assert list(hosts_from_data(path)) == [1]


def files_with(what: Callable[[Path], bool]) -> set[str]:
    rooms = (
        "tpu_core",
        "tpu_agent",
        "infra",
        "tpu_training",
        "tpustack",
        "policy",
        "bootstrap",
        "tools",
    )
    found = (path for room in rooms for path in sources(room) if what(path))
    return {str(path.relative_to(ROOT)) for path in found}


def test_no_host_is_built_from_data() -> None:
    assert files_with(lambda path: any(hosts_from_data(path))) == set(REVIEWED)


# Those that send credentials, each of which the tests above attack.
SENDERS = {
    "infra/tpu_infra/credentials.py",
    "core/tpu_core/google.py",
    "tpustack/ci/forge.py",
    "tpustack/jobs/vertex.py",
}


def test_no_other_file_sends_credentials() -> None:
    sends = re.compile(r"Authorization|AuthorizedSession|PRIVATE-TOKEN")
    assert files_with(lambda path: bool(sends.search(path.read_text()))) == SENDERS
