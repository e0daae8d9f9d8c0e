"""Tell a webhook something, in Slack's form or Discord's.

Whoever knows the URL may write there, so it is a secret: it is read from Secret Manager each time,
kept nowhere, and in no message of an error.
https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
https://discord.com/developers/docs/resources/webhook#execute-webhook
"""

from __future__ import annotations

import base64
import binascii
import json
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from .google import Call, message
from .jobs.transport import NoRedirects

_SECRETS = "https://secretmanager.googleapis.com/v1/"
_SECONDS = 10.0
_DISCORD = ("discord.com", "discordapp.com")
# Discord takes no more characters.
_LONGEST = 1900


class MessageError(Exception):
    """Somebody could not be told; the message never has a webhook's URL."""


def secret_url(call: Call, secret: str) -> str:
    """Return the URL that a secret holds, by its full name. Raises MessageError or OSError."""
    status, answer = call("GET", f"{_SECRETS}{secret}/versions/latest:access", None)
    if status != 200:
        raise MessageError(f"{secret} can't be read: HTTP status {status}: {message(answer)}")
    try:
        url = base64.b64decode(answer["payload"]["data"]).decode("ascii").strip()
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))
        is_sound = is_safe and parts.hostname and url.isprintable() and " " not in url
    except (KeyError, TypeError, ValueError, binascii.Error):
        is_sound = False
    if not is_sound:
        raise MessageError(f"{secret} holds no https:// URL")
    return url


def _is_here(host: str | None) -> bool:
    """Return whether an address never leaves this machine, where a relay may listen."""
    return ip_address(host or "").is_loopback


def body(url: str, text: str) -> dict[str, Any]:
    """Return what a webhook takes: nobody is mentioned, whatever the text has."""
    text = text[:_LONGEST]
    parts = urlsplit(url)
    if parts.hostname in _DISCORD and not parts.path.endswith("/slack"):
        return {"content": text, "allowed_mentions": {"parse": []}}
    for character, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escaped)
    return {"text": text}


def post(url: str, text: str) -> None:
    """Tell a webhook a text. Raises MessageError."""
    data = json.dumps(body(url, text)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "tpu-stack"}
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
    try:
        with urllib.request.build_opener(https, NoRedirects).open(request, timeout=_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        raise MessageError(f"the webhook answers with HTTP status {error.code}") from None
    except (OSError, HTTPException, ValueError) as error:
        raise MessageError(f"the webhook can't be told: {type(error).__name__}") from None
