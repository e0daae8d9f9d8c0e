"""Settings of the bucket."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, StrEnum, Text


class LifecycleAction(StrEnum):
    """What happens to an object."""

    DELETE = "delete"
    NEARLINE = "nearline"
    COLDLINE = "coldline"
    ARCHIVE = "archive"


class LifecycleRule(Section):
    """A rule for old objects. All of its conditions must hold."""

    action: LifecycleAction = LifecycleAction.DELETE
    """delete, or the storage class to move to: nearline, coldline or archive (cheaper to keep,
    dearer to read).
    """
    prefix: Text | None = None
    """Only objects whose names have this prefix, for example jobs/mnist-1/tensorboard/."""
    age_days: int | None = Field(default=None, ge=1, le=36500)
    """Days since the object was written (1 to 36500)."""
    noncurrent_days: int | None = Field(default=None, ge=1, le=36500)
    """Only versions that were replaced or deleted this many days ago (1 to 36500). With
    `bucket.versioning` only.
    """
    newer_versions: int | None = Field(default=None, ge=1, le=1000)
    """Only versions with at least this many newer ones (1 to 1000). With `bucket.versioning` only.
    """


class EncryptionSettings(Section):
    """The key of the bucket's objects. All of it may be left out: `encryption: {}`."""

    key: Text | None = None
    """An existing key in the bucket's region: projects/P/locations/REGION/keyRings/R/cryptoKeys/K.
    The stack makes one if it is not set.
    """
    rotation_days: int | None = Field(default=None, ge=1, le=36500)
    """Days between two versions of the stack's own key (1 to 36500; 90 if it is not set). Objects
    encrypted with older versions stay readable.
    """


class BucketSettings(Section):
    """The bucket: data, checkpoints and results; it outlives the machines."""

    create: bool = True
    """Make the bucket. false: use the existing bucket `bucket.name`, which stays; the stack uploads
    to it and grants access to it.
    """
    name: Text | None = None
    """Name, unique in all of Google Cloud. PROJECT-PREFIX if it is not set."""
    location: Text | None = None
    """Region; must be the TPU's, which is also the default."""
    force_destroy: bool = False
    """Delete the bucket with everything in it on `pulumi destroy`. Otherwise the bucket and its
    objects are left standing.
    """
    protect: bool = False
    """Refuse to delete or replace the bucket (`pulumi state unprotect`)."""
    versioning: bool = False
    """Keep the old generations of overwritten and deleted objects."""
    soft_delete_days: int | None = Field(default=None, ge=0, le=90)
    """Days for which deleted objects can be restored: 7 to 90, or 0 for not at all. Google's
    default, 7, if it is not set.
    """
    lifecycle: tuple[LifecycleRule, ...] = ()
    """Rules by which Google deletes objects or moves them to a cheaper storage class."""
    encryption: EncryptionSettings | None = None
    """A group of settings, which may be empty: {}. Encrypt with a key of Cloud KMS that you control
    instead of one of Google's.
    """

    @property
    def kept_days(self) -> int:
        """How long deleted objects are kept (docs.cloud.google.com/storage/docs/soft-delete)."""
        return 7 if self.soft_delete_days is None else self.soft_delete_days
