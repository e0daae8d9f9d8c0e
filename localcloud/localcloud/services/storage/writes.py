"""Writing an object: the checks and the moment at which the new version becomes visible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from localcloud.core.call import Json, Principal
from localcloud.core.cloud import Cloud
from localcloud.services.storage import api, encryption, object_fields, records, versions
from localcloud.services.storage.conditions import Conditions
from localcloud.services.storage.content import Checksums, Contents, Hashes
from localcloud.services.storage.names import check_object_name
from localcloud.services.storage.records import Bucket, Version


@dataclass(frozen=True)
class Write:
    """An object that a caller wants to write.

    Attributes:
        principal: whose permission counts when an object is replaced.
        body: the object resource that the caller sent.
        hashes: checksums that the bytes must have.
    """

    bucket: str
    name: str
    principal: Principal
    body: Json = field(default_factory=dict)
    conditions: Conditions = field(default_factory=Conditions)
    hashes: Hashes = field(default_factory=Hashes)

    def check(self, cloud: Cloud) -> None:
        """Refuse what can't succeed, before any byte is taken.

        Raises:
            ApiError: 400 for a bad name or field, 403, 404 or 412.
        """
        check_object_name(self.name)
        object_fields.writable(self.body)
        object_fields.storage_class(self.body, "STANDARD")
        self._require(cloud, "storage.objects.create")
        self._admit(cloud)

    def take(self, cloud: Cloud, chunks: Iterable[bytes]) -> Version:
        """Check, write the bytes, and make them the object's live version; see `finish`."""
        self.check(cloud)
        with Contents(cloud).draft() as draft:
            draft.fill(chunks)
            return self.finish(cloud, draft.path, draft.digest.result())

    def finish(
        self, cloud: Cloud, path: Path, checksums: Checksums, *, components: int | None = None
    ) -> Version:
        """Make the bytes in `path`, which is moved away, the object's live version.

        Raises:
            ApiError: 400 when the checksums differ, 403, 404, 412, or 507 on a full disk.
        """
        checksums.check(self.hashes)
        fields = object_fields.without_nulls(object_fields.writable(self.body))
        with cloud.store.locked():
            bucket = self._admit(cloud)
            now = cloud.clock.now()
            sorted_by_google = (bucket.settings.get("autoclass") or {}).get("enabled")
            if bucket.settings.get("defaultEventBasedHold"):
                fields.setdefault("eventBasedHold", True)
            version = Version(
                bucket=self.bucket,
                name=self.name,
                generation=versions.next_generation(cloud, self.bucket, self.name),
                metageneration=1,
                content=Contents(cloud).keep(path, self.bucket),
                size=checksums.size,
                crc32c=checksums.crc32c,
                md5=checksums.md5,
                storage_class=object_fields.storage_class(
                    {} if sorted_by_google else self.body, bucket.settings["storageClass"]
                ),
                created=now,
                updated=now,
                class_updated=now,
                fields=fields,
                components=components,
                kms_version=encryption.encrypting_version(cloud, bucket),
            )
            versions.publish(cloud, bucket, version)
        return version

    def _admit(self, cloud: Cloud) -> Bucket:
        bucket = records.require_bucket(cloud, self.bucket)
        live = records.find(cloud, self.bucket, self.name)
        self.conditions.check(live)
        if live is not None:
            self._require(cloud, "storage.objects.delete")
            versions.protect(cloud, bucket, live)
        return bucket

    def _require(self, cloud: Cloud, permission: str) -> None:
        api.require(cloud, self.principal, self.bucket, permission, self.name)
