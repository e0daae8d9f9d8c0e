"""Vertex AI's custom jobs by its REST API, and what its refusals mean."""

from __future__ import annotations

import json
from typing import Any

from infra.hosts import vertex_root
from tpustack.cloud.google import Forbidden, Google, NotFound
from tpustack.errors import TpustackError

_API = "aiplatform.googleapis.com"
_TOO_MANY = 429


class CustomJobs:
    """The custom jobs of a region."""

    def __init__(self, google: Google, project: str, region: str) -> None:
        self._google, self._project, self._region = google, project, region
        try:
            self._root = vertex_root(region)
        except ValueError as error:
            raise TpustackError(f"jobs.vertex.region: {error}") from None

    def create(self, body: dict[str, Any], quota: str) -> str:
        """Make a job; return its name. Raises TpustackError with a cure."""
        url = f"{self._root}/projects/{self._project}/locations/{self._region}/customJobs"
        account = str(body["jobSpec"].get("serviceAccount", ""))
        headers = {"Content-Type": "application/json"}
        status, _, content = self._google.exchange("POST", url, headers, json.dumps(body).encode())
        if status >= 400:
            said = _message(content)
            raise TpustackError(
                f"Vertex AI does not take the job: {self._cure(status, said, account, quota)}. "
                f"Google's answer: {said}. Nothing was queued"
            )
        return str(json.loads(content)["name"])

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a job; None if there is none, or if the caller may not see it."""
        try:
            return self._google.get(f"{self._root}/{name}")
        except (Forbidden, NotFound):
            return None

    def cancel(self, name: str) -> None:
        """Have Vertex AI end a job. Raises TpustackError."""
        self._google.post(f"{self._root}/{name}:cancel", {}, {})

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


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"]).strip().rstrip(".")
    except (ValueError, KeyError, TypeError):
        return content[:300].decode(errors="replace").strip() or "no message"
