"""What the stack declares of its TPUs, in the bucket, where the agent reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from infra.components import storage
from tpu_core.paths import DECLARATION
from tpu_core.records import stamped


def declare_tpus(
    bucket: pulumi.Input[str],
    bodies: Mapping[str, Any],
    tpus: Sequence[pulumi.Resource],
    parent: pulumi.Resource,
) -> None:
    """Declare the object with what the API gets that creates each TPU, by name.

    It is made after the TPUs and deleted before them, so that the agent never makes one anew that
    `destroy` deletes.
    """
    storage.BucketObject(
        "declaration",
        name=DECLARATION,
        bucket=bucket,
        content=pulumi.Output.json_dumps(stamped({"tpus": bodies}), sort_keys=True, indent=1),
        content_type="application/json",
        opts=pulumi.ResourceOptions(
            parent=parent, depends_on=list(tpus), delete_before_replace=True
        ),
    )
