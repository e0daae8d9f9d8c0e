"""A bucket of a local cloud in this process, which notes what TensorFlow asks it for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import requests
import tensorflow as tf

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal, Request, Response
from localcloud.core.cloud import DEVELOPER
from localcloud.core.registry import Dispatcher
from localcloud.testing import Client
from tpu_training.data import shards
from tpu_training.data.data_set import DataSet
from tpu_training.data.pipeline import training_rows
from tpu_training.models.params import Params

_NAME = "counted"


@dataclass
class Counted:
    """What was asked for.

    Attributes:
        served: the bytes of objects that were sent.
        calls: how many requests there were.
        session: a client of its owner.
    """

    served: int = 0
    calls: int = 0
    session: requests.Session = field(default_factory=requests.Session)

    def note(self, request: Request, response: Response) -> None:
        """Count an answer; of content alone the length is known before."""
        self.calls += 1
        if request.verb == "GET":
            self.served += response.length or 0

    def upload(self, folder: Path) -> str:
        """Copy the files of `folder`, without TensorFlow; return the URL of the copy."""
        for path in folder.iterdir():
            self.session.post(
                f"https://storage.googleapis.com/upload/storage/v1/b/{_NAME}/o",
                params={"uploadType": "media", "name": f"{folder.name}/{path.name}"},
                data=path.read_bytes(),
                timeout=60,
            ).raise_for_status()
        return f"gs://{_NAME}/{folder.name}"


@contextlib.contextmanager
def counted_bucket(home: Path) -> Iterator[Counted]:
    """A bucket that TensorFlow in this process reaches; the local cloud keeps it in `home`."""
    counted, answer = Counted(), Dispatcher.answer

    def noted(self: Dispatcher, request: Request) -> Response:
        response = answer(self, request)
        counted.note(request, response)
        return response

    with mock.patch.object(Dispatcher, "answer", noted):
        cloud = LocalCloud(home)
        cloud.start()
    try:
        client = Client(cloud)
        client.post(
            "storage.googleapis.com/storage/v1/b", {"name": _NAME}, project=projects.DEFAULT_PROJECT
        )
        counted.session = client.session
        with mock.patch.dict(os.environ, _environment(cloud)):
            yield counted
    finally:
        cloud.stop()


def _environment(cloud: LocalCloud) -> dict[str, str]:
    token = cloud.cloud.token(Principal(DEVELOPER, own_client=True), lifetime=86400)
    proxy, authority = f"http://127.0.0.1:{cloud.listener.port}", str(cloud.authority.bundle)
    return {
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "CURL_CA_BUNDLE": authority,
        "REQUESTS_CA_BUNDLE": authority,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": token,
        "NO_GCE_CHECK": "true",
    }


def served_by_used(at: Counted, data: DataSet, params: Params, hosts: int) -> float:
    """Let each of the hosts read its rows of an epoch, after which there are no more."""
    train, before = data.manifest.split("train"), at.served

    with mock.patch.object(shards, "epochs_from", lambda first: tf.data.Dataset.range(first, 1)):
        for host in range(hosts):
            for _ in training_rows(data, params, 0, hosts, host):
                pass
    return (at.served - before) / train.bytes
