"""Comments, issues and reviewed plans on GitLab (docs.gitlab.com/api).

A merge request's pipeline runs the request's own `.gitlab-ci.yml`, with all variables that it can
see. So nothing of it is trusted, and what writes runs in pipelines of the protected branch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

from tpustack.ci.forge import LABEL, Forge, Previewed

_JOB = re.compile(r"preview (?P<stack>[A-Za-z0-9_-]{1,100})")


class GitLab(Forge):
    """GitLab's REST API."""

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
            return ["is not protected: whoever may push may deploy to it"], []
        if not (found.get("required_approval_count") or found.get("approval_rules")):
            return ["takes no approval: a deployment to it asks nobody"], []
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
