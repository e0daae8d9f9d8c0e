"""Declares what Vertex AI needs to run a stack's jobs."""

from __future__ import annotations

from infra.apis import IAM_API, PROJECTS_API, VERTEX_API
from infra.components.bucket import Bucket
from infra.components.services import ProjectServices
from infra.names import Names
from infra.settings import StackSettings


def declare_training(
    settings: StackSettings,
    names: Names,
    services: ProjectServices,
    bucket: Bucket,
) -> None:
    """Declare managed training, if the stack has it."""
    vertex = settings.jobs.vertex
    if vertex is None:
        return
    # Google's clients take a while to load, for which only those who have such jobs should wait.
    from infra.components.managed_training import ManagedTraining, ManagedTrainingArgs

    args = ManagedTrainingArgs(
        project=settings.project,
        region=vertex.region or settings.region,
        account_id=names.managed_account,
        bucket=bucket,
        submitters=vertex.submitters,
        requires=tuple(services.enabled[api] for api in (VERTEX_API, IAM_API, PROJECTS_API)),
    )
    ManagedTraining("managed-training", args)
