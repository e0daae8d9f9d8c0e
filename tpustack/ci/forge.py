"""Comments and issues on GitHub and GitLab, each written once and then updated."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import requests

from tpustack.errors import TpustackError, UsageError

LABEL = "drift"
_PAGE = 100
_TIMEOUT = 30


@dataclass(frozen=True)
class Text:
    """A comment or an issue of the forge."""

    id: int
    body: str


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


class Forge(ABC):
    """Comments and open issues of one repository; a subclass says what its forge calls them."""

    comments_path: str
    comment_path: str
    change_verb: str
    issue_number: str
    issue_body: str
    open_state: str
    labels: ClassVar[str | list[str]]
    closing: ClassVar[Mapping[bool, Mapping[str, str]]]

    def __init__(self, api: _Api) -> None:
        self._api = api

    def comments(self, request: int) -> Iterator[Text]:
        """Yield the comments of a request."""
        for each in self._api.all(self.comments_path.format(request=request)):
            yield Text(each["id"], each["body"] or "")

    def add_comment(self, request: int, body: str) -> None:
        """Write a new comment."""
        self._api.send("POST", self.comments_path.format(request=request), body=body)

    def change_comment(self, request: int, comment: int, body: str) -> None:
        """Replace the text of a comment."""
        path = self.comment_path.format(request=request, comment=comment)
        self._api.send(self.change_verb, path, body=body)

    def issues(self) -> Iterator[Text]:
        """Yield the open issues with the label LABEL."""
        for each in self._api.all("/issues", state=self.open_state, labels=LABEL):
            yield Text(each[self.issue_number], each[self.issue_body] or "")

    def add_issue(self, title: str, body: str) -> None:
        """Open an issue with the label LABEL."""
        fields = {"title": title, self.issue_body: body, "labels": self.labels}
        self._api.send("POST", "/issues", **fields)

    def change_issue(self, issue: int, body: str, *, closed: bool) -> None:
        """Replace the text of an issue, and close it if told to."""
        fields = {self.issue_body: body, **self.closing[closed]}
        self._api.send(self.change_verb, f"/issues/{issue}", **fields)

    @abstractmethod
    def reviewed(self, commit: str) -> Reviewed | None:
        """Return what was previewed in the request that brought a commit; None without one."""


class GitHub(Forge):
    """GitHub's REST API (docs.github.com/en/rest)."""

    comments_path = "/issues/{request}/comments"
    # A comment is changed without its request's number.
    comment_path = "/issues/comments/{comment}"
    change_verb, issue_number, issue_body, open_state = "PATCH", "number", "body", "open"
    labels: ClassVar = [LABEL]
    closing: ClassVar = {True: {"state": "closed"}, False: {"state": "open"}}

    def reviewed(self, commit: str) -> Reviewed | None:
        """Return the artifact `plans` of preview.yml's last run for the request's last commit."""
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


class GitLab(Forge):
    """GitLab's REST API (docs.gitlab.com/api)."""

    comments_path = "/merge_requests/{request}/notes"
    comment_path = "/merge_requests/{request}/notes/{comment}"
    change_verb, issue_number, issue_body, open_state = "PUT", "iid", "description", "opened"
    labels = LABEL
    closing: ClassVar = {True: {"state_event": "close"}, False: {}}

    def reviewed(self, commit: str) -> Reviewed | None:
        """Return the artifacts of the job `preview` in the merge request's last pipeline."""
        requests = self._api.get(f"/repository/commits/{commit}/merge_requests")
        merged = [each for each in requests if each["state"] == "merged"]
        if not merged:
            return None
        number = merged[0]["iid"]
        ref = f"refs%2Fmerge-requests%2F{number}%2Fhead"
        archive = self._api.bytes(f"/jobs/artifacts/{ref}/download", job="preview")
        return Reviewed(number, archive)


def forge_of(environment: Mapping[str, str] = os.environ) -> Forge:
    """Return this pipeline's forge. Raises UsageError with every variable that is missing."""
    if environment.get("GITLAB_CI"):
        url, project, token = _required(
            environment, "CI_API_V4_URL", "CI_PROJECT_ID", "GITLAB_TOKEN"
        )
        return GitLab(_Api(f"{url}/projects/{project}", {"PRIVATE-TOKEN": token}))
    repository, token = _required(environment, "GITHUB_REPOSITORY", "GITHUB_TOKEN")
    url = environment.get("GITHUB_API_URL", "https://api.github.com")
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    return GitHub(_Api(f"{url}/repos/{repository}", headers))


class _Api:
    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._session = requests.Session()
        self._session.headers.update(headers)

    def all(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the items of every page."""
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
