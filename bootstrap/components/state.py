"""The bucket of the stacks' state, and the key of the secrets in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from bootstrap.settings import BootstrapSettings

# Ninety days, which Google's documentation of key rotation suggests:
# https://cloud.google.com/kms/docs/key-rotation
_ROTATION = f"{90 * 24 * 3600}s"
# Of each state file (Pulumi writes one at every step) so many are kept when it is overwritten.
_OLD_VERSIONS = 100


@dataclass(frozen=True)
class StateArgs:
    """`requires` are the APIs that it waits for."""

    settings: BootstrapSettings
    labels: Mapping[str, str]
    requires: tuple[pulumi.Resource, ...] = ()


class State(pulumi.ComponentResource):
    """A private bucket with the old versions of everything, and a key that is rotated.

    Both are protected: without them the state of all stacks is lost.
    """

    bucket: pulumi.Output[str]
    key: pulumi.Output[str]
    """`projects/P/locations/L/keyRings/R/cryptoKeys/K`."""

    def __init__(
        self, name: str, args: StateArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:State", name, None, opts)
        kept = pulumi.ResourceOptions(parent=self, depends_on=list(args.requires), protect=True)
        settings = args.settings
        self.bucket = gcp.storage.Bucket(
            "bucket",
            name=settings.bucket,
            project=settings.project,
            location=settings.region.upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            versioning={"enabled": True},
            lifecycle_rules=[
                {
                    "action": {"type": "Delete"},
                    "condition": {"num_newer_versions": _OLD_VERSIONS, "with_state": "ARCHIVED"},
                }
            ],
            labels=dict(args.labels),
            opts=kept,
        ).name
        ring = gcp.kms.KeyRing(
            "ring",
            name=settings.name_prefix,
            project=settings.project,
            location=settings.region,
            opts=kept,
        )
        self.key = gcp.kms.CryptoKey(
            "key",
            name="secrets",
            key_ring=ring.id,
            rotation_period=_ROTATION,
            labels=dict(args.labels),
            opts=kept,
        ).id
        self.register_outputs({"bucket": self.bucket, "key": self.key})
