"""Google's own clients against the local cloud, led there by their environment alone."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import google.oauth2.credentials
import pytest
from google.api_core.exceptions import Conflict, NotFound, PreconditionFailed
from google.cloud import storage

from localcloud.core.cloud import Cloud, Fault
from localcloud.core.projects import DEFAULT_PROJECT
from tests.unit.localcloud.storage.conftest import HOST, Bucket

Run = Callable[..., str]

# Clients as processes of their own, of a server that answers them.
pytestmark = pytest.mark.server


@pytest.fixture
def run(client_environment: dict[str, str], tmp_path: Path) -> Run:
    """Runs a command in a folder of its own; its output."""

    def command(*words: str, feed: str = "") -> str:
        done = subprocess.run(
            words,
            env=client_environment,
            cwd=tmp_path,
            input=feed,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return command


@pytest.fixture
def client(
    client_environment: dict[str, str], owner: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[storage.Client]:
    for name in ("HTTPS_PROXY", "https_proxy", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, client_environment[name])
    credentials = google.oauth2.credentials.Credentials(owner)  # type: ignore[no-untyped-call]
    made = storage.Client(project=DEFAULT_PROJECT, credentials=credentials)
    yield made
    made.close()


def test_curl_puts_and_reads_ranges(bucket: Bucket, run: Run, owner: str, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(data)
    url = f"{HOST}/{bucket.name}/dir/file"
    token = ("--header", f"Authorization: Bearer {owner}")
    run("curl", "--fail", "--silent", "--upload-file", "file", *token, url)
    run("curl", "--fail", "--silent", "--range", "5-1000004", "--output", "part", *token, url)
    assert (tmp_path / "part").read_bytes() == data[5:1_000_005]
    run("sh", "-c", 'curl --fail --silent -T - -H "$1" "$2" < file', "sh", token[1], url)
    head = run("curl", "--fail", "--silent", "--head", *token, url)
    assert f"content-length: {len(data)}" in head.lower()


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_copies_lists_and_removes(
    bucket: Bucket,
    run: Run,
    owner: str,
    tmp_path: Path,
    client_environment: dict[str, str],
) -> None:
    client_environment |= {
        "CLOUDSDK_AUTH_ACCESS_TOKEN": owner,
        "CLOUDSDK_CORE_PROJECT": DEFAULT_PROJECT,
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": client_environment["SSL_CERT_FILE"],
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
    }
    root = f"gs://{bucket.name}"
    (tmp_path / "folder").mkdir()
    for name in ("one", "two"):
        (tmp_path / "folder" / name).write_text(f"{name}\n")
    run("gcloud", "storage", "cp", "--recursive", "folder", f"{root}/")
    listed = run("gcloud", "storage", "ls", "--recursive", f"{root}/**")
    assert listed.split() == [f"{root}/folder/one", f"{root}/folder/two"]
    assert run("gcloud", "storage", "cat", f"{root}/folder/two") == "two\n"
    run("gcloud", "storage", "rm", "--recursive", root)
    assert bucket.api.get(bucket.url, status=404)


def test_the_python_client_uploads_and_downloads(
    client: storage.Client, bucket: Bucket, tmp_path: Path
) -> None:
    remote = client.bucket(bucket.name)
    text = remote.blob("text")
    text.metadata = {"job": "one"}
    text.upload_from_string("hello", content_type="text/plain", if_generation_match=0)
    assert text.download_as_text() == "hello"
    with pytest.raises(PreconditionFailed):
        text.upload_from_string("again", if_generation_match=0)
    data = os.urandom(9 << 20)
    (tmp_path / "file").write_bytes(data)
    remote.blob("file").upload_from_filename(str(tmp_path / "file"))
    chunked = remote.blob("chunked", chunk_size=1 << 20)
    chunked.upload_from_file(io.BytesIO(data))
    assert chunked.download_as_bytes() == data
    assert remote.blob("file").download_as_bytes(start=7, end=1_000_000) == data[7:1_000_001]
    assert remote.blob("file").download_as_bytes(checksum="crc32c") == data
    with remote.blob("stream").open("wb", chunk_size=1 << 18) as writer:
        writer.write(data)
    with remote.blob("stream").open("rb", chunk_size=1 << 20) as reader:
        reader.seek(5 << 20)
        assert reader.read(10) == data[5 << 20 :][:10]


def test_the_python_client_composes_copies_lists_and_deletes(
    client: storage.Client, bucket: Bucket
) -> None:
    remote = client.bucket(bucket.name)
    for name in ("logs/1", "logs/2", "top"):
        remote.blob(name).upload_from_string(name)
    whole = remote.blob("logs/all")
    whole.compose([remote.blob("logs/1"), remote.blob("logs/2")])
    assert whole.download_as_bytes() == b"logs/1logs/2"
    token, *sizes = remote.blob("copy").rewrite(whole)
    assert (token, sizes) == (None, [12, 12])
    found = client.list_blobs(remote, delimiter="/")
    assert [blob.name for blob in found] == ["copy", "top"]
    assert found.prefixes == {"logs/"}
    assert [blob.name for blob in client.list_blobs(remote, match_glob="logs/?")] == [
        "logs/1",
        "logs/2",
    ]

    def delete_at_once(*names: str) -> None:
        with client.batch():
            for name in names:
                remote.blob(name).delete()

    with client.batch():
        for name in ("logs/1", "logs/2"):
            blob = remote.blob(name)
            blob.metadata = {"batch": "über"}
            blob.patch()
    assert remote.get_blob("logs/2").metadata == {"batch": "über"}
    delete_at_once("logs/1", "logs/2")
    with pytest.raises(NotFound):
        delete_at_once("logs/1", "top")
    assert [blob.name for blob in client.list_blobs(remote)] == ["copy", "logs/all"]
    whole.update_storage_class("NEARLINE")
    whole.reload()
    assert whole.storage_class == "NEARLINE"
    with pytest.raises(Conflict):
        remote.delete()
    remote.delete(force=True)
    assert not remote.exists()


def test_the_python_client_manages_buckets_and_policies(client: storage.Client) -> None:
    remote = client.create_bucket("made-by-python", location="europe-west4")
    remote.add_lifecycle_delete_rule(age=3, matches_prefix=["tmp/"])
    remote.versioning_enabled = True
    remote.labels = {"team": "tpu"}
    remote.patch()
    remote.reload()
    assert next(iter(remote.lifecycle_rules))["condition"] == {"age": 3, "matchesPrefix": ["tmp/"]}
    policy = remote.get_iam_policy(requested_policy_version=3)
    member = "user:trainer@example.com"
    policy.bindings.append({"role": "roles/storage.objectUser", "members": {member}})
    remote.set_iam_policy(policy)
    found = remote.get_iam_policy(requested_policy_version=3)
    assert {"role": "roles/storage.objectUser", "members": {member}} in found.bindings
    held = remote.test_iam_permissions(["storage.objects.get", "storage.objects.create"])
    assert held == ["storage.objects.get", "storage.objects.create"]
    assert [bucket.name for bucket in client.list_buckets()] == ["made-by-python"]


def test_the_python_client_tries_again_after_injected_faults(
    client: storage.Client, bucket: Bucket, cloud: Cloud
) -> None:
    remote = client.bucket(bucket.name)
    cloud.faults.add(Fault(method="storage.objects.insert", status=503, count=1, skip=2))
    blob = remote.blob("file", chunk_size=1 << 18)
    data = os.urandom(1 << 20)
    blob.upload_from_file(io.BytesIO(data), if_generation_match=0)
    cloud.faults.add(Fault(method="storage.objects.get", status=503, count=1))
    assert blob.download_as_bytes() == data
    assert cloud.faults.items() == []


@pytest.mark.parametrize("status", [0, 503])
def test_the_python_client_ends_a_large_upload_whose_answers_are_lost(
    client: storage.Client, bucket: Bucket, cloud: Cloud, status: int
) -> None:
    lost = Fault("storage.objects.insert", status=status, count=1, skip=1, carried_out=True)
    cloud.faults.add(lost)
    data = os.urandom(1 << 20)
    blob = client.bucket(bucket.name).blob("file", chunk_size=1 << 18)
    blob.upload_from_file(io.BytesIO(data))
    assert blob.download_as_bytes() == data
    assert cloud.faults.items() == []


def test_the_python_client_is_told_412_when_the_answer_to_its_first_try_is_lost(
    client: storage.Client, bucket: Bucket, cloud: Cloud
) -> None:
    cloud.faults.add(Fault("storage.objects.insert", status=0, count=1, carried_out=True))
    blob = client.bucket(bucket.name).blob("mark")
    with pytest.raises(PreconditionFailed):
        blob.upload_from_string("mine", if_generation_match=0)
    assert blob.download_as_bytes() == b"mine"
