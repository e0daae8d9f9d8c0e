"""Comments and issues on GitHub and GitLab, each written once and then updated."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import requests

from tpustack.errors import TpustackError, UsageError

LABEL = "drift"
_PAGE = 100
_TIMEOUT = 30


@dataclass(frozen=True)
class Text:
    """A comment or an issue that is there already."""

    id: int
    body: str


class Forge(Protocol):
    """What both can do. Comments are those of one request, issues those that are open."""

    def comments(self, request: int) -> Iterator[Text]:
        """All of them."""

    def add_comment(self, request: int, body: str) -> None:
        """A new one."""

    def change_comment(self, request: int, comment: int, body: str) -> None:
        """Another text for one that is there."""

    def issues(self) -> Iterator[Text]:
        """The open ones with the label LABEL."""

    def add_issue(self, title: str, body: str) -> None:
        """A new one with the label LABEL."""

    def change_issue(self, issue: int, body: str, *, closed: bool) -> None:
        """Another text for one that is there."""

    def reviewed(self, commit: str) -> Reviewed | None:
        """What was previewed in the request that a commit came by; None if it came by none."""


@dataclass(frozen=True)
class Reviewed:
    """A merged request: its number, and the files of its last preview as a zip archive."""

    request: int
    archive: bytes


def comment(forge: Forge, request: int, texts: Mapping[str, str]) -> None:
    """Write each text, which begins with its marker, over the one with the same marker."""
    there = {_marker(each.body): each for each in forge.comments(request)}
    for body in texts.values():
        known = there.get(_marker(body))
        if known is None:
            forge.add_comment(request, body)
        elif known.body.strip() != body.strip():
            forge.change_comment(request, known.id, body)


def issue(forge: Forge, texts: Mapping[str, str], drifted: set[str]) -> None:
    """Open or update an issue for each stack that drifted; close those of the others."""
    there = {_marker(each.body): each for each in forge.issues()}
    for stack, body in texts.items():
        known = there.get(_marker(body))
        if known is not None:
            forge.change_issue(known.id, body, closed=stack not in drifted)
        elif stack in drifted:
            forge.add_issue(f"Drift of stack {stack}", body)


def forge_of(environment: Mapping[str, str] = os.environ) -> Forge:
    """The forge whose pipeline this is. Raises UsageError with every variable that is missing."""
    if environment.get("GITLAB_CI"):
        url, project, token = _required(
            environment, "CI_API_V4_URL", "CI_PROJECT_ID", "GITLAB_TOKEN"
        )
        return GitLab(_Api(f"{url}/projects/{project}", {"PRIVATE-TOKEN": token}))
    repository, token = _required(environment, "GITHUB_REPOSITORY", "GITHUB_TOKEN")
    url = environment.get("GITHUB_API_URL", "https://api.github.com")
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    return GitHub(_Api(f"{url}/repos/{repository}", headers))


class GitHub:
    """GitHub's REST API (docs.github.com/en/rest)."""

    def __init__(self, api: _Api) -> None:
        self._api = api

    def comments(self, request: int) -> Iterator[Text]:
        """Those of a pull request."""
        for each in self._api.all(f"/issues/{request}/comments"):
            yield Text(each["id"], each["body"] or "")

    def add_comment(self, request: int, body: str) -> None:
        """A new one."""
        self._api.send("POST", f"/issues/{request}/comments", body=body)

    def change_comment(self, request: int, comment: int, body: str) -> None:
        """Another text; on GitHub a comment's number says whose it is."""
        self._api.send("PATCH", f"/issues/comments/{comment}", body=body)

    def issues(self) -> Iterator[Text]:
        """The open ones with the label."""
        for each in self._api.all("/issues", state="open", labels=LABEL):
            yield Text(each["number"], each["body"] or "")

    def add_issue(self, title: str, body: str) -> None:
        """A new one with the label."""
        self._api.send("POST", "/issues", title=title, body=body, labels=[LABEL])

    def change_issue(self, issue: int, body: str, *, closed: bool) -> None:
        """Another text."""
        state = "closed" if closed else "open"
        self._api.send("PATCH", f"/issues/{issue}", body=body, state=state)

    def reviewed(self, commit: str) -> Reviewed | None:
        """The artifact `plans` of the last run of preview.yml for the request's last commit."""
        requests = self._api.get(f"/commits/{commit}/pulls")
        merged = [each for each in requests if each.get("merged_at")]
        if not merged:
            return None
        head = merged[0]["head"]["sha"]
        runs = self._api.get("/actions/workflows/preview.yml/runs", head_sha=head)["workflow_runs"]
        for run in runs:
            for each in self._api.get(f"/actions/runs/{run['id']}/artifacts")["artifacts"]:
                if each["name"] == "plans" and not each["expired"]:
                    archive = self._api.bytes(f"/actions/artifacts/{each['id']}/zip")
                    return Reviewed(merged[0]["number"], archive)
        return None


