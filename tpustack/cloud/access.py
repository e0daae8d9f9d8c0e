"""Asks whether a project can be reached, before an engine says so once for each resource."""

from __future__ import annotations

from tpustack.cloud.google import Forbidden, Google, NotFound, says_disabled
from tpustack.errors import TpustackError, UsageError

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}"


def require_project(project: str) -> None:
    """Raise UsageError if the caller can't see a project. Where nobody can tell, say nothing."""
    try:
        Google().get(_PROJECT.format(project))
    except (Forbidden, NotFound) as error:
        if isinstance(error, Forbidden) and says_disabled(error):
            return
        raise UsageError(
            f"gcp:project: {project} can't be reached: either there is no such project, or the "
            f"account that runs this may not see it (resourcemanager.projects.get). {error}. "
            "Nothing was created or changed."
        ) from None
    except TpustackError:
        return
