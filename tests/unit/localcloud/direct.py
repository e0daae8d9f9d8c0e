"""The local cloud without its port: a client's request goes where the port would hand it.

A test of what an API says has no use for a connection with TLS, which takes milliseconds. This
proves nothing of TLS, bodies that are streamed, broken connections, timeouts or a thread for each
client: tests/unit/localcloud/server and storage do.
"""

from __future__ import annotations

import functools
import io
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

import requests
from requests.adapters import BaseAdapter
from requests.utils import get_encoding_from_headers

from localcloud.app import LocalCloud
from localcloud.core.call import Request
from localcloud.core.cloud import DEVELOPER
from localcloud.server import authority
from localcloud.testing import Client

_FOLDER = tempfile.TemporaryDirectory(prefix="authority-")
# Keys, and a bundle of hundreds of the system's certificates: half of what a start takes.
_AUTHORITY = functools.cache(lambda: authority.Authority(Path(_FOLDER.name)))


def local_cloud_at(home: Path, **settings: Any) -> LocalCloud:
    """A local cloud with the same authority as the others of this process."""
    with mock.patch.object(authority, "Authority", return_value=_AUTHORITY()):
        made = LocalCloud(home, **settings)
    # Where the command line looks for it.
    shutil.copytree(_FOLDER.name, home / "tls", dirs_exist_ok=True)
    return made


class _Direct(BaseAdapter):
    """Asks the listener without connecting to it."""

    def __init__(self, local_cloud: LocalCloud) -> None:
        super().__init__()
        self._answer = local_cloud.listener.answer

    def send(
        self, request: requests.PreparedRequest, *_: object, **__: object
    ) -> requests.Response:
        at = urlsplit(str(request.url))
        body = _whole(request.body)
        query = parse_qs(at.query, keep_blank_values=True)
        answer = self._answer(
            Request(
                str(request.method),
                at.hostname or "",
                at.path or "/",
                query,
                request.headers,
                io.BytesIO(body),
                len(body),
            )
        )
        made = requests.Response()
        made.status_code, made.request, made.url = answer.status, request, str(request.url)
        made.headers.update(answer.headers)
        made.encoding = get_encoding_from_headers(made.headers)
        made.raw = io.BytesIO(b"" if request.method == "HEAD" else _whole(answer.body))
        return made

    def close(self) -> None:
        pass


def _whole(body: Any) -> bytes:
    if body is None or isinstance(body, bytes | str):
        return body.encode() if isinstance(body, str) else body or b""
    if isinstance(body, Iterable):
        return b"".join(body)
    return bytes(body.read())


class DirectClient(Client):
    """A client of a started local cloud that needs no connection."""

    def __init__(self, local_cloud: LocalCloud, member: str = DEVELOPER, *scopes: str) -> None:
        super().__init__(local_cloud, member, *scopes)
        self.session.mount("https://", _Direct(local_cloud))

    def as_member(self, member: str, *scopes: str) -> DirectClient:
        return DirectClient(self.local_cloud, member, *scopes)
