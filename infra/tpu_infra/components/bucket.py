"""The bucket, the objects that the stack uploads, and the key that encrypts them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulumi
import pulumi_gcp as gcp

from tpu_core.paths import DATA, WHEELS
from tpu_infra import apis, names
from tpu_infra.checks import Checked, CheckedStack
from tpu_infra.components.services import ProjectServices
from tpu_infra.settings import EncryptionSettings, LifecycleAction, LifecycleRule
from tpu_infra.settings.base import Problem

_DAY = 86400
_DEFAULT_ROTATION_DAYS = 90
_BUILD = "Build it with `tpustack wheel`"
_KEY_ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


class SharedBucket(pulumi.ComponentResource):
    """A regional bucket, private in every way; with `bucket.create: false` one that exists already.

    On `destroy` the bucket stays with its objects, on purpose, unless `bucket.forceDestroy` is set:
    data outlives compute.
    """

    name: pulumi.Output[str]
    url: pulumi.Output[str]
    """`gs://NAME`, without a slash at its end."""
    key: pulumi.Input[str] = ""
    """Full name of the key that encrypts the objects; empty if it is Google's."""
    made: gcp.storage.Bucket | None

    def __init__(self, stack: Checked, services: ProjectServices) -> None:
        super().__init__("tpu-stack:infra:Bucket", "bucket")
        self.made = self._declare(stack, services) if stack.settings.bucket.create else None
        self.name = self.made.name if self.made else pulumi.Output.from_input(stack.names.bucket)
        self.url = pulumi.Output.concat("gs://", self.name)
        self.register_outputs({"url": self.url})

    def _declare(self, stack: Checked, services: ProjectServices) -> gcp.storage.Bucket:
        bucket = stack.settings.bucket
        key = Encryption(stack, bucket.encryption, services) if bucket.encryption else None
        self.key = key.key if key else ""
        days = bucket.soft_delete_days
        return gcp.storage.Bucket(
            "bucket",
            name=stack.names.bucket,
            project=stack.settings.project,
            location=stack.settings.region.upper(),
            force_destroy=bucket.force_destroy,
            uniform_bucket_level_access=True,
            public_access_prevention="enforced",
            versioning={"enabled": bucket.versioning},
            # None leaves what Google does by default; 0 days keep nothing.
            soft_delete_policy=(
                None if days is None else {"retention_duration_seconds": days * _DAY}
            ),
            lifecycle_rules=[_rule(rule) for rule in bucket.lifecycle] or None,
            encryption={"default_kms_key_name": key.key} if key else None,
            labels=stack.marked_labels,
            opts=services.after(
                apis.STORAGE_API,
                parent=self,
                depends_on=[key.usable] if key else (),
                protect=bucket.protect,
                retain_on_delete=not bucket.force_destroy,
                ignore_changes=names.KEPT_LABEL,
            ),
        )


class Bucket(SharedBucket):
    """A stack's bucket with the training wheel and the data.

    What the training writes is not the stack's and never touched, and of a bucket that existed
    already only the uploaded objects are the stack's.
    """

    wheel_url: pulumi.Output[str]
    wheel_sha256: str
    deleted_with: pulumi.Resource | None
    """The bucket, whose deletion deletes all in it; None if it stays on `destroy`."""
    objects: tuple[pulumi.Resource, ...]

    def __init__(self, stack: CheckedStack, services: ProjectServices) -> None:
        super().__init__(stack, services)
        kept = not stack.settings.bucket.force_destroy
        self.deleted_with = None if kept else self.made
        # The digest is part of the wheel's path: a new build is a new object, and a machine that
        # starts with old metadata still finds the old one.
        self.wheel_sha256 = _digest(stack.wheel)
        wheel_path = f"{WHEELS}{self.wheel_sha256[:12]}/{stack.wheel.name}"
        files = {wheel_path: stack.wheel}
        files |= {f"{DATA}{path}": file for path, file in stack.data.items()}

        def asset(file: Path) -> Callable[[str], pulumi.Asset]:
            return lambda _: self._asset(file, stack)

        self.objects = tuple(
            gcp.storage.BucketObject(
                "wheel" if path == wheel_path else path,
                name=path,
                bucket=self.made.name if self.made else stack.names.bucket,
                # Looked at once the bucket is there, which may take minutes.
                source=self.name.apply(asset(file)),
                opts=pulumi.ResourceOptions(
                    parent=self.made or self, retain_on_delete=kept, deleted_with=self.deleted_with
                ),
            )
            for path, file in files.items()
        )
        self.wheel_url = pulumi.Output.concat(self.url, "/", wheel_path)

    def _asset(self, file: Path, stack: CheckedStack) -> pulumi.Asset:
        """Return what is uploaded. Raises RunError if that is no longer what was checked."""
        if file == stack.wheel and _digest(file) != self.wheel_sha256:
            raise _lost("training.wheel", file, "changed", _BUILD)
        if not file.is_file():
            cure = f"Write {stack.settings.training.data} again with `tpu-training data convert`"
            raise _lost("training.data", file, "vanished", cure)
        return pulumi.FileAsset(str(file))


