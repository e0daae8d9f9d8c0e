"""Serves the queue's resources to the engine as Pulumi's own program does, but loads no pickle."""

from __future__ import annotations

import runpy

import dill

from infra.queued.known import provider_of


def main() -> None:
    """Serve until the engine ends this process."""
    # The one place where Pulumi's program turns what the state says into an object.
    dill.loads = provider_of
    runpy.run_module("pulumi.dynamic", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