class GitLab:
    """GitLab's REST API (docs.gitlab.com/api)."""

    def __init__(self, api: _Api) -> None:
        self._api = api

    def comments(self, request: int) -> Iterator[Text]:
        """The notes of a merge request."""
        for each in self._api.all(f"/merge_requests/{request}/notes"):
            yield Text(each["id"], each["body"] or "")

    def add_comment(self, request: int, body: str) -> None:
        """A new note."""
        self._api.send("POST", f"/merge_requests/{request}/notes", body=body)

    def change_comment(self, request: int, comment: int, body: str) -> None:
        """Another text for a note."""
        self._api.send("PUT", f"/merge_requests/{request}/notes/{comment}", body=body)

    def issues(self) -> Iterator[Text]:
        """The open ones with the label."""
        for each in self._api.all("/issues", state="opened", labels=LABEL):
            yield Text(each["iid"], each["description"] or "")

    def add_issue(self, title: str, body: str) -> None:
        """A new one with the label."""
        self._api.send("POST", "/issues", title=title, description=body, labels=LABEL)

    def change_issue(self, issue: int, body: str, *, closed: bool) -> None:
        """Another text."""
        state = {"state_event": "close"} if closed else {}
        self._api.send("PUT", f"/issues/{issue}", description=body, **state)

    def reviewed(self, commit: str) -> Reviewed | None:
        """The artifacts of the job `preview` in the merge request's last pipeline."""
        requests = self._api.get(f"/repository/commits/{commit}/merge_requests")
        merged = [each for each in requests if each["state"] == "merged"]
        if not merged:
            return None
        number = merged[0]["iid"]
        ref = f"refs%2Fmerge-requests%2F{number}%2Fhead"
        archive = self._api.bytes(f"/jobs/artifacts/{ref}/download", job="preview")
        return Reviewed(number, archive)


class _Api:
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.headers.update(headers)

    def all(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """The items of every page."""
        page = 1
        while True:
            parameters = {**query, "per_page": str(_PAGE), "page": str(page)}
            items = self.get(path, **parameters)
            yield from items
            if len(items) < _PAGE:
                return
            page += 1

    def get(self, path: str, **query: str) -> Any:
        return self._call("GET", path, params=query).json()

    def bytes(self, path: str, **query: str) -> bytes:
        content: bytes = self._call("GET", path, params=query).content
        return content

    def send(self, verb: str, path: str, **fields: object) -> None:
        self._call(verb, path, json=fields)

    def _call(self, verb: str, path: str, **options: Any) -> requests.Response:
        try:
            answer = self._session.request(verb, self._url + path, timeout=_TIMEOUT, **options)
        except requests.RequestException as error:
            raise TpustackError(f"{self._url} can't be reached: {error}") from None
        if not answer.ok:
            raise TpustackError(
                f"{verb} {self._url}{path} answers {answer.status_code}: {answer.text[:300]}"
            )
        return answer


def _marker(body: str) -> str:
    return body.strip().partition("\n")[0].strip()


def _required(environment: Mapping[str, str], *names: str) -> list[str]:
    if missing := [name for name in names if not environment.get(name)]:
        raise UsageError(
            f"not set: {', '.join(missing)}. This command writes to the request or the issues of "
            "a pipeline's own repository (docs/gitops.md)"
        )
    return [environment[name] for name in names]
