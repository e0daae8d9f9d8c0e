"""Vertex AI's custom jobs by its REST API, and what its refusals mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tpu_core.google import message, vertex_root
from tpustack.cloud.google import Forbidden, Google, NotFound
from tpustack.errors import TpustackError

_API = "aiplatform.googleapis.com"
_TOO_MANY = 429


class Unanswered(TpustackError):
    """Vertex AI may have taken a job: its answer was lost."""


class CustomJobs:
    """The custom jobs of a region. Raises TpustackError if it is none."""

    def __init__(self, google: Google, project: str, region: str) -> None:
        self._google, self._project, self._region = google, project, region
        try:
            root = vertex_root(region)
        except ValueError as error:
            raise TpustackError(f"there are no custom jobs: {error}") from None
        self._parent = f"{root}/projects/{quote(project, safe=':')}/locations/{region}/customJobs"

    def create(self, body: dict[str, Any], quota: str) -> str:
        """Make a job; return its name. Raises Unanswered, or TpustackError with a cure."""
        account = str(body["jobSpec"].get("serviceAccount", ""))
        headers = {"Content-Type": "application/json"}
        data = json.dumps(body).encode()
        try:
            status, _, content = self._google.exchange("POST", self._parent, headers, data)
        except TpustackError as error:
            raise Unanswered(str(error)) from None
        if status >= 500:
            raise Unanswered(f"Vertex AI answers {status}: {message(content)}")
        if status >= 400:
            said = message(content).strip().rstrip(".")
            raise TpustackError(
                f"Vertex AI does not take the job: {self._cure(status, said, account, quota)}. "
                f"Google's answer: {said}. Nothing was queued"
            )
        return str(json.loads(content)["name"])

    def called(self, title: str) -> list[dict[str, Any]] | None:
        """Return the jobs of that title; None if the caller may not look."""
        try:
            query = {"filter": f'display_name="{title}"'}
            return list(self._google.pages(self._parent, "customJobs", query))
        except (Forbidden, NotFound):
            return None

    def cancel(self, job: Mapping[str, Any]) -> None:
        """Have Vertex AI end a job that it has shown. Raises TpustackError."""
        number = str(job["name"]).rpartition("/")[2]
        self._google.post(f"{self._parent}/{number}:cancel", {}, {})

    def _cure(self, status: int, said: str, account: str, quota: str) -> str:
        """Return what a refusal asks for, by its status and Google's words."""
        if status == _TOO_MANY:
            return (
                f"the project {self._project} has no quota left for its TPU in {self._region}. Ask "
                f"for {_API}/{quota} on the page IAM & Admin > Quotas, or wait for other jobs"
            )
        if status == 403 and "disabled" in said:
            return f"{_API} is disabled in {self._project}. `pulumi up` with jobs.vertex enables it"
        if status == 403 and "to use project" in said:
            return (
                f"your calls may not count for {self._project}. Ask for "
                "roles/serviceusage.serviceUsageConsumer there"
            )
        if status == 403 and "act as" in said:
            return (
                f"you may not run jobs as {account}. Ask for roles/iam.serviceAccountUser on it: "
                "jobs.vertex.submitters gives it"
            )
        if status == 403:
            return (
                f"you may not make custom jobs in {self._project}. Ask for roles/aiplatform.user: "
                "jobs.vertex.submitters gives it"
            )
        if "does not exist" in said and account in said:
            return f"there is no account {account}. `pulumi up` makes it"
        if status == 400 and self._region in said:
            return f"{self._region} may have no such TPU. Set jobs.vertex.region, or give --tpu"
        return f"HTTP status {status}"


def why_failed(error: dict[str, Any], region: str) -> str:
    """Return why a job failed that Vertex AI had taken, with its cure where one is known."""
    said = str(error.get("message", "it does not say why"))
    if "nsufficient" in said:
        return f"{said} (no capacity: another region by jobs.vertex.region, or later)"
    if "mage" in said and ("pull" in said or "ound" in said):
        return f"{said} (--image: one that Vertex AI's service agent may read)"
    if "quota" in said:
        return f"{said} (ask for more in {region} on the page IAM & Admin > Quotas)"
    return said
