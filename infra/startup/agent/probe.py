"""Probe whether a gRPC server answers: the API may call a TPU READY that is dead."""

from __future__ import annotations

import socket

# RFC 9113, section 3.4: a client starts with this and a SETTINGS frame, and a server answers with
# its own SETTINGS.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_FRAME_HEADER_BYTES = 9
_TIMEOUT_SECONDS = 3.0


def why_silent(host: str, port: int) -> str | None:
    """Return None if a gRPC server answers, else the reason in a few words."""
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_SECONDS) as connection:
            connection.sendall(_HELLO)
            return None if connection.recv(_FRAME_HEADER_BYTES) else "closes the connection"
    except TimeoutError:
        return f"no answer in {_TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
