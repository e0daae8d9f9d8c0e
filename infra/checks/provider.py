"""The generation of Google's provider that is installed: 8 to 10 work, 8 alone has TPU nodes."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.tpu import Architecture

# https://github.com/pulumi/pulumi-gcp/releases/tag/v9.0.0 takes `gcp.tpu.Node` out.
_LAST_WITH_NODES = 8


def check_provider(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the provider still has what the architecture needs."""
    generation = int(context.provider.partition(".")[0])
    if settings.architecture is Architecture.NODE and generation > _LAST_WITH_NODES:
        yield Problem(
            "architecture",
            settings.architecture.value,
            f"needs classic TPU nodes, which pulumi-gcp {context.provider} has no more",
            "Use architecture vm, or install the last generation that has them: "
            f"`pip install 'pulumi-gcp>={_LAST_WITH_NODES}.34,<{_LAST_WITH_NODES + 1}'`",
        )
