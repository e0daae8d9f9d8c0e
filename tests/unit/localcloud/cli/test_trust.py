"""A shell of the local cloud trusts the user's own authorities beside the local cloud's."""

from __future__ import annotations

import contextlib
import io
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
import trustme

from localcloud import cli
from localcloud.app import LocalCloud
from localcloud.server import authority
from localcloud.server.authority import Authority
from tests.serving import in_thread

CREDENTIALS = {"project": "tpu-stack-local", "access_token": "t", "refresh_token": "r"}
# An address that no NO_PROXY of `env` names: clients go by way of the local cloud.
INDEX = "127.0.0.2" if sys.platform.startswith("linux") else "localhost"
WHEEL = "thing-1.0-py3-none-any.whl"


@dataclass
class Company:
    """A company's authority, and its package index with one package."""

    authority: Path
    url: str


def wheel() -> bytes:
    metadata = "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("thing-1.0.dist-info/METADATA", metadata)
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    return content.getvalue()


class Index(BaseHTTPRequestHandler):
    """A package index."""

    def do_GET(self) -> None:
        page = f'<!DOCTYPE html><a href="/{WHEEL}">{WHEEL}</a>'.encode()
        body = wheel() if self.path.endswith(".whl") else page
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def company(tmp_path: Path) -> Iterator[Company]:
    authority = trustme.CA(organization_name="a company")
    file = tmp_path / "company.pem"
    authority.cert_pem.write_to_path(file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(INDEX).configure_cert(context)
    server = ThreadingHTTPServer((INDEX, 0), Index)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with in_thread(server):
        yield Company(file, f"https://{INDEX}:{server.server_address[1]}")


def shell(local_cloud: LocalCloud, own: dict[str, str]) -> dict[str, str]:
    """The environment of a shell that has set `own`, after `env`."""
    cloud = local_cloud.cloud
    return own | cli.variables_of(cloud.home, local_cloud.listener.port, CREDENTIALS, own)


def pip(variables: dict[str, str], company: Company, folder: Path) -> str:
    """What pip says that gets the package; empty when all is well."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--retries=0"]
    command += ["--disable-pip-version-check", f"--index-url={company.url}/simple", "thing"]
    done = subprocess.run(
        command,
        env={**variables, "PIP_CONFIG_FILE": "/dev/null", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (folder / WHEEL).exists() == (done.returncode == 0)
    return done.stderr


def test_pip_gets_packages_behind_a_companys_authority(
    local_cloud: LocalCloud, company: Company, tmp_path: Path
) -> None:
    variables = shell(local_cloud, {"SSL_CERT_FILE": str(company.authority)})
    assert pip(variables, company, tmp_path) == ""
    assert get("https://storage.googleapis.com/storage/v1/b/none", variables) in (401, 403, 404)
    with pytest.raises(requests.exceptions.SSLError):
        get(company.url, shell(local_cloud, {}))


def get(url: str, variables: dict[str, str]) -> int:
    """The status of an answer by way of the local cloud."""
    proxies = {"https": variables["HTTPS_PROXY"]}
    bundle = variables["REQUESTS_CA_BUNDLE"]
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(url, proxies=proxies, verify=bundle, timeout=20)
        return answer.status_code


def test_ssl_cert_dir_is_trusted_and_missing_files_are_ignored(
    local_cloud: LocalCloud, company: Company, tmp_path: Path
) -> None:
    own = {"SSL_CERT_DIR": str(company.authority.parent), "CURL_CA_BUNDLE": "/nowhere"}
    bundle = Path(shell(local_cloud, own)["CURL_CA_BUNDLE"])
    assert company.authority.read_bytes().strip() in bundle.read_bytes()


def test_a_second_env_and_other_shells_keep_what_the_first_trusts(
    local_cloud: LocalCloud, company: Company
) -> None:
    first = shell(local_cloud, {"SSL_CERT_FILE": str(company.authority)})
    shell(local_cloud, {})
    again = shell(local_cloud, first)
    assert again == first
    trusted = Path(first["SSL_CERT_FILE"]).read_bytes()
    assert company.authority.read_bytes().strip() in trusted


def test_unset_gives_the_users_own_back(
    local_cloud: LocalCloud,
    company: Company,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in authority.BUNDLE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in shell(local_cloud, {"SSL_CERT_FILE": str(company.authority)}).items():
        monkeypatch.setenv(name, value)
    with contextlib.suppress(SystemExit):
        cli.main(["env", "--unset"])
    lines = capsys.readouterr().out.splitlines()
    assert f"export SSL_CERT_FILE={company.authority}" in lines
    assert {"unset CURL_CA_BUNDLE", "unset HTTPS_PROXY", f"unset {authority.OWN_BUNDLE}"} <= set(
        lines
    )


def test_machines_trust_what_the_clouds_own_user_does(
    company: Company, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(company.authority))
    bundle = Authority(tmp_path / "tls").bundle
    assert company.authority.read_bytes().strip() in bundle.read_bytes()
