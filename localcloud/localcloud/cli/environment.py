"""`env`: the variables that lead Google's clients to the local cloud."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import Any

from localcloud.cli.client import Commands, ask

_LOCAL = "127.0.0.1,localhost,::1"


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    env = commands.add_parser("env", parents=[common], help="print what a shell needs")
    how = env.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("--unset", action="store_true", help="unset them again")
    env.set_defaults(run=_env)


def _env(options: argparse.Namespace) -> int:
    if options.unset:
        names = _variables(options.home, 0, "", "", "")
        print("\n".join(f"unset {name}" for name in names))
        return 0
    found = variables(options.home)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
    return 0


def variables(home: Path) -> dict[str, str]:
    """Return the variables by name; the files that they point at are written beside the state."""
    port = ask(home, "GET", "status")["port"]
    credentials = ask(home, "GET", "credentials")
    file = str(_write_credentials(home, credentials))
    return _variables(home, port, credentials["project"], credentials["access_token"], file)


def _variables(home: Path, port: int, project: str, token: str, file: str) -> dict[str, str]:
    bundle = str(home / "tls" / "ca-bundle.pem")
    proxy = f"http://127.0.0.1:{port}"
    return {
        # Every client: the proxy, and the authority whose certificates it shows.
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "NO_PROXY": _LOCAL,
        "no_proxy": _LOCAL,
        "SSL_CERT_FILE": bundle,
        "REQUESTS_CA_BUNDLE": bundle,
        "CURL_CA_BUNDLE": bundle,
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": bundle,
        "NODE_EXTRA_CA_CERTS": str(home / "tls" / "ca.pem"),
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": bundle,
        # Who calls: the provider, gcloud, TensorFlow, and Google's Python and Go libraries.
        "GOOGLE_OAUTH_ACCESS_TOKEN": token,
        "CLOUDSDK_AUTH_ACCESS_TOKEN": token,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": token,
        "GOOGLE_APPLICATION_CREDENTIALS": file,
        "NO_GCE_CHECK": "true",
        # Where: the project.
        "GOOGLE_PROJECT": project,
        "GOOGLE_CLOUD_PROJECT": project,
        "CLOUDSDK_CORE_PROJECT": project,
    }


def _write_credentials(home: Path, credentials: dict[str, Any]) -> Path:
    """Write a user's application default credentials, whose tokens the local cloud renews."""
    path = home / "application_default_credentials.json"
    path.touch(mode=0o600)
    content = {
        "type": "authorized_user",
        "client_id": "local.apps.googleusercontent.com",
        "client_secret": "local",
        "refresh_token": credentials["refresh_token"],
        "quota_project_id": credentials["project"],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path
