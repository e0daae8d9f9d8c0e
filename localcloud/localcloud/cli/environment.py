"""`env`: the variables that lead Google's clients to the local cloud."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localcloud.cli.client import Commands, ask, typed
from localcloud.server import authority

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
        print("\n".join(_taken_back(os.environ)))
        return 0
    found = variables(options.home)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_set(name, value) for name, value in found.items()))
        back = f'eval "$({typed()} env --unset)" takes that back'
        print(f"for this shell: {', '.join(found)}; {back}", file=sys.stderr)
    return 0


def variables(home: Path) -> dict[str, str]:
    """Return the variables by name; the files that they point at are written beside the state."""
    port = ask(home, "GET", "status")["port"]
    return of(home, port, ask(home, "GET", "credentials"), os.environ)


def of(
    home: Path, port: int, credentials: dict[str, Any], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables for a shell.

    Args:
        home: of the local cloud.
        port: where it listens.
        credentials: as its own API gives them.
        environment: of the shell, whose own authorities stay trusted.
    """
    file = str(_write_credentials(home, credentials))
    tls = home / "tls"
    bundle = authority.write_bundle(tls, (tls / "ca.pem").read_bytes(), environment)
    about = credentials["access_token"], file, credentials["project"]
    return _pointing(port, *about) | _trusting(str(bundle)) | authority.kept_variables(environment)


def _pointing(port: int, token: str, file: str, project: str) -> dict[str, str]:
    proxy = f"http://127.0.0.1:{port}"
    return {
        # Every client: the proxy.
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "NO_PROXY": _LOCAL,
        "no_proxy": _LOCAL,
        # Who calls: the provider, gcloud, TensorFlow, and Google's Python and Go libraries.
        "GOOGLE_OAUTH_ACCESS_TOKEN": token,
        "CLOUDSDK_AUTH_ACCESS_TOKEN": token,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": token,
        "GOOGLE_APPLICATION_CREDENTIALS": file,
        "NO_GCE_CHECK": "true",
        # Where: the project; TensorFlow asks a metadata server, for the zone too.
        "GCE_METADATA_IP": f"127.0.0.1:{port}",
        "GOOGLE_PROJECT": project,
        "GOOGLE_CLOUD_PROJECT": project,
        "CLOUDSDK_CORE_PROJECT": project,
    }


def _trusting(bundle: str) -> dict[str, str]:
    """Return the variables that name the authorities, to every client in its own way."""
    return dict.fromkeys([*authority.BUNDLE_VARIABLES, authority.OWN_BUNDLE], bundle)


def _taken_back(environment: Mapping[str, str]) -> list[str]:
    """Return the lines that unset everything and give the user's own authorities back."""
    users = authority.users_variables(environment)
    names = [*_pointing(0, "", "", ""), *_trusting(""), *authority.kept_variables(environment)]
    return [_set(name, users[name]) if name in users else f"unset {name}" for name in names]


def _set(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"


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
