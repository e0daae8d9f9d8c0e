"""A bucket of the stacks' state, and the key of the secrets in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from bootstrap.settings import OLD_VERSIONS, SOFT_DELETE

# Ninety days, which Google's documentation of key rotation suggests:
# https://cloud.google.com/kms/docs/key-rotation
_ROTATION = f"{90 * 24 * 3600}s"


@dataclass(frozen=True)
class StateArgs:
    """`requires` are the APIs that it waits for."""

    project: str
    region: str
    bucket: str
    labels: Mapping[str, str]
    requires: tuple[pulumi.Resource, ...] = ()


class State(pulumi.ComponentResource):
    """A private bucket with the old versions of everything.

    It is protected: without it the state of its stacks is lost.
    """

    bucket: pulumi.Output[str]

    def __init__(
        self, name: str, args: StateArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:State", name, None, opts)
        self.bucket = gcp.storage.Bucket(
            f"{name}-bucket",
            name=args.bucket,
            project=args.project,
            location=args.region.upper(),
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            versioning={"enabled": True},
            soft_delete_policy={"retention_duration_seconds": SOFT_DELETE},
            lifecycle_rules=[
                {
                    "action": {"type": "Delete"},
                    "condition": {"num_newer_versions": OLD_VERSIONS, "with_state": "ARCHIVED"},
                }
            ],
            labels=dict(args.labels),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(args.requires), protect=True),
        ).name
        self.register_outputs({"bucket": self.bucket})


@dataclass(frozen=True)
class KeysArgs:
    """`names` are those of the keys."""

    project: str
    region: str
    ring: str
    names: tuple[str, ...]
    labels: Mapping[str, str]
    requires: tuple[pulumi.Resource, ...] = ()


class Keys(pulumi.ComponentResource):
    """A ring of keys that are rotated, each protected: without it its stacks' secrets are lost."""

    keys: Mapping[str, pulumi.Output[str]]
    """By name: `projects/P/locations/L/keyRings/R/cryptoKeys/K`."""

    def __init__(
        self, name: str, args: KeysArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:bootstrap:Keys", name, None, opts)
        kept = pulumi.ResourceOptions(parent=self, depends_on=list(args.requires), protect=True)
        ring = gcp.kms.KeyRing(
            "ring", name=args.ring, project=args.project, location=args.region, opts=kept
        )
        self.keys = {
            key: gcp.kms.CryptoKey(
                f"{key}-key",
                name=key,
                key_ring=ring.id,
                rotation_period=_ROTATION,
                labels=dict(args.labels),
                opts=kept,
            ).id
            for key in args.names
        }
        self.register_outputs({})
