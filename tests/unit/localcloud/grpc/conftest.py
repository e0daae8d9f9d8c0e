"""Google's own clients of gRPC, led to the local cloud by their channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import grpc  # type: ignore[import-untyped]
import pytest

from localcloud.app import LocalCloud
from localcloud.core.call import CLOUD_PLATFORM, Principal
from localcloud.core.cloud import DEVELOPER

Channel = Callable[..., grpc.Channel]


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("cloudkms.googleapis.com", "tpu.googleapis.com", "compute.googleapis.com")


@pytest.fixture
def channel(local_cloud: LocalCloud) -> Iterator[Channel]:
    """Opens a channel to a host as a member of the project; as nobody when that is empty."""
    with ExitStack() as stack:

        def opened(host: str, member: str = DEVELOPER, scope: str = CLOUD_PLATFORM) -> grpc.Channel:
            roots = local_cloud.authority.certificate.read_bytes()
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            if member:
                principal = Principal(member, frozenset({scope}))
                token = local_cloud.cloud.token(principal, lifetime=86400)
                call = grpc.access_token_call_credentials(token)
                credentials = grpc.composite_channel_credentials(credentials, call)
            proxy = ("grpc.http_proxy", f"http://127.0.0.1:{local_cloud.listener.port}")
            made = grpc.secure_channel(f"{host}:443", credentials, options=[proxy])
            return stack.enter_context(made)

        yield opened
