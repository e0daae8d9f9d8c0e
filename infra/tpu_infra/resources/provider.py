"""Serves the project's own resources to the engine, and loads no pickle of the state.

For each dynamic resource the state holds a pickle of its provider, and anyone who can write the
state could put another one there. So a pickle is only ever compared, byte for byte, with those of
this checkout. The engine starts this module through plugin/.
"""

import base64
import runpy
from typing import Final

import dill
from pulumi import dynamic
from pulumi.dynamic.dynamic import serialize_provider

from tpu_infra.resources.request import QueuedNodeProvider, QueuedRequestProvider
from tpu_infra.resources.vertex import VertexJobsProvider

Provider = type[dynamic.ResourceProvider]
PROVIDERS: Final[dict[str, Provider]] = {
    "tpu:QueuedResource": QueuedRequestProvider,
    "tpu:QueuedNode": QueuedNodeProvider,
    "vertex:CustomJobs": VertexJobsProvider,
}
"""Those of a stack, here and as the components' plugin (tpu_infra/plugin.py), by resource."""


class UnknownProviderError(Exception):
    """The state names a provider that is not of this checkout."""

    def __init__(self) -> None:
        super().__init__(
            "the state names a dynamic provider that this checkout doesn't have, so it isn't "
            "run. Another release wrote the state, or someone changed it manually. Use the "
            "release that last deployed the stack, or restore an earlier state (docs/repair.md)"
        )


def known() -> dict[str, Provider]:
    """Return the providers by their pickles, in base64, as the state has them."""
    return {serialize_provider(each()): each for each in PROVIDERS.values()}


def provider_of(pickled: bytes) -> dynamic.ResourceProvider:
    """Return the provider that a pickle stands for, without loading the pickle.

    Raises:
        UnknownProviderError: when it stands for none of this checkout.
    """
    provider = known().get(base64.b64encode(pickled).decode("ascii"))
    if provider is None:
        raise UnknownProviderError
    return provider()


def main() -> None:
    """Serve as Pulumi's own program does, until the engine ends this process."""
    # The one place where Pulumi's program turns what the state says into an object.
    dill.loads = provider_of
    runpy.run_module("pulumi.dynamic", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
