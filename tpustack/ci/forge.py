"""GitHub and GitLab: comments and issues, each written once and then updated; reviewed plans.

A comment is found again by the marker in its first line and by its author: the marker alone could
be copied by anyone who may comment. Plans come from artifacts of a request's pipeline, and only
from a pipeline that ran on the request's last commit in this repository, not in a fork.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

import requests

from tpustack.errors import TpustackError, UsageError

LABEL = "drift"


@dataclass(frozen=True)
class Text:
    """A comment or an issue of the forge."""

    id: int
    body: str
    author: str


@dataclass(frozen=True)
class Previewed:
    """A request: its number, and the files of its last previews, a zip archive for each stack."""

    request: int
    archives: Mapping[str, bytes]


def post_comments(forge: "Forge", request: int, texts: Mapping[str, str]) -> None:
    """Write each text, which begins with its marker, over our own one with the same marker.

    Texts of other authors are left alone, whatever they begin with.
    """
    own = _ours(forge, forge.comments(request))
    for body in texts.values():
        known = own.get(_marker(body))
        if known is None:
            forge.add_comment(request, body)
        elif known.body.strip() != body.strip():
            forge.change_comment(request, known.id, body)


def update_issues(forge: "Forge", texts: Mapping[str, str], drifted: set[str]) -> None:
    """Open or update an issue for each stack that drifted; close those of the others."""
    own = _ours(forge, forge.issues())
    for stack, body in texts.items():
        known = own.get(_marker(body))
        if known is not None:
            forge.change_issue(known.id, body, closed=stack not in drifted)
        elif stack in drifted:
            forge.add_issue(f"Drift of stack {stack}", body)


def _ours(forge: "Forge", texts: Iterator[Text]) -> dict[str, Text]:
    """Return by their markers the texts that we wrote."""
    us = forge.login()
    return {_marker(each.body): each for each in texts if each.author == us}


class Forge(ABC):
    """Comments and open issues of one repository; a subclass says what its forge calls them."""

    comments_path: str
    comment_path: str
    change_verb: str
    issue_number: str
    issue_body: str
    author: str
    login_name: str
    open_state: str
    labels: ClassVar[str | list[str]]
    closing: ClassVar[Mapping[bool, Mapping[str, str]]]
    run: re.Pattern[str]
    ended: ClassVar[frozenset[str]]

    def __init__(self, api: "Api") -> None:
        self._api = api

    def comments(self, request: int) -> Iterator[Text]:
        """Yield the comments of a request."""
        for each in self._api.all(self.comments_path.format(request=request)):
            yield self._text(each, "id", "body")

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
            yield self._text(each, self.issue_number, self.issue_body)

    def add_issue(self, title: str, body: str) -> None:
        """Open an issue with the label LABEL."""
        fields = {"title": title, self.issue_body: body, "labels": self.labels}
        self._api.send("POST", "/issues", **fields)

    def change_issue(self, issue: int, body: str, *, closed: bool) -> None:
        """Replace the text of an issue, and close it if told to."""
        fields = {self.issue_body: body, **self.closing[closed]}
        self._api.send(self.change_verb, f"/issues/{issue}", **fields)

    def has_ended(self, run: str) -> bool:
        """Return whether a run of this repository has ended; its address comes from a note."""
        path = self._api.path_of(run)
        found = self._api.find(path) if self.run.fullmatch(path) else None
        return (found or {}).get("status") in self.ended

    def _text(self, found: Mapping[str, Any], number: str, body: str) -> Text:
        # GitHub keeps the comments of accounts that are gone, without an author.
        author = (found.get(self.author) or {}).get(self.login_name, "")
        return Text(found[number], found[body] or "", author)

    @abstractmethod
    def login(self) -> str:
        """Return the name of the account that our token writes as."""

    @abstractmethod
    def opened(self) -> Iterator[tuple[int, Callable[[], Previewed | None]]]:
        """Yield each open request that nothing else comments on, and what asks for its preview."""

    @abstractmethod
    def unprotected(self, environment: str) -> tuple[list[str], list[str]]:
        """Return what an environment lacks that its approval needs, and what weakens that.

        Raises AccessDenied where our token may not see it.
        """

    @abstractmethod
    def reviewed(self, commit: str) -> Previewed | None:
        """Return what was previewed in the request that brought a commit; None without one."""


def _marker(body: str) -> str:
    return body.strip().partition("\n")[0].strip()


# The HTTP API of a forge.

_PAGE = 100
_TIMEOUT = 30
# The files of one stack's preview, packed. Even the list of what is in a long archive takes memory.
_LONGEST, _PART = 10_000_000, 1 << 16
_FORBIDDEN, _NOT_FOUND = (401, 403), 404


class AccessDenied(TpustackError):
    """The token may not see this."""


class Api:
    """A forge's API.

    Args:
        url: where the paths of the repository begin.
        whoami: the address that says whose token this is.
        headers: what every call sends.
    """

    def __init__(self, url: str, whoami: str, headers: Mapping[str, str]) -> None:
        self._url, self._whoami = url, whoami
        self._session = requests.Session()
        self._session.headers.update(headers)

    def path_of(self, url: str) -> str:
        """Return the path of an address in this repository; nothing of another one."""
        return url.removeprefix(self._url) if url.startswith(f"{self._url}/") else ""

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

    def find(self, path: str) -> Any:
        """Return what there is, or None. Raises AccessDenied where the token may not look.

        401 and 403 are no failures here: a job's own token sees little of a repository's settings.
        """
        answer = self._request("GET", self._url + path, also=(*_FORBIDDEN, _NOT_FOUND))
        if answer.status_code in _FORBIDDEN:
            raise AccessDenied(f"GET {self._url}{path} answers {answer.status_code}")
        return None if answer.status_code == _NOT_FOUND else answer.json()

    def get(self, path: str, **query: str) -> Any:
        """Return what a path answers."""
        return self._request("GET", self._url + path, params=query).json()

    def bytes(self, path: str, **query: str) -> bytes:
        """Return a file of another job. Raises TpustackError if it is too long.

        It is read in parts, since no header says reliably how long it is.
        """
        content = b""
        with self._request("GET", self._url + path, params=query, stream=True) as answer:
            try:
                for part in answer.iter_content(_PART):
                    content += part
                    if len(content) > _LONGEST:
                        raise TpustackError(f"{self._url}{path} has more than {_LONGEST:,} bytes")
            except requests.RequestException as error:
                raise TpustackError(f"can't read {self._url}{path}: {error}") from None
        return content

    def send(self, verb: str, path: str, **fields: object) -> None:
        """Change something."""
        self._request(verb, self._url + path, json=fields)

    def whoami(self, **fields: str) -> Any:
        """Return whose token it is."""
        verb = "POST" if fields else "GET"
        return self._request(verb, self._whoami, json=fields or None).json()

    def _request(
        self, verb: str, url: str, *, also: tuple[int, ...] = (), **options: Any
    ) -> requests.Response:
        try:
            answer = self._session.request(verb, url, timeout=_TIMEOUT, **options)
        except requests.RequestException as error:
            raise TpustackError(f"can't reach {self._url}: {error}") from None
        if not answer.ok and answer.status_code not in also:
            raise TpustackError(f"{verb} {url} answers {answer.status_code}: {answer.text[:300]}")
        return answer


def forge_of(environment: Mapping[str, str] = os.environ) -> Forge:
    """Return this pipeline's forge. Raises UsageError with every variable that is missing."""
    if environment.get("GITLAB_CI"):
        url, project, token = _required(
            environment, "CI_API_V4_URL", "CI_PROJECT_ID", "GITLAB_TOKEN"
        )
        # Not PRIVATE-TOKEN, which requests would carry along where an artifact lies elsewhere.
        headers = {"Authorization": f"Bearer {token}"}
        return GitLab(Api(f"{url}/projects/{project}", f"{url}/user", headers))
    repository, token = _required(environment, "GITHUB_REPOSITORY", "GITHUB_TOKEN")
    url = environment.get("GITHUB_API_URL", "https://api.github.com")
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    graphql = environment.get("GITHUB_GRAPHQL_URL", f"{url}/graphql")
    return GitHub(Api(f"{url}/repos/{repository}", graphql, headers))


