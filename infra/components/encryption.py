"""The key of the bucket's objects, and Cloud Storage's permission to use it."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

_DAY = 86400
_DEFAULT_ROTATION_DAYS = 90
_ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


@dataclass(frozen=True)
class EncryptionArgs:
    """The key to declare or to use.

    Attributes:
        key: one that exists already; None for a key of the stack's own.
        kept: whether the bucket outlives the stack, so that its key must, too.
        requires: the APIs of KMS and Cloud Storage.
    """

    project: str
    region: str
    prefix: str
    key: str | None
    rotation_days: int | None
    kept: bool
    protect: bool
    labels: dict[str, str]
    requires: tuple[pulumi.Resource, ...]


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
        self, name: str, args: EncryptionArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Encryption", name, None, opts)
        self.key = pulumi.Output.from_input(args.key) if args.key else self._declare(args)
        agent = gcp.storage.get_project_service_account_output(
            project=args.project,
            opts=pulumi.InvokeOutputOptions(parent=self, depends_on=list(args.requires)),
        )
        self.usable = gcp.kms.CryptoKeyIAMMember(
            "storage",
            crypto_key_id=self.key,
            role=_ROLE,
            member=pulumi.Output.concat("serviceAccount:", agent.email_address),
            # The account is the same for all buckets of the project, and another one may use a key
            # that is not the stack's.
            opts=pulumi.ResourceOptions(
                parent=self, retain_on_delete=args.kept or args.key is not None
            ),
        )
        self.register_outputs({"key": self.key})

    def _declare(self, args: EncryptionArgs) -> pulumi.Output[str]:
        options = pulumi.ResourceOptions(
            parent=self, protect=args.protect, retain_on_delete=args.kept
        )
        ring = gcp.kms.KeyRing(
            args.prefix,
            project=args.project,
            location=args.region,
            opts=pulumi.ResourceOptions.merge(
                options, pulumi.ResourceOptions(depends_on=list(args.requires))
            ),
        )
        key: pulumi.Output[str] = gcp.kms.CryptoKey(
            "bucket-key",
            name="bucket",
            key_ring=ring.id,
            rotation_period=f"{(args.rotation_days or _DEFAULT_ROTATION_DAYS) * _DAY}s",
            labels=args.labels,
            opts=options,
        ).id
        return key
