"""What Vertex AI needs to run jobs: its own identity, their account, who may submit them."""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from infra.apis import IAM_API, PROJECTS_API, VERTEX_API
from infra.checks import CheckedStack
from infra.components.bucket import Bucket
from infra.components.identity import VERTEX_OBJECTS, grant_bucket_to
from infra.components.services import ProjectServices
from infra.names import KEPT_DESCRIPTION
from infra.resources.vertex import VertexJobs
from infra.settings import VertexSettings


class VertexTraining(pulumi.ComponentResource):
    """An account for Vertex AI's custom jobs, with objects of the bucket and a log to write.

    AI Platform had to be granted `roles/ml.serviceAgent` for its TPUs. Vertex AI's own service
    agents get theirs from Google with the API; what a person grants is the right to act as the
    account, which Vertex AI asks of those who submit.
    """

    def __init__(
        self,
        stack: CheckedStack,
        settings: VertexSettings,
        services: ProjectServices,
        bucket: Bucket,
    ) -> None:
        super().__init__("tpu-stack:infra:VertexTraining", "vertex")
        project = stack.settings.project
        own = services.after(VERTEX_API, IAM_API, PROJECTS_API, parent=self)
        # Otherwise Google makes it at the first job, which then fails because it has no rights.
        gcp.projects.ServiceIdentity("agent", project=project, service=VERTEX_API, opts=own)
        account = gcp.serviceaccount.Account(
            "runner",
            project=project,
            account_id=stack.names.vertex_account,
            display_name="Jobs of a tpu-stack on Vertex AI",
            description=stack.marked_description,
            opts=pulumi.ResourceOptions.merge(
                own, pulumi.ResourceOptions(ignore_changes=KEPT_DESCRIPTION)
            ),
        )
        grants = grant_bucket_to("runner", bucket, account.email, self, only=VERTEX_OBJECTS)
        writer = gcp.projects.IAMMember(
            "writer",
            project=project,
            role="roles/logging.logWriter",
            member=pulumi.Output.concat("serviceAccount:", account.email),
            opts=own,
        )
        # What depends on others goes first: a job that is cancelled still writes its log's end.
        VertexJobs(
            "jobs",
            {
                "project": project,
                "region": settings.region or stack.settings.region,
                "account": account.email,
            },
            pulumi.ResourceOptions.merge(own, pulumi.ResourceOptions(depends_on=[*grants, writer])),
        )
        for submitter in settings.submitters:
            gcp.projects.IAMMember(
                f"user-{submitter}",
                project=project,
                role="roles/aiplatform.user",
                member=submitter,
                opts=own,
            )
            gcp.serviceaccount.IAMMember(
                f"acts-as-{submitter}",
                service_account_id=account.name,
                role="roles/iam.serviceAccountUser",
                member=submitter,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"email": account.email})
