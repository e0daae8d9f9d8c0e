"""The bucket and the objects that the stack uploads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi

from infra.components import mark, storage
from infra.components.encryption import Encryption
from infra.settings.bucket import LifecycleAction, LifecycleRule

_DAY = 86400


@dataclass(frozen=True)
class BucketArgs:
    """`data` maps names below `data/` to files; `requires` is what the bucket waits for."""

    project: str
    name: str
    region: str
    create: bool
    wheel: Path
    data: Mapping[str, Path]
    force_destroy: bool
    protect: bool
    versioning: bool
    soft_delete_days: int | None
    lifecycle: Sequence[LifecycleRule]
    encryption: Encryption | None
    labels: Mapping[str, str]
    requires: tuple[pulumi.Resource, ...] = ()


class Bucket(pulumi.ComponentResource):
    """A regional bucket with the training wheel and the data; private in every way.

    Without `create` the bucket exists already, and only the uploaded objects are the stack's.

    On `destroy` the bucket stays with its objects, on purpose, unless `force_destroy` is set: data
    outlives compute. What the training writes is not the stack's and never touched.
    """

    name: pulumi.Output[str]
    url: pulumi.Output[str]
    """`gs://NAME`, without a slash at its end."""
    wheel_url: pulumi.Output[str]
    wheel_sha256: str
    deleted_with: pulumi.Resource | None
    """The bucket, whose deletion deletes all in it; None if it stays on `destroy`."""
    objects: tuple[pulumi.Resource, ...]

    def __init__(
        self, name: str, args: BucketArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Bucket", name, None, opts)
        kept = not args.force_destroy
        bucket = self._declare(args, kept) if args.create else None
        self.deleted_with = None if kept else bucket
        # The digest is part of the wheel's path: a new build is a new object, and a machine that
        # starts with old metadata still finds the old one.
        self.wheel_sha256 = hashlib.sha256(args.wheel.read_bytes()).hexdigest()
        wheel_path = f"wheels/{self.wheel_sha256[:12]}/{args.wheel.name}"
        files = {wheel_path: args.wheel}
        files |= {f"data/{path}": file for path, file in args.data.items()}
        self.objects = tuple(
            storage.BucketObject(
                "wheel" if path == wheel_path else path,
                name=path,
                bucket=bucket.name if bucket else args.name,
                source=pulumi.FileAsset(str(file)),
                opts=pulumi.ResourceOptions(
                    parent=bucket or self, retain_on_delete=kept, deleted_with=self.deleted_with
                ),
            )
            for path, file in files.items()
        )
        self.name = bucket.name if bucket else pulumi.Output.from_input(args.name)
        self.url = pulumi.Output.concat("gs://", self.name)
        self.wheel_url = pulumi.Output.concat(self.url, "/", wheel_path)
        self.register_outputs({"url": self.url})

    def _declare(self, args: BucketArgs, kept: bool) -> storage.Bucket:
        key, deleted = args.encryption, args.soft_delete_days
        requires = [*args.requires, key.usable] if key else list(args.requires)
        return storage.Bucket(
            "bucket",
            name=args.name,
            project=args.project,
            location=args.region.upper(),
            force_destroy=args.force_destroy,
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            versioning={"enabled": args.versioning},
            soft_delete_policy=None
            if deleted is None
            else {"retention_duration_seconds": deleted * _DAY},
            lifecycle_rules=[_rule(rule) for rule in args.lifecycle] or None,
            encryption={"default_kms_key_name": key.key} if key else None,
            labels=mark.labels(args.labels),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=requires,
                protect=args.protect,
                retain_on_delete=kept,
                ignore_changes=mark.KEPT_LABEL,
            ),
        )


def _rule(rule: LifecycleRule) -> dict[str, Any]:
    delete = rule.action is LifecycleAction.DELETE
    old_versions = rule.noncurrent_days is not None or rule.newer_versions is not None
    return {
        "action": {
            "type": "Delete" if delete else "SetStorageClass",
            "storage_class": None if delete else rule.action.value.upper(),
        },
        "condition": {
            "age": rule.age_days,
            "days_since_noncurrent_time": rule.noncurrent_days,
            "num_newer_versions": rule.newer_versions,
            "matches_prefixes": [rule.prefix] if rule.prefix else None,
            "with_state": "ARCHIVED" if old_versions else "ANY",
        },
    }
