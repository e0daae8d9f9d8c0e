from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core.call import Json
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client

HOST = "https://storage.googleapis.com"


class Bucket:
    """A bucket of the test's own, with the calls that most tests make."""

    def __init__(self, api: Client, name: str = "test-bucket", **settings: Any) -> None:
        self.api = api
        self.name = name
        self.url = f"{HOST}/storage/v1/b/{name}"
        self.upload_url = f"{HOST}/upload/storage/v1/b/{name}/o"
        body = {"name": name, "location": "US-CENTRAL1", **settings}
        api.post(f"{HOST}/storage/v1/b", body, project=DEFAULT_PROJECT)

    def send(self, name: str, data: bytes = b"data", **query: Any) -> requests.Response:
        """A simple upload's raw response."""
        params = {"uploadType": "media", "name": name, **query}
        return self.api.session.post(self.upload_url, params=params, data=data, timeout=30)

    def put(self, name: str, data: bytes = b"data", **query: Any) -> Json:
        """Upload an object; its resource."""
        response = self.send(name, data, **query)
        assert response.status_code == 200, response.text
        resource: Json = response.json()
        return resource

    def read(self, name: str, status: int = 200, **headers: str) -> bytes:
        """An object's bytes, read as TensorFlow does."""
        response = self.api.session.get(f"{HOST}/{self.name}/{name}", headers=headers, timeout=30)
        assert response.status_code == status, response.text
        return response.content

    def names(self, **query: Any) -> list[str]:
        """The names of the objects that a list call finds."""
        page = self.api.get(f"{self.url}/o", **query)
        return [item["name"] for item in page.get("items", [])]


@pytest.fixture
def api(local_cloud: LocalCloud) -> Client:
    """The owner's client through the port: how bytes come and go is what these tests are about."""
    return Client(local_cloud)


@pytest.fixture
def bucket(api: Client) -> Bucket:
    return Bucket(api, softDeletePolicy={"retentionDurationSeconds": "0"})


@pytest.fixture
def files(local_cloud: LocalCloud) -> Callable[[], list[Path]]:
    """The files that hold objects' bytes."""
    root = local_cloud.cloud.home / "objects"
    return lambda: [path for path in root.rglob("*") if path.is_file()]


@pytest.fixture
def client_environment(local_cloud: LocalCloud, owner: str, tmp_path: Path) -> dict[str, str]:
    """The environment by which Google's clients reach the local cloud, and nothing else."""
    proxy = f"http://127.0.0.1:{local_cloud.listener.port}"
    authority = str(local_cloud.authority.bundle)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "CURL_CA_BUNDLE": authority,
        "REQUESTS_CA_BUNDLE": authority,
        "SSL_CERT_FILE": authority,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": owner,
        "NO_GCE_CHECK": "true",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