def has_ended(run: str) -> bool:
    """Return whether a run of this pipeline has ended; False where the forge can't tell."""
    try:
        return forge_of().has_ended(run)
    except TpustackError:
        return False


def _required(environment: Mapping[str, str], *names: str) -> list[str]:
    if missing := [name for name in names if not environment.get(name)]:
        raise UsageError(
            f"not set: {', '.join(missing)}. This command writes to the pull request or "
            "issues of a pipeline's own repository (docs/ci-cd.md)"
        )
    return [environment[name] for name in names]


# Of .github/workflows: the workflow whose artifacts are plans, and the artifacts' names.
_WORKFLOW = "preview.yml"
_PLANS = re.compile(r"plans-(?P<stack>[A-Za-z0-9_-]{1,100})")


class GitHub(Forge):
    """GitHub's REST API (docs.github.com/en/rest)."""

    comments_path = "/issues/{request}/comments"
    # A comment is changed without its request's number.
    comment_path = "/issues/comments/{comment}"
    change_verb, issue_number, issue_body, open_state = "PATCH", "number", "body", "open"
    author, login_name = "user", "login"
    labels: ClassVar = [LABEL]
    closing: ClassVar = {True: {"state": "closed"}, False: {"state": "open"}}
    run, ended = re.compile(r"/actions/runs/\d+/attempts/\d+"), frozenset({"completed"})

    def login(self) -> str:
        """Ask by GraphQL: to a job's own token, GET /user answers 403."""
        answer = self._api.whoami(query="query { viewer { login } }")
        if not answer.get("data"):
            raise TpustackError(f"GitHub doesn't return the token's account: {answer}")
        return str(answer["data"]["viewer"]["login"])

    def unprotected(self, environment: str) -> tuple[list[str], list[str]]:
        """Ask for the rules of the environment, which GitHub makes without any."""
        path = f"/environments/{quote(environment, safe='')}"
        found = self._api.find(path)
        if found is None:
            return ["doesn't exist, and GitHub creates it without rules when a job names it"], []
        rules = {each["type"]: each for each in found.get("protection_rules") or []}
        reviewers = rules.get("required_reviewers", {})
        branches = found.get("deployment_branch_policy")
        lacks, weak = [], []
        if not reviewers.get("reviewers"):
            lacks.append("has no required reviewers, so deployments need no approval")
        elif not reviewers.get("prevent_self_review"):
            weak.append("lets the person who started a deployment approve it")
        if not branches:
            lacks.append("allows every branch, so any branch's job can read its secrets")
        elif branches.get("custom_branch_policies"):
            listed = self._api.find(f"{path}/deployment-branch-policies?per_page=100") or {}
            named = [each["name"] for each in listed.get("branch_policies", [])]
            if wide := [each for each in named if set(each) & set("*?[")]:
                lacks.append(f"allows every branch or tag like {', '.join(wide)}; name each one")
        if found.get("can_admins_bypass"):
            weak.append("lets administrators deploy without approval")
        return lacks, weak

    def reviewed(self, commit: str) -> Previewed | None:
        """Return the artifacts `plans-STACK` of preview.yml's last run for the last commit."""
        for each in self._api.get(f"/commits/{commit}/pulls"):
            # Another request may contain the commit, too, and be merged to another branch.
            if each.get("merged_at") and each.get("merge_commit_sha") == commit:
                return self._preview_of(each["number"], each["head"]["sha"])
        return None

    def opened(self) -> Iterator[tuple[int, Callable[[], Previewed | None]]]:
        """Yield nothing: on GitHub the request's own run comments, by code of its target branch."""
        yield from ()

    def _preview_of(self, request: int, head: str) -> Previewed | None:
        runs = self._api.get(
            f"/actions/workflows/{_WORKFLOW}/runs",
            head_sha=head,
            event="pull_request",
            status="success",
        )["workflow_runs"]
        for run in (each for each in runs if _is_of(each, head)):
            found = self._api.get(f"/actions/runs/{run['id']}/artifacts")["artifacts"]
            archives = {
                named["stack"]: self._api.bytes(f"/actions/artifacts/{each['id']}/zip")
                for each in found
                if (named := _PLANS.fullmatch(each["name"])) and not each["expired"]
            }
            if archives:
                return Previewed(request, archives)
        return None


