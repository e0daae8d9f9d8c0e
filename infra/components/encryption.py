"""The key of the bucket's objects, and Cloud Storage's right to use it."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

_DAY = 86400
_DEFAULT_ROTATION_DAYS = 90
_ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"


@dataclass(frozen=True)
class EncryptionArgs:
    """`key` is one that is there already, or None for one of the stack's own.

    `kept`: the bucket outlives the stack, and so must its key. `requires` is what all of it waits
    for (the APIs of KMS and storage).
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

    Google deletes neither key rings nor keys: `destroy` destroys the key's versions, and the ring's
    name has random characters at its end, so that a stack can be made again.
    """

    key: pulumi.Output[str]
    """The key's full name."""
    usable: pulumi.Resource
    """What a bucket must wait for before it can use the key."""

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
            # Another bucket of the project may be encrypted with a key that is not the stack's: the
            # account is the same for all of them.
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
