from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core import Record
from localcloud.core.clock import VirtualClock
from localcloud.services.storage import records, versions
from localcloud.testing import Client
from tests.patience import until
from tests.unit.localcloud.storage.conftest import Bucket

QUANTUM = 1 << 18


def start(bucket: Bucket, name: str = "big", **headers: str) -> str:
    answer = bucket.api.session.post(
        bucket.upload_url,
        params={"uploadType": "resumable", "name": name},
        headers=headers,
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    return answer.headers["Location"]


def send(
    bucket: Bucket, url: str, data: bytes, content_range: str, **headers: str
) -> requests.Response:
    return bucket.api.session.put(
        url, data=data, headers={"Content-Range": content_range, **headers}, timeout=30
    )


def test_the_session_lies_where_the_client_asked(bucket: Bucket) -> None:
    assert start(bucket).startswith("https://storage.googleapis.com/upload/storage/v1/b/")
    answer = bucket.api.session.post(
        bucket.upload_url.replace("storage.googleapis.com", "www.googleapis.com"),
        params={"uploadType": "resumable", "name": "x"},
        timeout=30,
    )
    assert answer.headers["Location"].startswith("https://www.googleapis.com/upload/")


def test_an_upload_in_chunks_becomes_one_object(bucket: Bucket) -> None:
    data = bytes(range(256)) * 2100
    url = start(bucket)
    first = send(bucket, url, data[:QUANTUM], f"bytes 0-{QUANTUM - 1}/*")
    assert first.status_code == 308
    assert first.headers["Range"] == f"bytes=0-{QUANTUM - 1}"
    assert bucket.names() == []
    size = len(data)
    last = send(bucket, url, data[QUANTUM:], f"bytes {QUANTUM}-{size - 1}/{size}")
    assert last.status_code == 200
    assert last.json()["size"] == str(size)
    assert bucket.read("big") == data
    again = send(bucket, url, b"", f"bytes */{size}")
    assert again.json() == last.json()


def test_the_status_tells_how_far_an_upload_is(bucket: Bucket) -> None:
    url = start(bucket)
    assert "Range" not in send(bucket, url, b"", "bytes */*").headers
    send(bucket, url, b"x" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
    status = send(bucket, url, b"", f"bytes */{2 * QUANTUM}")
    assert (status.status_code, status.headers["Range"]) == (308, f"bytes=0-{QUANTUM - 1}")


def test_of_an_odd_chunk_only_multiples_of_256_kib_are_kept(bucket: Bucket) -> None:
    url = start(bucket)
    size = QUANTUM + 100
    answer = send(bucket, url, b"x" * size, f"bytes 0-{size - 1}/*")
    assert answer.headers["Range"] == f"bytes=0-{QUANTUM - 1}"


def test_a_chunk_sent_twice_counts_once(bucket: Bucket) -> None:
    url = start(bucket)
    send(bucket, url, b"a" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
    total = QUANTUM + 3
    last = send(bucket, url, b"a" * QUANTUM + b"end", f"bytes 0-{total - 1}/{total}")
    assert last.status_code == 200
    assert bucket.read("big") == b"a" * QUANTUM + b"end"


@pytest.mark.parametrize(
    ("content_range", "word"),
    [
        ("bytes 524288-524290/*", "exceeds already uploaded size of 0"),
        ("octets 0-2/3", "parse Content-Range"),
    ],
)
def test_a_wrong_range_is_refused(bucket: Bucket, content_range: str, word: str) -> None:
    url = start(bucket)
    answer = send(bucket, url, b"abc", content_range)
    assert answer.status_code == 400
    assert word in answer.text
    assert bucket.names() == []


def test_an_empty_object_can_be_uploaded(bucket: Bucket) -> None:
    assert send(bucket, start(bucket), b"", "bytes */0").json()["size"] == "0"
    assert bucket.read("big") == b""


def test_a_session_expires_after_a_week(bucket: Bucket, clock: VirtualClock) -> None:
    url = start(bucket)
    clock.advance(versions.UPLOAD_LIFETIME - 1)
    assert send(bucket, url, b"", "bytes */*").status_code == 308
    clock.advance(3602)
    assert send(bucket, url, b"", "bytes */*").status_code == 404
    assert bucket.api.local_cloud.cloud.store.keys(records.UPLOAD) == []


def test_go_clients_get_another_status_than_308(bucket: Bucket) -> None:
    url = start(bucket)
    answer = bucket.api.session.post(
        url,
        data=b"x" * QUANTUM,
        headers={"Content-Range": f"bytes 0-{QUANTUM - 1}/*", "X-GUploader-No-308": "yes"},
        timeout=30,
    )
    assert answer.status_code == 200
    assert answer.headers["X-HTTP-Status-Code-Override"] == "308"
    assert answer.headers["Range"] == f"bytes=0-{QUANTUM - 1}"


def test_a_wrong_checksum_at_the_end_ends_the_session(bucket: Bucket) -> None:
    url = start(bucket)
    wrong = {"x-goog-hash": "crc32c=AAAAAA=="}
    answer = send(bucket, url, b"abc", "bytes 0-2/3", **wrong)
    assert answer.status_code == 400
    assert "doesn't match calculated CRC32C" in answer.text
    assert send(bucket, url, b"abc", "bytes 0-2/3").status_code == 404


def test_a_precondition_is_checked_at_the_start_and_at_the_end(bucket: Bucket) -> None:
    params = {"uploadType": "resumable", "name": "big", "ifGenerationMatch": "0"}
    post = bucket.api.session.post
    started = post(bucket.upload_url, params=params, timeout=30)
    bucket.put("big", b"faster")
    ended = send(bucket, started.headers["Location"], b"abc", "bytes 0-2/3")
    assert ended.status_code == 412
    assert post(bucket.upload_url, params=params, timeout=30).status_code == 412
    assert bucket.read("big") == b"faster"


def test_an_interrupted_upload_keeps_the_bytes_that_arrived(
    bucket: Bucket, local_cloud: LocalCloud
) -> None:
    url = start(bucket)
    path = url.removeprefix("https://storage.googleapis.com")
    raw = socket.create_connection(("127.0.0.1", local_cloud.listener.port), timeout=10)
    raw.sendall(b"CONNECT storage.googleapis.com:443 HTTP/1.1\r\n\r\n")
    assert b"200" in raw.recv(1000)
    context = ssl.create_default_context(cafile=str(local_cloud.authority.certificate))
    with context.wrap_socket(raw, server_hostname="storage.googleapis.com") as tls:
        head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
        tls.sendall(head.encode() + b"x" * (QUANTUM + 1000))
        # Closing with bytes unread would reset the connection and throw away what was sent.
        tls.shutdown(socket.SHUT_WR)
        while tls.recv(1000):
            pass
    kept = until(lambda: send(bucket, url, b"", "bytes */9000000").headers.get("Range"))
    assert kept == f"bytes=0-{QUANTUM - 1}"
    assert bucket.names() == []


def test_an_upload_whose_last_step_broke_off_is_begun_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket.api.local_cloud.cloud.store
    put, url = store.put, start(bucket)

    def break_off(kind: str, key: str, record: Record) -> None:
        if kind == records.UPLOAD:
            raise OSError("killed")
        put(kind, key, record)

    with monkeypatch.context() as patched:
        patched.setattr(store, "put", break_off)
        assert send(bucket, url, b"1", "bytes 0-0/1").status_code == 500
    assert send(bucket, url, b"1", "bytes 0-0/1").status_code == 404
    assert bucket.read("big") == b"1"


def test_a_resumable_upload_survives_a_restart(tmp_path: Path, clock: VirtualClock) -> None:
    home = tmp_path / "cloud"
    before = LocalCloud(home, clock=clock)
    before.start()
    bucket = Bucket(Client(before))
    url = start(bucket)
    send(bucket, url, b"a" * QUANTUM, f"bytes 0-{QUANTUM - 1}/*")
    before.stop()
    after = LocalCloud(home, clock=VirtualClock(clock.now()))
    after.start()
    bucket.api = Client(after)
    status = send(bucket, url, b"", "bytes */*")
    assert status.headers["Range"] == f"bytes=0-{QUANTUM - 1}"
    total = QUANTUM + 3
    last = send(bucket, url, b"end", f"bytes {QUANTUM}-{total - 1}/{total}")
    assert last.status_code == 200, last.text
    assert bucket.read("big") == b"a" * QUANTUM + b"end"
    after.stop()
