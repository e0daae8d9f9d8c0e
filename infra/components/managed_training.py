"""What Vertex AI needs to run jobs: its own identity, their account, who may submit them."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.components import mark, projects
from infra.components.bucket import Bucket
from infra.components.identity import VERTEX_OBJECTS, grant_bucket_to
from infra.managed_jobs import ManagedJobs

_SERVICE = "aiplatform.googleapis.com"
_WRITER, _USER = "roles/logging.logWriter", "roles/aiplatform.user"
_ACTS_AS = "roles/iam.serviceAccountUser"


@dataclass(frozen=True)
class ManagedTrainingArgs:
    """What to declare.

    Attributes:
        region: in which jobs run.
        account_id: of the account that jobs run as: the part of its address before the @.
        bucket: the stack's, in which jobs and all that they leave lie.
        submitters: members who may submit jobs.
        requires: the APIs that all of it waits for.
    """

    project: str
    region: str
    account_id: str
    bucket: Bucket
    submitters: tuple[str, ...]
    requires: tuple[pulumi.Resource, ...]


class ManagedTraining(pulumi.ComponentResource):
    """An account for Vertex AI's custom jobs, with objects of the bucket and a log to write.

    AI Platform had to be granted `roles/ml.serviceAgent` for its TPUs. Vertex AI's own service
    agents get theirs from Google with the API; what a person grants is the right to act as the
    account, which Vertex AI asks of whoever submits.
    """

    def __init__(
        self, name: str, args: ManagedTrainingArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:ManagedTraining", name, None, opts)
        own = pulumi.ResourceOptions(parent=self, depends_on=list(args.requires))
        # Otherwise Google makes it at the first job, which then fails for want of rights.
        projects.ServiceIdentity("agent", project=args.project, service=_SERVICE, opts=own)
        account = gcp.serviceaccount.Account(
            "runner",
            project=args.project,
            account_id=args.account_id,
            display_name="Jobs of a tpu-stack on Vertex AI",
            description=mark.description(),
            opts=pulumi.ResourceOptions.merge(
                own, pulumi.ResourceOptions(ignore_changes=list(mark.KEPT_DESCRIPTION))
            ),
        )
        grants = grant_bucket_to("runner", args.bucket, account.email, self, only=VERTEX_OBJECTS)
        member = pulumi.Output.concat("serviceAccount:", account.email)
        writer = projects.IAMMember(
            "writer", project=args.project, role=_WRITER, member=member, opts=own
        )
        # What depends on others goes first: a job that is cancelled still writes its log's end.
        ManagedJobs(
            "jobs",
            {"project": args.project, "region": args.region, "account": account.email},
            pulumi.ResourceOptions(parent=self, depends_on=[*args.requires, *grants, writer]),
        )
        for submitter in args.submitters:
            projects.IAMMember(
                f"user-{submitter}", project=args.project, role=_USER, member=submitter, opts=own
            )
            gcp.serviceaccount.IAMMember(
                f"acts-as-{submitter}",
                service_account_id=account.name,
                role=_ACTS_AS,
                member=submitter,
                opts=pulumi.ResourceOptions(parent=self),
            )
        self.register_outputs({"email": account.email})