def _is_of(run: Mapping[str, Any], head: str) -> bool:
    """Return whether a run is the preview of a request's last commit, and succeeded.

    A fork's run has the same workflow, and may have the same commit.
    """
    home, source = (run.get(name) or {} for name in ("repository", "head_repository"))
    ended = (run.get("event"), run.get("conclusion"), run.get("head_sha"))
    return (
        ended == ("pull_request", "success", head)
        and str(run.get("path")).partition("@")[0] == f".github/workflows/{_WORKFLOW}"
        and bool(home.get("id"))
        and home.get("id") == source.get("id")
    )


# The name of a job of .gitlab-ci.yml that previews a stack.
_JOB = re.compile(r"preview (?P<stack>[A-Za-z0-9_-]{1,100})")


class GitLab(Forge):
    """GitLab's REST API (docs.gitlab.com/api).

    A merge request's pipeline runs the request's own `.gitlab-ci.yml`, with all variables that it
    can see. So nothing of it is trusted, and what writes runs in pipelines of the protected branch.
    """

    comments_path = "/merge_requests/{request}/notes"
    comment_path = "/merge_requests/{request}/notes/{comment}"
    change_verb, issue_number, issue_body, open_state = "PUT", "iid", "description", "opened"
    author, login_name = "author", "username"
    labels = LABEL
    closing: ClassVar = {True: {"state_event": "close"}, False: {}}
    run, ended = re.compile(r"/jobs/\d+"), frozenset({"success", "failed", "canceled"})

    def login(self) -> str:
        """Ask who the token belongs to."""
        return str(self._api.whoami()["username"])

    def unprotected(self, environment: str) -> tuple[list[str], list[str]]:
        """Ask whether it is a protected environment, and one that takes an approval."""
        found = self._api.find(f"/protected_environments/{quote(environment, safe='')}")
        if found is None:
            return ["isn't protected, so anyone who can push can deploy to it"], []
        if not (found.get("required_approval_count") or found.get("approval_rules")):
            return ["requires no approval"], []
        return [], []

    def reviewed(self, commit: str) -> Previewed | None:
        """Return the artifacts of the jobs `preview STACK` of the merged request's last commit."""
        for each in self._api.get(f"/repository/commits/{commit}/merge_requests"):
            if each["state"] == "merged" and commit in _merged_as(each):
                return self._preview_of(each, ("success",))
        return None

    def opened(self) -> Iterator[tuple[int, Callable[[], Previewed | None]]]:
        """Yield each open request, with what asks for its preview, also one without success."""
        for each in self._api.all("/merge_requests", state=self.open_state):
            yield each["iid"], partial(self._preview_of, each, ("success", "failed"))

    def _preview_of(self, request: Mapping[str, Any], ended: tuple[str, ...]) -> Previewed | None:
        number, project = request["iid"], request["target_project_id"]
        if request["source_project_id"] != project:
            return None  # A fork's pipelines run in the fork.
        for pipeline in self._api.get(f"/merge_requests/{number}/pipelines"):
            made = (pipeline["source"], pipeline["sha"], pipeline["project_id"])
            if made != ("merge_request_event", request["sha"], project):
                continue
            jobs = self._api.get(f"/pipelines/{pipeline['id']}/jobs")
            archives = {
                named["stack"]: self._api.bytes(f"/jobs/{job['id']}/artifacts")
                for job in jobs
                if (named := _JOB.fullmatch(job["name"]))
                and job["status"] in ended
                and job.get("artifacts_file")
            }
            if archives:
                return Previewed(number, archives)
        return None


def _merged_as(request: Mapping[str, Any]) -> set[str]:
    """Return the commits that a merge has made; a request that only contains one is another."""
    names = ("merge_commit_sha", "squash_commit_sha")
    made = {request[name] for name in names if request.get(name)}
    # Fast-forwarded, the request's own last commit is the one.
    return made or {request["sha"]}
