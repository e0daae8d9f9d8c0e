"""The providers of this checkout, by the pickles under which a state may name them.

For each dynamic resource the state holds a pickle of its provider, and whoever can write the state
could put another one there. So a pickle is only ever compared, byte for byte, and never loaded.
"""

from __future__ import annotations

import base64

from pulumi import dynamic
from pulumi.dynamic.dynamic import serialize_provider

from infra.managed_jobs import VertexJobsProvider
from infra.queued.node import QueuedNodeProvider
from infra.queued.request import QueuedRequestProvider

Provider = type[dynamic.ResourceProvider]


class UnknownProviderError(Exception):
    """The state names a provider that is not of this checkout."""

    def __init__(self) -> None:
        super().__init__(
            "the state names a dynamic provider that is not of this checkout: another release made "
            "it, or somebody has changed the state. It is not run. Use the release that deployed "
            "the stack last, or put an earlier state back (docs/state.md)"
        )


def known() -> dict[str, Provider]:
    """Return the providers by their pickles, in base64, as the state has them."""
    ours = (QueuedRequestProvider, QueuedNodeProvider, VertexJobsProvider)
    return {serialize_provider(each()): each for each in ours}


def provider_of(pickled: bytes) -> dynamic.ResourceProvider:
    """Return the provider that a pickle stands for, without loading the pickle.

    Raises:
        UnknownProviderError: when it stands for none of this checkout.
    """
    provider = known().get(base64.b64encode(pickled).decode("ascii"))
    if provider is None:
        raise UnknownProviderError
    return provider()
