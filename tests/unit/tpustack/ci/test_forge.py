from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tpustack.ci import forge, output
from tpustack.ci.forge import Forge, forge_of
from tpustack.ci.markdown import text
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import Result
from tpustack.errors import TpustackError, UsageError

DRIFTED, FINE = Result("dev", Outcome.DRIFT), Result("dev", Outcome.NO_CHANGE)


class Server(ThreadingHTTPServer):
    """Comments and issues as GitHub and GitLab keep them, a hundred a page."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kept: dict[str, list[dict[str, Any]]] = {}
        self.answers: dict[str, Any] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> list[str]:
        return [each.get("body") or each["description"] for each in self.kept.get(path, [])]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path in self.server.answers:
            return self.answer(self.server.answers[parts.path])
        query = parse_qs(parts.query)
        size, page = (int(query[name][0]) for name in ("per_page", "page"))
        items = self.server.kept.get(parts.path, [])
        if "state" in query:
            items = [item for item in items if item["state"] in ("open", "opened")]
        return self.answer(items[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        items = self.server.kept.setdefault(self.path, [])
        number = len(items) + 1
        items.append(
            {"id": number, "iid": number, "number": number, "state": "open", **self.sent()}
        )
        self.answer(items[-1])

    def do_PATCH(self) -> None:
        path, _, number = self.path.rpartition("/")
        # A comment is changed without its request's number on GitHub.
        path = path.replace("issues/comments", "issues/7/comments")
        sent = self.sent()
        if sent.get("state_event") == "close":
            sent["state"] = "closed"
        self.server.kept[path][int(number) - 1] |= sent
        self.answer({})

    do_PUT = do_PATCH

    def sent(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return loaded

    def answer(self, body: Any) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *arguments: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


GITHUB = ("/repos/me/mine/issues/7/comments", "/repos/me/mine/issues")
GITLAB = ("/projects/5/merge_requests/7/notes", "/projects/5/issues")


@pytest.fixture(params=["github", "gitlab"])
def made(request: pytest.FixtureRequest, server: Server) -> tuple[Forge, str, str]:
    """A forge, and the paths of its comments and issues."""
    if request.param == "github":
        variables = {"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": "me/mine"}
        return forge_of({**variables, "GITHUB_TOKEN": "t"}), *GITHUB
    variables = {"GITLAB_CI": "true", "CI_API_V4_URL": server.url, "CI_PROJECT_ID": "5"}
    return forge_of({**variables, "GITLAB_TOKEN": "t"}), *GITLAB


def test_a_comment_is_updated_and_not_repeated_however_many_there_are(
    made: tuple[Forge, str, str], server: Server
) -> None:
    there, comments, _ = made
    others = [{"id": number + 1, "body": f"talk {number}"} for number in range(150)]
    server.kept[comments] = others
    for result in (Result("dev", Outcome.CHANGES), FINE, FINE):
        forge.comment(there, 7, {"dev": text("preview", result)})
    forge.comment(there, 7, {"prod": text("preview", Result("prod", Outcome.CHANGES))})
    said = server.bodies(comments)
    assert len(said) == 152
    assert "`dev`: no change" in said[150]
    assert "`prod`: changes" in said[151]


def test_drift_opens_one_issue_which_is_closed_when_it_is_put_right(
    made: tuple[Forge, str, str], server: Server
) -> None:
    there, _, issues = made
    forge.issue(there, {"dev": text("drift", FINE)}, set())
    assert server.bodies(issues) == []
    for _ in range(2):
        forge.issue(there, {"dev": text("drift", DRIFTED)}, {"dev"})
    assert [each["state"] for each in server.kept[issues]] == ["open"]
    forge.issue(there, {"dev": text("drift", FINE)}, set())
    assert [each["state"] for each in server.kept[issues]] == ["closed"]


def archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writer:
        for name in names:
            writer.writestr(name, "{}")
    return packed.getvalue()


def test_the_plans_of_the_merged_request_are_found(
    made: tuple[Forge, str, str], server: Server, tmp_path: Path
) -> None:
    there, *_ = made
    zipped = archive("build/ci/dev.plan.json", "dev.md", "../../evil.plan.json", "a b.plan.json")
    github, gitlab = "/repos/me/mine", "/projects/5"
    server.answers = {
        f"{github}/commits/c0/pulls": [
            {"number": 7, "merged_at": "2026-11-21", "head": {"sha": "c1"}}
        ],
        f"{github}/actions/workflows/preview.yml/runs": {"workflow_runs": [{"id": 3}]},
        f"{github}/actions/runs/3/artifacts": {
            "artifacts": [{"id": 4, "name": "plans", "expired": False}]
        },
        f"{github}/actions/artifacts/4/zip": zipped,
        f"{github}/commits/pushed/pulls": [],
        f"{gitlab}/repository/commits/c0/merge_requests": [{"iid": 7, "state": "merged"}],
        f"{gitlab}/jobs/artifacts/refs%2Fmerge-requests%2F7%2Fhead/download": zipped,
        f"{gitlab}/repository/commits/pushed/merge_requests": [],
    }
    found = there.reviewed("c0")
    assert found is not None
    assert found.request == 7
    assert output.unpack_plans(found.archive, tmp_path) == ["dev", "evil"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dev.plan.json", "evil.plan.json"]
    assert there.reviewed("pushed") is None


def test_results_of_another_job_are_read_and_not_trusted(tmp_path: Path) -> None:
    output.write(tmp_path, "drift", [DRIFTED, Result("prod", Outcome.NO_CHANGE)], 1)
    read = output.read(tmp_path)
    assert read.drifted == {"dev"}
    assert read.by_stack["dev"] == text("drift", DRIFTED)
    evil = {"stacks": [{"stack": "../secret", "outcome": "drift"}]}
    (tmp_path / "result.json").write_text(json.dumps(evil))
    with pytest.raises(UsageError, match=r"'\.\./secret' is no stack"):
        output.read(tmp_path)


def test_what_is_missing_to_write_to_a_forge_is_named_all_at_once() -> None:
    with pytest.raises(UsageError, match="GITHUB_REPOSITORY, GITHUB_TOKEN"):
        forge_of({})


def test_a_forge_that_is_not_there_is_an_error_in_words() -> None:
    away = {"GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "t"}
    with pytest.raises(TpustackError, match="can't be reached"):
        list(forge_of(away).issues())
