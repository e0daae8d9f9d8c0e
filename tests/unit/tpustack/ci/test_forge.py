from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from tests.serving import in_thread
from tests.unit.tpustack.conftest import Run
from tpustack.ci import forge, result
from tpustack.ci.command import command
from tpustack.ci.forge import AccessDenied, Api, Forge, GitHub, forge_of, has_ended
from tpustack.ci.result import Outcome, Result, markdown
from tpustack.errors import TpustackError, UsageError

DRIFTED, FINE = Result("dev", Outcome.DRIFT), Result("dev", Outcome.NO_CHANGE)


US = "github-actions[bot]"


def kept(number: int, author: str, body: str = "") -> dict[str, Any]:
    """A comment as both forges keep it."""
    by = {"user": {"login": author}, "author": {"username": author}}
    return {"id": number, "body": body, "description": body, **by}


class Server(ThreadingHTTPServer):
    """Comments and issues as GitHub and GitLab keep them, a hundred a page."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.kept: dict[str, list[dict[str, Any]]] = {}
        self.answers: dict[str, Any] = {}
        self.refused: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def bodies(self, path: str) -> list[str]:
        return [each.get("body") or each["description"] for each in self.kept.get(path, [])]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/user":
            return self.answer({"username": US})
        if parts.path in self.server.answers:
            return self.answer(self.server.answers[parts.path])
        query = parse_qs(parts.query)
        if "per_page" not in query:
            return self.answer({}, 403 if "secret" in parts.path else 404)
        size, page = (int(query[name][0]) for name in ("per_page", "page"))
        items = self.server.kept.get(parts.path, [])
        if "state" in query:
            items = [item for item in items if item["state"] in ("open", "opened")]
        return self.answer(items[(page - 1) * size : page * size])

    def do_POST(self) -> None:
        if self.path in self.server.answers:
            return self.answer(self.server.answers[self.path])
        if self.path == "/graphql":
            assert self.sent() == {"query": "query { viewer { login } }"}
            return self.answer({"data": {"viewer": {"login": US}}})
        if self.path in self.server.refused:
            self.sent()
            return self.answer({"message": "the discussion is locked"}, 403)
        items = self.server.kept.setdefault(self.path, [])
        number = len(items) + 1
        items.append({**kept(number, US), "iid": number, "number": number, "state": "open"})
        items[-1] |= self.sent()
        return self.answer(items[-1])

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

    def answer(self, body: Any, status: int = 200) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *arguments: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with in_thread(Server()) as made:
        yield made


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


def test_a_comment_is_updated_in_place_on_any_page(
    made: tuple[Forge, str, str], server: Server
) -> None:
    there, comments, _ = made
    others = [kept(number + 1, "ada", f"talk {number}") for number in range(150)]
    server.kept[comments] = others
    for each in (Result("dev", Outcome.CHANGES), FINE, FINE):
        forge.post_comments(there, 7, {"dev": markdown("preview", each)})
    forge.post_comments(there, 7, {"prod": markdown("preview", Result("prod", Outcome.CHANGES))})
    said = server.bodies(comments)
    assert len(said) == 152
    assert "`dev`: no change" in said[150]
    assert "`prod`: changes" in said[151]


@pytest.mark.parametrize("author", ["mallory", "github-actions", "", None])
def test_comments_of_other_authors_are_never_changed(
    made: tuple[Forge, str, str], server: Server, author: str | None
) -> None:
    there, comments, issues = made
    theirs = markdown("preview", Result("dev", Outcome.CHANGES))
    drift = markdown("drift", FINE)
    account = None if author is None else {"login": author, "username": author}
    by = {"user": account, "author": account, "number": 1, "iid": 1, "state": "open"}
    server.kept[comments] = [{**kept(1, "", theirs), **by}]
    server.kept[issues] = [{**kept(1, "", drift), **by}]
    forge.post_comments(there, 7, {"dev": markdown("preview", FINE)})
    forge.update_issues(there, {"dev": markdown("drift", DRIFTED)}, {"dev"})
    assert server.bodies(comments)[0] == theirs
    assert server.kept[issues][0]["description"] == drift
    assert len(server.kept[comments]) == len(server.kept[issues]) == 2


def test_a_token_without_an_account_is_an_error(server: Server) -> None:
    refused = {"errors": [{"message": "Bad credentials"}]}
    server.answers["/graphql"] = refused
    there = forge_of(
        {"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": "me/mine", "GITHUB_TOKEN": "t"}
    )
    with pytest.raises(TpustackError, match=r"doesn't return the token's account.*Bad credentials"):
        forge.post_comments(there, 7, {})


def test_drift_opens_one_issue_which_is_closed_when_it_is_put_right(
    made: tuple[Forge, str, str], server: Server
) -> None:
    there, _, issues = made
    forge.update_issues(there, {"dev": markdown("drift", FINE)}, set())
    assert server.bodies(issues) == []
    for _ in range(2):
        forge.update_issues(there, {"dev": markdown("drift", DRIFTED)}, {"dev"})
    assert [each["state"] for each in server.kept[issues]] == ["open"]
    forge.update_issues(there, {"dev": markdown("drift", FINE)}, set())
    assert [each["state"] for each in server.kept[issues]] == ["closed"]


RUNS = {"github": "/repos/me/mine/actions/runs/3/attempts/1", "gitlab": "/projects/5/jobs/4"}


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        *(("completed", True), ("success", True), ("failed", True), ("canceled", True)),
        *(("in_progress", False), ("queued", False), ("running", False), ("canceling", False)),
        ("", False),
    ],
)
def test_the_forge_says_whether_a_run_has_ended(
    status: str, ended: bool, made: tuple[Forge, str, str], server: Server
) -> None:
    there, *_ = made
    of = "github" if isinstance(there, GitHub) else "gitlab"
    if ended and (status == "completed") is not (of == "github"):
        return
    server.answers[RUNS[of]] = {"status": status}
    assert there.has_ended(server.url + RUNS[of]) is ended


@pytest.mark.parametrize(
    "run",
    [
        "https://evil.example/repos/me/mine/actions/runs/3/attempts/1",
        "{0}/repos/me/other/actions/runs/3/attempts/1",
        "{0}/repos/me/mine-too/actions/runs/3/attempts/1",
        "{0}/repos/me/mine/../other/actions/runs/3/attempts/1",
        "{0}/repos/me/mine/actions/runs/3/attempts/1/../../4/attempts/1",
        "{0}/repos/me/mine/actions/runs/9/attempts/1",
        "{0}/projects/5/jobs/9",
        "{0}/projects/50/jobs/4",
        "",
    ],
)
def test_runs_of_other_repositories_are_never_looked_up(
    run: str, made: tuple[Forge, str, str], server: Server
) -> None:
    there, *_ = made
    assert not there.has_ended(run.format(server.url))


def test_outside_of_a_pipeline_no_run_is_known_to_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("GITLAB_CI", "GITHUB_REPOSITORY", "GITHUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert not has_ended("https://api.github.com/repos/me/mine/actions/runs/3/attempts/1")


def archive(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writer:
        for name in names:
            writer.writestr(name, "{}")
    return packed.getvalue()


RUN = {
    "id": 3,
    "event": "pull_request",
    "conclusion": "success",
    "head_sha": "c1",
    "path": ".github/workflows/preview.yml",
    "repository": {"id": 1},
    "head_repository": {"id": 1},
}
PULL = {"number": 7, "merged_at": "x", "merge_commit_sha": "c0", "head": {"sha": "c1"}}
MERGE = {
    "iid": 7,
    "state": "merged",
    "sha": "c1",
    "merge_commit_sha": "c0",
    "source_project_id": 5,
    "target_project_id": 5,
}
PIPELINE = {"id": 3, "source": "merge_request_event", "sha": "c1", "project_id": 5}
JOB = {"id": 4, "name": "preview dev", "status": "success", "artifacts_file": {"filename": "a.zip"}}


def answers(zipped: bytes, **changed: Any) -> dict[str, Any]:
    """What both forges say of one request, of which something may be changed."""
    at, on = "/repos/me/mine", "/projects/5"

    def of(name: str, usual: dict[str, Any]) -> dict[str, Any]:
        return {**usual, **changed.get(name, {})}

    return {
        f"{at}/commits/c0/pulls": [of("pull", PULL)],
        f"{at}/commits/pushed/pulls": [],
        f"{at}/actions/workflows/preview.yml/runs": {"workflow_runs": [of("run", RUN)]},
        f"{at}/actions/runs/3/artifacts": {
            "artifacts": [
                {"id": 4, "name": "plans-dev", "expired": False},
                {"id": 5, "name": "plans-prod", "expired": False},
                {"id": 6, "name": "plans-staging", "expired": True},
                {"id": 7, "name": "plans-../x", "expired": False},
            ]
        },
        f"{at}/actions/artifacts/4/zip": zipped,
        f"{at}/actions/artifacts/5/zip": archive("result.json"),
        f"{on}/repository/commits/c0/merge_requests": [of("merge", MERGE)],
        f"{on}/repository/commits/pushed/merge_requests": [],
        f"{on}/merge_requests/7/pipelines": [of("pipeline", PIPELINE)],
        f"{on}/pipelines/3/jobs": [of("job", JOB)],
        f"{on}/jobs/4/artifacts": zipped,
    }


@pytest.mark.parametrize(
    "changed",
    [
        {"head_repository": {"id": 2}},
        {"head_repository": None},
        {"repository": {}},
        {"event": "workflow_dispatch"},
        {"event": "push"},
        {"conclusion": "failure"},
        {"conclusion": None},
        {"head_sha": "c2"},
        {"path": ".github/workflows/evil.yml"},
        {"path": ".github/workflows/preview.yml/../evil.yml"},
    ],
)
def test_on_github_only_a_requests_own_successful_preview_of_its_last_commit_is_taken(
    server: Server, changed: dict[str, Any]
) -> None:
    server.answers = answers(archive("dev.plan.json"), run=changed)
    variables = {"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": "me/mine"}
    assert forge_of({**variables, "GITHUB_TOKEN": "t"}).reviewed("c0") is None


@pytest.mark.parametrize("changed", [{"merged_at": None}, {"merge_commit_sha": "c9"}])
def test_on_github_a_request_that_only_contains_the_commit_did_not_bring_it(
    server: Server, changed: dict[str, Any]
) -> None:
    server.answers = answers(archive("dev.plan.json"), pull=changed)
    variables = {"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": "me/mine"}
    assert forge_of({**variables, "GITHUB_TOKEN": "t"}).reviewed("c0") is None


def gitlab(server: Server) -> Forge:
    variables = {"GITLAB_CI": "true", "CI_API_V4_URL": server.url, "CI_PROJECT_ID": "5"}
    return forge_of({**variables, "GITLAB_TOKEN": "t"})


@pytest.mark.parametrize(
    "changed",
    [
        {"merge": {"state": "closed"}},
        {"merge": {"merge_commit_sha": "c9"}},
        {"merge": {"merge_commit_sha": None}},
        {"merge": {"source_project_id": 6}},
        {"pipeline": {"source": "push"}},
        {"pipeline": {"sha": "c2"}},
        {"pipeline": {"project_id": 6}},
        {"job": {"name": "lint"}},
        {"job": {"status": "failed"}},
        {"job": {"artifacts_file": None}},
    ],
)
def test_on_gitlab_only_a_requests_own_successful_preview_of_its_last_commit_is_taken(
    server: Server, changed: dict[str, Any]
) -> None:
    server.answers = answers(archive("dev.plan.json"), **changed)
    assert gitlab(server).reviewed("c0") is None


@pytest.mark.parametrize(
    "changed", [{"merge_commit_sha": "c9", "squash_commit_sha": "c0"}, {"sha": "c0"}]
)
def test_on_gitlab_a_squashed_or_fast_forwarded_request_is_found(
    server: Server, changed: dict[str, Any]
) -> None:
    merged = {"merge_commit_sha": None, **changed}
    head = {"sha": changed.get("sha", "c1")}
    server.answers = answers(archive("dev.plan.json"), merge=merged, pipeline=head)
    assert gitlab(server).reviewed("c0") is not None


def previewed(*results: Result, command: str = "preview") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as writer:
        document = {"command": command, "stacks": [each.as_json() for each in results]}
        writer.writestr("build/ci/result.json", json.dumps(document))
        writer.writestr("build/ci/dev.md", "LGTM")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("zipped", "refusal"),
    [
        (previewed(FINE, command="deploy"), "they are from 'deploy', not from 'preview'"),
        (b"PK nothing", "aren't an archive"),
        (archive("dev.plan.json"), "has no results of preview"),
    ],
    # Archives hold the time, and all workers must collect the same names.
    ids=["another command", "no archive", "no results"],
)
def test_on_gitlab_trusted_code_comments_on_every_open_request_and_one_forgery_stops_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch, zipped: bytes, refusal: str
) -> None:
    on = "/projects/5"
    server.answers = {
        **answers(zipped),
        f"{on}/merge_requests/6/pipelines": [{**PIPELINE, "id": 8}],
        f"{on}/merge_requests/8/pipelines": [{**PIPELINE, "id": 8}],
        f"{on}/pipelines/8/jobs": [{**JOB, "id": 9, "status": "failed"}],
        f"{on}/jobs/9/artifacts": previewed(FINE),
    }
    opened = {**MERGE, "state": "opened", "merge_commit_sha": None}
    forks = {**opened, "iid": 9, "source_project_id": 6}
    locked, gone = ({**opened, "iid": number} for number in (6, 5))
    server.kept[f"{on}/merge_requests"] = [opened, gone, locked, forks, {**opened, "iid": 8}]
    server.refused = {f"{on}/merge_requests/6/notes"}
    for name, value in {
        "GITLAB_CI": "true",
        "CI_API_V4_URL": server.url,
        "CI_PROJECT_ID": "5",
        "GITLAB_TOKEN": "t",
    }.items():
        monkeypatch.setenv(name, value)
    for _ in range(2):
        done = CliRunner().invoke(command, ["comment", "--open"])
        assert "request 7: " in str(done.exception)
        assert refusal in str(done.exception)
        assert "request 8: dev" in done.output
        # Somebody has locked its discussion.
        assert "request 6: " in str(done.exception)
    (said,) = server.bodies(f"{on}/merge_requests/8/notes")
    assert "This pull request's own code made the preview" in said
    assert "LGTM" not in said
    assert server.bodies(f"{on}/merge_requests/7/notes") == []


def test_a_file_that_is_too_long_is_not_read_to_its_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forge, "_LONGEST", 100_000)
    there = Api(server.url, "", {})
    for size, fits in ((100_000, True), (100_001, False), (50_000_000, False)):
        server.answers["/x"] = bytes(size)
        if fits:
            assert len(there.bytes("/x")) == size
        else:
            with pytest.raises(TpustackError, match="has more than 100,000 bytes"):
                there.bytes("/x")


def bomb(*names: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as writer:
        for name in names:
            writer.writestr(name, bytes(60_000_000))
    return packed.getvalue()


def test_of_an_archive_only_the_file_that_is_wanted_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    usual = zipfile.ZipFile.read

    def noticed(packed: zipfile.ZipFile, each: zipfile.ZipInfo) -> bytes:
        read.append(each.filename)
        return usual(packed, each)

    monkeypatch.setattr(zipfile.ZipFile, "read", noticed)
    others = [f"{number}.md" for number in range(30)]
    assert result.unpack_plan(archive(*others, "a/dev.plan.json"), tmp_path, "dev")
    assert read == ["a/dev.plan.json"]
    for packed in (bomb("dev.plan.json"), archive("a/dev.plan.json", "dev.plan.json")):
        with pytest.raises(UsageError, match="twice, or the file is too long"):
            result.unpack_plan(packed, tmp_path, "dev")
    assert read == ["a/dev.plan.json"]


def test_a_request_posts_about_no_more_stacks_than_its_job_is_of(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comment is a call, of the thousand an hour that the whole repository has."""
    for name, value in {
        "GITHUB_API_URL": server.url,
        "GITHUB_REPOSITORY": "me/mine",
        "GITHUB_TOKEN": "t",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GITLAB_CI", raising=False)
    result.write_results(tmp_path, "preview", [FINE, Result("prod", Outcome.CHANGES)], 1)
    options = ["comment", "--request=7", "--stack=dev", f"--output={tmp_path}"]
    done = CliRunner().invoke(command, options)
    assert "'prod' isn't a stack of this run" in str(done.exception)
    result.write_results(tmp_path, "preview", [FINE], 1)
    assert CliRunner().invoke(command, options).exit_code == 0
    assert len(server.bodies(GITHUB[0])) == 1


def test_the_plans_of_the_merged_request_are_found(
    made: tuple[Forge, str, str], server: Server, tmp_path: Path
) -> None:
    there, *_ = made
    # A preview of dev has no say about prod.
    zipped = archive("build/ci/dev.plan.json", "dev.md", "../../evil.plan.json", "prod.plan.json")
    server.answers = answers(zipped)
    found = there.reviewed("c0")
    assert found is not None
    assert found.request == 7
    unpacked = {at for at, it in found.archives.items() if result.unpack_plan(it, tmp_path, at)}
    assert unpacked == {"dev"}
    assert [path.name for path in tmp_path.iterdir()] == ["dev.plan.json"]
    assert there.reviewed("pushed") is None


def test_results_of_another_job_are_read_and_not_trusted(tmp_path: Path) -> None:
    result.write_results(tmp_path, "drift", [DRIFTED, Result("prod", Outcome.NO_CHANGE)], 1)
    read = result.read_results(tmp_path, "drift")
    assert read.drifted == {"dev"}
    assert read.by_stack["dev"] == markdown("drift", DRIFTED)
    (tmp_path / "dev.md").write_text("LGTM\n\nApproved.")
    assert result.read_results(tmp_path, "drift").by_stack["dev"] == markdown("drift", DRIFTED)


@pytest.mark.parametrize(
    ("forged", "refusal"),
    [
        ({"stacks": [{"stack": "../secret"}]}, r"'\.\./secret' isn't a stack of this run"),
        ({"stacks": [{"stack": "prod"}]}, "'prod' isn't a stack of this run"),
        ({"stacks": [{"stack": "pr-71"}]}, "'pr-71' isn't a stack of this run"),
        ({"stacks": [{"stack": "pr-7\nprod"}]}, "isn't a stack of this run"),
        ({"command": "deploy"}, "they are from 'deploy', not from 'preview'"),
        ({"command": None}, "not from 'preview'"),
        ({"stacks": [{"stack": "pr-7", "outcome": "success"}]}, "outcome"),
        ({"stacks": [{"stack": "pr-7", "notes": [{"a": 1}]}]}, "notes"),
        ({"stacks": 7}, "list"),
        ([], "list indices"),
        (None, "NoneType"),
    ],
)
def test_a_request_forges_no_result_of_another_stack_or_command(
    tmp_path: Path, forged: Any, refusal: str
) -> None:
    if isinstance(forged, dict):
        stacks = forged.get("stacks", [{"stack": "pr-7"}])
        if isinstance(stacks, list):
            stacks = [{"outcome": "changes", **each} for each in stacks]
        forged = {"command": "preview", **forged, "stacks": stacks}
    (tmp_path / "result.json").write_text(json.dumps(forged))
    with pytest.raises(UsageError, match=refusal):
        result.read_results(tmp_path, "preview", re.compile("pr-7"))


def test_a_result_that_nests_too_deep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("[" * 200_000)
    with pytest.raises(UsageError, match="has no results of preview"):
        result.read_results(tmp_path, "preview")


def test_all_missing_forge_variables_are_named_at_once() -> None:
    with pytest.raises(UsageError, match="GITHUB_REPOSITORY, GITHUB_TOKEN"):
        forge_of({})


def test_an_unreachable_forge_is_one_message() -> None:
    away = {"GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_REPOSITORY": "a/b", "GITHUB_TOKEN": "t"}
    with pytest.raises(TpustackError, match="can't reach http"):
        list(forge_of(away).issues())


PROTECTED: dict[str, Any] = {
    "protection_rules": [{"type": "required_reviewers", "reviewers": [{"type": "User"}]}],
    "deployment_branch_policy": {"protected_branches": True},
}


@pytest.mark.parametrize(
    ("github", "gitlab", "lacks"),
    [
        (PROTECTED, {"required_approval_count": 1}, {""}),
        ({}, {"name": "prod"}, {"need no approval", "requires no approval"}),
        ({**PROTECTED, "protection_rules": []}, {}, {"need no approval", "requires no approval"}),
        (
            {**PROTECTED, "protection_rules": [{"type": "required_reviewers", "reviewers": []}]},
            {"approval_rules": []},
            {"need no approval", "requires no approval"},
        ),
        ({**PROTECTED, "deployment_branch_policy": None}, None, {"read its secrets", "can deploy"}),
        (None, None, {"creates it without rules", "can deploy"}),
    ],
)
def test_missing_protections_of_an_environment_are_listed(
    made: tuple[Forge, str, str],
    server: Server,
    github: dict[str, Any] | None,
    gitlab: dict[str, Any] | None,
    lacks: set[str],
) -> None:
    there, *_ = made
    answers = {
        "/repos/me/mine/environments/prod": github,
        "/projects/5/protected_environments/prod": gitlab,
    }
    server.answers = {path: answer for path, answer in answers.items() if answer is not None}
    said = " ".join(there.unprotected("prod")[0])
    assert any(each in said for each in lacks)
    assert bool(said) == (lacks != {""})
    with pytest.raises(AccessDenied, match="answers 403"):
        there.unprotected("secret")


NAMED = {"protected_branches": False, "custom_branch_policies": True}


@pytest.mark.parametrize(
    ("names", "refused"),
    [(["main"], ""), (["main", "*"], "like *;"), (["release/*", "v?"], "like release/*, v?;")],
)
def test_on_github_a_pattern_that_takes_any_branch_is_no_restriction(
    server: Server, run: Run, pipeline: Path, names: list[str], refused: str
) -> None:
    server.answers = {
        "/repos/me/mine/environments/prod": {**PROTECTED, "deployment_branch_policy": NAMED},
        "/repos/me/mine/environments/prod/deployment-branch-policies": {
            "branch_policies": [{"name": name} for name in names]
        },
    }
    done = run("ci", "guard")
    assert (done.code, refused in done.err) == (2 if refused else 0, True)


def test_on_github_bypasses_of_the_approval_are_warnings(
    server: Server, run: Run, pipeline: Path
) -> None:
    (rule,) = PROTECTED["protection_rules"]
    strict = {**PROTECTED, "protection_rules": [{**rule, "prevent_self_review": True}]}
    for rules, warnings in ((strict, 0), ({**strict, "can_admins_bypass": True}, 1)):
        server.answers = {"/repos/me/mine/environments/prod": rules}
        done = run("ci", "guard")
        assert (done.code, done.err.count("administrators deploy without")) == (0, warnings)
    server.answers = {"/repos/me/mine/environments/prod": PROTECTED}
    assert "prod lets the person who started a deployment approve it" in run("ci", "guard").err


@pytest.fixture
def pipeline(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The settings of a pipeline on GitHub whose stack prod needs approval."""
    monkeypatch.setattr("tpustack.ci.command.root", lambda: tmp_path)
    variables = {"GITHUB_API_URL": server.url, "GITHUB_REPOSITORY": "me/mine", "GITHUB_TOKEN": "t"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GITLAB_CI", raising=False)
    (tmp_path / "stacks").mkdir()
    file = tmp_path / "stacks" / "pipeline.yaml"
    file.write_text("stacks: [dev, prod]\napproval: [prod]")
    return file


def test_guard_fails_if_an_environment_asks_for_no_approval(
    server: Server, run: Run, pipeline: Path
) -> None:
    refused = run("ci", "guard")
    assert refused.code == 2
    assert "the environment prod doesn't exist, and GitHub creates it without rules" in refused.err
    server.answers = {"/repos/me/mine/environments/prod": PROTECTED}
    assert run("ci", "guard").code == 0
    # Where the token may not look, a person has to.
    pipeline.write_text("stacks: [dev]\napproval: [secret]")
    warned = run("ci", "guard")
    assert warned.code == 0
    assert "warning: can't check who approves secret" in warned.err
