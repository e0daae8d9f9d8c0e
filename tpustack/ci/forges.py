"""The forge of this pipeline."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tpustack.ci.api import Api
from tpustack.ci.forge import Forge
from tpustack.ci.github import GitHub
from tpustack.ci.gitlab import GitLab
from tpustack.errors import TpustackError, UsageError


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
            f"not set: {', '.join(missing)}. This command writes to the request or the issues of "
            "a pipeline's own repository (docs/gitops.md)"
        )
    return [environment[name] for name in names]
