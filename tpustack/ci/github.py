"""Comments, issues and reviewed plans on GitHub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import quote

from tpustack.ci.forge import LABEL, Forge, Previewed
from tpustack.errors import TpustackError

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
            raise TpustackError(f"GitHub does not say whose token this is: {answer}")
        return str(answer["data"]["viewer"]["login"])

    def unprotected(self, environment: str) -> tuple[list[str], list[str]]:
        """Ask for the rules of the environment, which GitHub makes without any."""
        path = f"/environments/{quote(environment, safe='')}"
        found = self._api.find(path)
        if found is None:
            return ["is not there: GitHub makes it, without rules, when a job first names it"], []
        rules = {each["type"]: each for each in found.get("protection_rules") or []}
        reviewers = rules.get("required_reviewers", {})
        branches = found.get("deployment_branch_policy")
        lacks, weak = [], []
        if not reviewers.get("reviewers"):
            lacks.append("has no required reviewers: a deployment to it asks nobody")
        elif not reviewers.get("prevent_self_review"):
            weak.append("lets the person who started a deployment approve it")
        if not branches:
            lacks.append("takes every branch: a job of any may read its secrets")
        elif branches.get("custom_branch_policies"):
            listed = self._api.find(f"{path}/deployment-branch-policies?per_page=100") or {}
            named = [each["name"] for each in listed.get("branch_policies", [])]
            if wide := [each for each in named if set(each) & set("*?[")]:
                lacks.append(f"takes every branch or tag like {', '.join(wide)}: name each")
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
