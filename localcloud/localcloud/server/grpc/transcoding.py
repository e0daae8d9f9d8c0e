"""Messages to REST calls and JSON back to messages, by the rules of google.api.http."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import quote

from google.api_core import path_template, rest_helpers
from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from localcloud.core.call import Request, Response
from localcloud.core.errors import ApiError, invalid
from localcloud.server.grpc.methods import Rpc
from localcloud.server.http2 import Headers


def request_of(rpc: Rpc, sent: bytes, host: str, headers: Headers) -> Request:
    """Return the REST call that a message stands for.

    Raises:
        ApiError: 400 when the bytes are no such message or no rule's path fits it.
    """
    message = rpc.request()
    try:
        message.ParseFromString(sent)
        call = path_template.transcode(rpc.rules, message)
    except (DecodeError, ValueError) as error:
        raise invalid(str(error)) from None
    query: dict[str, list[str]] = {}
    for name, value in rest_helpers.flatten_query_params(_json(call["query_params"]), strict=True):
        query.setdefault(name, []).append(value)
    body = json.dumps(_json(call["body"])).encode() if "body" in call else b""
    return Request(
        verb=call["method"].upper(),
        host=host,
        path=quote(call["uri"], safe="/:"),
        query=query,
        headers=headers,
        stream=io.BytesIO(body),
        length=len(body),
    )


def message_of(rpc: Rpc, response: Response) -> bytes:
    """Return the message in a response.

    Raises:
        ApiError: the error, when the response is one.
    """
    body = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    told = json.loads(body or b"{}")
    if response.status >= 400:
        error = told["error"]
        raise ApiError(
            error["code"],
            error["message"],
            status=error["status"],
            details=error.get("details"),
        )
    # A field that is newer than the client's message is left out, as its REST transport does.
    message = json_format.ParseDict(told, rpc.response(), ignore_unknown_fields=True)
    answered: bytes = message.SerializeToString()
    return answered


def _json(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = json_format.MessageToDict(message)
    return shown
