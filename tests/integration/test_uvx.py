"""`uvx tpustack demo`, word for word, on a machine with Python, uv and a package index alone.

Pulumi's download site is one of the test's own: its address is in the Automation API, which asks it
through a proxy here.
"""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import trustme

from tests.patience import PATIENCE
from tests.serving import in_thread
from tpustack.engine import toolchain
from tpustack.engine.toolchain import Toolchain

from .installed import empty_machine

pytestmark = pytest.mark.xdist_group("installed")
Uvx = Callable[..., "subprocess.CompletedProcess[str]"]


class Site(ThreadingHTTPServer):
    """A proxy that leads to a site with Pulumi's installer, and to nothing else.

    Attributes:
        asked: the hosts that it was asked for.
        installer: the script that is downloaded; empty: none.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.installer = ""
        authority = trustme.CA()
        self.authority = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.authority))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("get.pulumi.com").configure_cert(self.context)


class Handler(BaseHTTPRequestHandler):
    """Answers inside of the tunnel."""

    server: Site

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_CONNECT(self) -> None:
        """Be the site, if it is the one that is asked for."""
        self.server.asked.append(self.path)
        if self.path != "get.pulumi.com:443" or not self.server.installer:
            self.send_error(502)
            return
        self.send_response(200)
        self.end_headers()
        with self.server.context.wrap_socket(self.connection, server_side=True) as tunnel:
            assert tunnel.recv(1 << 16).startswith(b"GET /install.sh ")
            body = self.server.installer.encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            tunnel.sendall(head.encode() + body)
        self.close_connection = True


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with in_thread(Site(tmp_path)) as server:
        yield server


@pytest.fixture
def uvx(wheels: dict[str, Path], tools: Toolchain, site: Site, tmp_path: Path) -> Uvx:
    """Runs a program on that machine, in its empty home."""
    variables = {
        # It has the provider, which needs another site.
        **toolchain.engine(tools),
        **empty_machine(tmp_path, wheels),
        "HTTPS_PROXY": f"http://127.0.0.1:{site.server_port}",
        "SSL_CERT_FILE": str(site.authority),
        "npm_config_fetch_retries": "0",
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["uvx", *command],
            cwd=variables["HOME"],
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return run


@pytest.mark.slow
def test_uvx_tpustack_demo_goes_to_a_trained_model_word_for_word(
    uvx: Uvx, site: Site, tools: Toolchain, tmp_path: Path
) -> None:
    # As Pulumi's: --no-edit-path --install-root FOLDER --version VERSION
    site.installer = f'#!/bin/sh\nmkdir -p "$3" && cp -r "{tools.bin}" "$3/bin"\n'
    done = uvx("tpustack", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Pulumi (" in done.stdout
    made = tmp_path / "home" / "tpu-stack-demo"
    summary = json.loads((made / ".demo" / "summary.json").read_text(encoding="utf-8"))
    # Chance is 0.1.
    assert summary["test_accuracy"] >= 0.3
    assert summary["replicas"] == 8
    assert summary["second_up_changes"] == 0
    assert summary["resources_left"] == 0
    assert "scikit-learn's digits" in done.stdout
    assert site.asked[0] == "get.pulumi.com:443"


INSTALL = """
from tpustack.engine import toolchain
from tpustack.errors import TpustackError
try:
    toolchain.install()
except TpustackError as error:
    exit(f"error: {error}")
"""


def install(site: Site, folder: Path) -> str:
    """What it writes where the engine can't be installed."""
    variables = {
        "PATH": os.defpath,
        "XDG_CACHE_HOME": str(folder),
        "HTTPS_PROXY": f"http://127.0.0.1:{site.server_port}",
        "SSL_CERT_FILE": str(site.authority),
    }
    command = [sys.executable, "-c", INSTALL]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False
    ).stderr


@pytest.mark.parametrize(
    ("installer", "reason"),
    [
        ("", "<urlopen error Tunnel connection failed: 502 Bad Gateway>"),
        ("#!/bin/sh\necho no such version >&2\nexit 1\n", "no such version"),
        ("#!/bin/sh\n", "No such file or directory"),
        (
            '#!/bin/sh\nmkdir -p "$3/bin"; ln -s /bin/false "$3/bin/pulumi"\n',
            "exit status",
        ),
    ],
)
def test_an_engine_that_cannot_be_installed_is_told_with_a_cure_and_leaves_nothing(
    site: Site, installer: str, reason: str, tmp_path: Path
) -> None:
    site.installer = installer
    said = install(site, tmp_path / "cache")
    assert said.startswith(f"error: Pulumi {version('pulumi')} can't be installed: ")
    assert reason in said
    cure = "Install the Pulumi CLI (https://www.pulumi.com/docs/install/), so that PATH has it\n"
    assert said.endswith(f"\n{cure}")
    assert [*(tmp_path / "cache" / "tpu-stack").iterdir()] == []


def test_another_version_than_that_of_the_api_is_not_installed(site: Site, tmp_path: Path) -> None:
    site.installer = INSTALLER_OF.format(version="3.200.0")
    said = install(site, tmp_path / "cache")
    assert "your current CLI version is 3.200.0" in said
    site.installer = INSTALLER_OF.format(version=version("pulumi"))
    assert install(site, tmp_path / "cache") == ""
    assert [path.name for path in (tmp_path / "cache" / "tpu-stack").iterdir()] == [
        f"pulumi-{version('pulumi')}"
    ]


def test_two_that_install_the_engine_at_once_both_have_it(site: Site, tmp_path: Path) -> None:
    made = tmp_path / "cache" / "tpu-stack" / f"pulumi-{version('pulumi')}"
    # The other one ends while this one still installs.
    site.installer = INSTALLER_OF.format(version=version("pulumi")) + f'cp -r "$3" "{made}"\n'
    assert install(site, tmp_path / "cache") == ""
    assert [*made.parent.iterdir()] == [made]


def test_an_engine_that_was_damaged_is_installed_again(site: Site, tmp_path: Path) -> None:
    made = tmp_path / "cache" / "tpu-stack" / f"pulumi-{version('pulumi')}"
    (made / "share").mkdir(parents=True)
    site.installer = INSTALLER_OF.format(version=version("pulumi"))
    assert install(site, tmp_path / "cache") == ""
    assert [path.name for path in made.iterdir()] == ["bin"]


INSTALLER_OF = """#!/bin/sh
mkdir -p "$3/bin"
printf '#!/bin/sh\necho v{version}\n' >"$3/bin/pulumi"
chmod +x "$3/bin/pulumi"
"""
