"""Cloud Storage's resources."""

from __future__ import annotations

from infra.components.resource import Resource


class Bucket(Resource):
    """A bucket."""

    labelled = True


class BucketIAMMember(Resource):
    """Somebody's role on a bucket."""


class BucketObject(Resource):
    """An object, with its content."""

    secrets = ("content", "customer_encryption")
