"""Where the dashboard listens."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest
import requests
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.browser import serving
from tpustack.dashboard.server import address, listen, server
from tpustack.errors import TpustackError


def test_the_address_works_at_once_and_on_this_machine_only() -> None:
    with listen(0) as listener:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        assert address(listener, "secret") == f"http://127.0.0.1:{port}/#token=secret"
        with socket.create_connection((host, port), timeout=10):
            pass


def test_a_port_in_use_is_one_message() -> None:
    with listen(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(TpustackError, match=f"--port={port}: 127.0.0.1:{port} can't be used"):
            listen(port)


def test_serving_leaves_the_log_handlers_of_the_process_open() -> None:
    class Handler(logging.Handler):
        closed = False

        def close(self) -> None:
            self.closed = True
            super().close()

    handler = Handler()
    with listen(0) as listener:
        server(_nothing, listener, "token")
    assert not handler.closed
    handler.close()


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None: ...


@pytest.mark.slow
def test_the_end_cuts_streams_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                yield b"line\n"
                await asyncio.sleep(0.01)

        await StreamingResponse(lines())(scope, receive, send)

    with ExitStack() as running:
        url = running.enter_context(serving(endless, "token")).partition("#")[0]
        with requests.get(url, stream=True, timeout=30) as stream:
            received = stream.iter_lines()
            assert next(received) == b"line"
            running.close()
    assert capfd.readouterr().err == ""
