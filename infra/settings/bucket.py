"""Settings of the bucket."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, Text


class BucketSettings(Section):
    """The bucket: data, checkpoints and results; it outlives the machines."""

    create: bool = Field(
        default=True,
        description="Make the bucket. false: use `bucket.name`, which is there already and stays; "
        "the stack uploads to it and grants access to it.",
    )
    name: Text | None = Field(
        default=None,
        description="Name, unique in all of Google Cloud. PROJECT-PREFIX if it is not set.",
    )
    location: Text | None = Field(
        default=None,
        description="Region; must be the TPU's, which is also what it is if it is not set.",
    )
    force_destroy: bool = Field(
        default=False,
        description="Delete the bucket with everything in it on `pulumi destroy`. "
        "Otherwise the bucket and its objects are left standing.",
    )
    protect: bool = Field(
        default=False,
        description="Refuse to delete or replace the bucket (`pulumi state unprotect`).",
    )
    versioning: bool = Field(
        default=False, description="Keep the old generations of overwritten and deleted objects."
    )