class Encryption(pulumi.ComponentResource):
    """A key of Cloud KMS in the bucket's region, which Cloud Storage's own account may use.

    Google deletes neither key rings nor keys: `destroy` destroys the key's versions. The ring's
    name ends in random characters, so that the stack can be created again.
    """

    key: pulumi.Output[str]
    """The key's full name."""
    usable: pulumi.Resource
    """Ready once a bucket can use the key."""

    def __init__(
        self, stack: Checked, settings: EncryptionSettings, services: ProjectServices
    ) -> None:
        super().__init__("tpu-stack:infra:Encryption", "encryption")
        kept = not stack.settings.bucket.force_destroy
        self.key = (
            pulumi.Output.from_input(settings.key)
            if settings.key
            else self._declare(stack, settings, services)
        )
        self.usable = self
        if stack.settings.grant_roles:
            self.usable = self._granted(stack, services, kept or settings.key is not None)
        self.register_outputs({"key": self.key})

    def _granted(self, stack: Checked, services: ProjectServices, kept: bool) -> pulumi.Resource:
        """Let Cloud Storage's own account use the key."""
        needed = [services.enabled[api] for api in (apis.KMS_API, apis.STORAGE_API)]
        agent = gcp.storage.get_project_service_account_output(
            project=stack.settings.project,
            opts=pulumi.InvokeOutputOptions(parent=self, depends_on=needed),
        )
        usable: pulumi.Resource = gcp.kms.CryptoKeyIAMMember(
            "storage",
            crypto_key_id=self.key,
            role=_KEY_ROLE,
            member=pulumi.Output.concat("serviceAccount:", agent.email_address),
            # The account is the same for all buckets of the project, and another one may use a key
            # that is not the stack's.
            opts=pulumi.ResourceOptions(parent=self, retain_on_delete=kept),
        )
        return usable

    def _declare(
        self, stack: Checked, settings: EncryptionSettings, services: ProjectServices
    ) -> pulumi.Output[str]:
        bucket = stack.settings.bucket
        kept: Any = {"protect": bucket.protect, "retain_on_delete": not bucket.force_destroy}
        ring = gcp.kms.KeyRing(
            stack.names.prefix,
            project=stack.settings.project,
            location=stack.settings.region,
            opts=services.after(apis.KMS_API, apis.STORAGE_API, parent=self, **kept),
        )
        key: pulumi.Output[str] = gcp.kms.CryptoKey(
            "bucket-key",
            name="bucket",
            key_ring=ring.id,
            rotation_period=f"{(settings.rotation_days or _DEFAULT_ROTATION_DAYS) * _DAY}s",
            labels=stack.labels,
            opts=pulumi.ResourceOptions(parent=self, **kept),
        ).id
        return key


def _digest(wheel: Path) -> str:
    try:
        return hashlib.sha256(wheel.read_bytes()).hexdigest()
    except OSError:
        raise _lost("training.wheel", wheel, "vanished", _BUILD) from None


def _lost(setting: str, file: Path, how: str, cure: str) -> pulumi.RunError:
    why = f"{how} after the program had checked it"
    cure = f"{cure}, then run `pulumi up` again"
    return pulumi.RunError(str(Problem(setting, str(file), why, cure)))


def _rule(rule: LifecycleRule) -> Any:
    """Return a rule as Google has it; without a condition on versions, live objects count, too."""
    delete = rule.action is LifecycleAction.DELETE
    old_versions = rule.noncurrent_days is not None or rule.newer_versions is not None
    move = {"type": "SetStorageClass", "storage_class": rule.action.value.upper()}
    condition = {
        "age": rule.age_days,
        "days_since_noncurrent_time": rule.noncurrent_days,
        "num_newer_versions": rule.newer_versions,
        "matches_prefixes": [rule.prefix] if rule.prefix else None,
        "with_state": "ARCHIVED" if old_versions else "ANY",
    }
    return {
        "action": {"type": "Delete"} if delete else move,
        # Nulls of a dict reach the engine, unlike those of Pulumi's own classes of arguments.
        "condition": {key: value for key, value in condition.items() if value is not None},
    }
