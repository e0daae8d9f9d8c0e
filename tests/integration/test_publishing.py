"""A release goes to a package index that trusts its workflow, and is installed from there.

The index is one of the test's own, on this machine, with the answers that PyPI's pages about
trusted publishers and its upload API document. The client is uv: the action of the workflow needs
GitHub. Nothing here signs attestations.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest
import trustme

from tests.serving import in_thread
from tests.wheels import PACKAGES

from .conftest import output
from .installed import UV

pytestmark = pytest.mark.xdist_group("installed")
Command = list[str | Path]
IDENTITY, TOKEN = "identity-of-the-workflow", "pypi-for-minutes"


class Index(ThreadingHTTPServer):
    """A package index and, for the workflow, GitHub's issuer of identities.

    Attributes:
        files: what was uploaded, by name.
        audience: whom an identity is asked for.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.audience = "not asked"
        self.trusted = True
        self.authority = folder / "authority.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server_port}"

    def upload(self, *files: Path) -> str:
        """Publish files as the job of a workflow on GitHub does."""
        job = {
            "GITHUB_ACTIONS": "true",
            "ACTIONS_ID_TOKEN_REQUEST_URL": f"{self.url}/identity?of=job",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "job",
        }
        command: Command = [
            UV,
            "publish",
            "--trusted-publishing",
            "always",
            "--no-attestations",
        ]
        return self.run([*command, "--publish-url", f"{self.url}/legacy/", *files], job)

    def run(self, command: Command, job: Mapping[str, str] = MappingProxyType({})) -> str:
        """Run a client that trusts the index, and return what it writes."""
        trust = {"SSL_CERT_FILE": str(self.authority), "NO_PROXY": "127.0.0.1"}
        return output(command, {**os.environ, **job, **trust})


class Handler(BaseHTTPRequestHandler):
    """Answers a client as PyPI would."""

    server: Index

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Tell the audience, identify the job, list a project's files, or send one."""
        name = self.path.strip("/").rpartition("/")[2]
        if self.path == "/_/oidc/audience":
            self._answer(200, json.dumps({"audience": "index"}))
        elif self.path.startswith("/identity?"):
            self.server.audience = self.path.partition("audience=")[2]
            self._answer(200, json.dumps({"value": IDENTITY}))
        elif self.path.startswith("/simple/"):
            of = [file for file in self.server.files if _project(file) == name]
            links = "".join(f'<a href="/files/{file}">{file}</a>' for file in of)
            self._answer(200 if of else 404, links, "text/html")
        else:
            self._answer(200, self.server.files[name], "application/octet-stream")

    def do_POST(self) -> None:
        """Give a token for an identity, or take a file for a token."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/_/oidc/mint-token":
            known = self.server.trusted and json.loads(content)["token"] == IDENTITY
            failed = json.dumps({"message": "no publisher", "errors": []})
            answer = json.dumps({"success": True, "token": TOKEN}) if known else failed
            self._answer(200 if known else 422, answer)
            return
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        form = BytesParser(policy=HTTP).parsebytes(head + content)
        parts = {
            str(part.get_param("name", header="content-disposition")): part
            for part in form.iter_parts()
        }
        file = parts["content"]
        data = file.get_payload(decode=True)
        assert isinstance(data, bytes)
        digest = str(parts["sha256_digest"].get_payload()).strip()
        if hashlib.sha256(data).hexdigest() != digest:
            self._answer(400, "The digest supplied does not match a digest calculated")
            return
        self.server.files[str(file.get_filename())] = data
        self._answer(200, "")

    def _answer(self, code: int, text: str | bytes, kind: str = "application/json") -> None:
        body = text.encode() if isinstance(text, str) else text
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _project(file: str) -> str:
    return file.partition("-")[0].replace("_", "-")


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with in_thread(Index(tmp_path)) as server:
        yield server


def test_a_release_is_published_without_a_password_and_installed_from_the_index(
    index: Index, wheels: dict[str, Path], tmp_path: Path
) -> None:
    index.upload(*wheels.values())
    assert index.audience == "index"
    assert index.files == {path.name: path.read_bytes() for path in wheels.values()}
    assert len(index.files) == len(PACKAGES)
    names = {_project(path.name) for path in wheels.values()}
    command: Command = [
        UV,
        "pip",
        "install",
        "--no-config",
        "--no-cache",
        "--no-deps",
        "--target",
        tmp_path,
    ]
    index.run([*command, "--default-index", f"{index.url}/simple/", *names])
    assert (tmp_path / "bin" / "tpustack").is_file()


def test_an_index_that_does_not_trust_the_workflow_gets_nothing(
    index: Index, wheels: dict[str, Path]
) -> None:
    index.trusted = False
    with pytest.raises(AssertionError, match="no publisher"):
        index.upload(wheels["core"])
    assert index.files == {}
