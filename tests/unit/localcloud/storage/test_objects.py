from __future__ import annotations

import base64
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import google_crc32c
import pytest

from localcloud.testing import session
from tests.unit.localcloud.storage.conftest import HOST, Bucket


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def multipart(metadata: dict[str, object], data: bytes, end: bytes = b"\r\n") -> bytes:
    lines = [
        b"--frontier",
        b"Content-Type: application/json; charset=UTF-8",
        b"",
        json.dumps(metadata).encode(),
        b"--frontier",
        b"Content-Type: text/plain",
        b"",
        data,
        b"--frontier--",
        b"",
    ]
    return end.join(lines)


def send_multipart(bucket: Bucket, body: bytes, boundary: str = "frontier") -> dict[str, object]:
    answer = bucket.api.session.post(
        bucket.upload_url,
        params={"uploadType": "multipart"},
        data=body,
        headers={"Content-Type": f"multipart/related; boundary={boundary}"},
        timeout=30,
    )
    resource: dict[str, object] = answer.json() | {"status": answer.status_code}
    return resource


def test_an_uploaded_object_shows_its_checksums_and_reads_back(bucket: Bucket) -> None:
    data = bytes(range(256)) * 5000
    made = bucket.put("dir/file.bin", data)
    assert made["size"] == str(len(data))
    assert made["md5Hash"] == md5(data)
    assert made["crc32c"] == crc32c(data)
    assert made["id"] == f"{bucket.name}/dir/file.bin/{made['generation']}"
    assert bucket.api.get(f"{bucket.url}/o/dir%2Ffile.bin") == made
    assert bucket.read("dir%2Ffile.bin") == data
    for url in (made["mediaLink"], f"{bucket.url}/o/dir%2Ffile.bin?alt=media"):
        answer = bucket.api.session.get(str(url), timeout=30)
        assert answer.content == data
        assert answer.headers["x-goog-generation"] == made["generation"]
        assert answer.headers["x-goog-hash"] == f"crc32c={crc32c(data)},md5={md5(data)}"


@pytest.mark.parametrize("name", ["a b", "ü/✓", "per%cent", "a//b", "q?x=1#y", "/lead", "+plus"])
def test_any_name_comes_back_as_it_was(bucket: Bucket, name: str) -> None:
    bucket.put(name, name.encode())
    assert bucket.names() == [name]
    assert bucket.read(quote(name, safe="")) == name.encode()
    bucket.api.delete(f"{bucket.url}/o/{quote(name, safe='')}", status=204)
    assert bucket.names() == []


@pytest.mark.parametrize("name", ["x" * 1025, "a\nb", "a\rb", ".", ".."])
def test_a_bad_object_name_is_refused(bucket: Bucket, name: str) -> None:
    refused = bucket.send(name)
    assert refused.status_code == 400
    assert "Invalid object name" in refused.text


def test_custom_metadata_has_8_kib_at_most(bucket: Bucket) -> None:
    full = {"k": "v" * 8191}
    made = send_multipart(bucket, multipart({"name": "m", "metadata": full}, b""), "frontier")
    assert made["metadata"] == full
    over = multipart({"name": "n", "metadata": full | {"l": ""}}, b"")
    assert send_multipart(bucket, over, "frontier")["status"] == 400
    bucket.api.patch(f"{bucket.url}/o/m", {"metadata": {"l": "ü"}}, status=400)


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_multipart_upload_carries_metadata(bucket: Bucket, end: bytes) -> None:
    data = b"line\r\n--frontie\n\r\n--" * 70000
    body = multipart({"name": "m", "metadata": {"k": "v"}, "md5Hash": md5(data)}, data, end)
    made = send_multipart(bucket, body, "'frontier'")
    assert made["status"] == 200, made
    assert made["contentType"] == "text/plain"
    assert made["metadata"] == {"k": "v"}
    assert bucket.read("m") == data


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (multipart({"name": "m", "nonsense": 1}, b"x"), "nonsense"),
        (multipart({"name": "m"}, b"x").replace(b"--frontier--", b""), "two parts"),
        (b"no boundary at all\r\n", "two parts"),
        (multipart({"name": "m", "crc32c": "AAAAAA=="}, b"x"), "doesn't match calculated CRC32C"),
        (multipart({}, b"x"), "Invalid object name"),
        (multipart({"name": "m", "retention": {"mode": "Locked"}}, b"x"), "retention"),
    ],
)
def test_a_bad_multipart_upload_is_refused_and_leaves_nothing(
    bucket: Bucket, body: bytes, word: str
) -> None:
    made = send_multipart(bucket, body)
    assert made["status"] in (400, 501)
    assert word in json.dumps(made["error"])
    assert bucket.names() == []


def test_a_checksum_in_a_header_is_verified(bucket: Bucket) -> None:
    url = f"{HOST}/{bucket.name}/x"
    wrong = {"x-goog-hash": f"md5={md5(b'other')}"}
    assert bucket.api.session.put(url, data=b"data", headers=wrong, timeout=30).status_code == 400
    right = {"x-goog-hash": f"crc32c={crc32c(b'data')},md5={md5(b'data')}"}
    assert bucket.api.session.put(url, data=b"data", headers=right, timeout=30).ok


@pytest.mark.parametrize(
    ("header", "status", "expected"),
    [
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=7-100", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=-100", 206, b"0123456789"),
        ("bytes=0-9", 206, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ],
)
def test_a_range_is_read(bucket: Bucket, header: str, status: int, expected: bytes) -> None:
    bucket.put("digits", b"0123456789")
    assert bucket.read("digits", status, Range=header) == expected


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0"])
def test_a_range_beyond_the_end_cannot_be_satisfied(bucket: Bucket, header: str) -> None:
    bucket.put("digits", b"0123456789")
    url = f"{bucket.url}/o/digits?alt=media"
    answer = bucket.api.session.get(url, headers={"Range": header}, timeout=30)
    assert answer.status_code == 416
    assert answer.headers["Content-Range"] == "bytes */10"


def test_head_gives_headers_without_bytes(bucket: Bucket) -> None:
    bucket.put("digits", b"0123456789")
    answer = bucket.api.session.head(f"{HOST}/{bucket.name}/digits", timeout=30)
    assert answer.headers["Content-Length"] == "10"
    assert answer.headers["x-goog-hash"].endswith(f"md5={md5(b'0123456789')}")
    assert answer.content == b""


@pytest.mark.parametrize("name", ["x-goog-if-generation-match", "X-Goog-Meta-job", "x-goog-acl"])
@pytest.mark.parametrize("verb", ["GET", "PUT"])
def test_a_header_of_the_xml_api_that_would_be_ignored_is_refused(
    bucket: Bucket, verb: str, name: str
) -> None:
    url = f"{HOST}/{bucket.name}/x"
    answer = bucket.api.session.request(verb, url, headers={name: "0"}, timeout=30)
    assert (answer.status_code, name.lower() in answer.text.lower()) == (501, True)
    assert bucket.names() == []


def test_a_multipart_upload_that_would_fill_the_memory_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("localcloud.core.call._LARGEST_BODY", 1 << 20)
    body = multipart({"name": "m"}, bytes(1 << 21))
    query = {"uploadType": "multipart"}
    headers = {"Content-Type": "multipart/related; boundary=frontier"}
    for data in (body, iter([body])):
        answer = bucket.api.session.post(
            bucket.upload_url, params=query, data=data, headers=headers, timeout=30
        )
        assert answer.status_code == 413
        assert "at most 1 MiB" in answer.text
    assert bucket.names() == []


def test_gcsfs_deletes_by_a_batch_of_one_call(bucket: Bucket) -> None:
    bucket.put("a/b")
    mark = "===============7330845974216740156=="
    part = (
        f"\n--{mark}\nContent-Type: application/http\nContent-Transfer-Encoding: binary\n"
        "Content-ID: <b29c5de2-0db4-490b-b421-6a51b598bd11+1>\n\n"
        f"DELETE /storage/v1/b/{bucket.name}/o/a%2Fb HTTP/1.1\nContent-Type: application/json\n"
        "accept: application/json\ncontent-length: 0\n"
    )
    answer = bucket.api.session.post(
        f"{HOST}/batch/storage/v1",
        data=f"{part}\n--{mark}--",
        headers={"Content-Type": f'multipart/mixed; boundary="{mark}"'},
        timeout=30,
    )
    assert "HTTP/1.1 204" in answer.text
    assert bucket.names() == []


def test_generation_preconditions_hold_on_every_call(bucket: Bucket) -> None:
    first = bucket.put("x", b"1", ifGenerationMatch=0)["generation"]
    assert bucket.send("x", b"2", ifGenerationMatch=0).status_code == 412
    assert bucket.send("new", b"2", ifGenerationMatch=7).status_code == 412
    assert bucket.send("new", b"2", ifGenerationNotMatch=0).status_code == 412
    url = f"{bucket.url}/o/x"
    api = bucket.api
    api.get(url, ifGenerationMatch=1, status=412)
    api.get(url, ifGenerationNotMatch=first, status=304)
    api.get(url, ifMetagenerationNotMatch=1, status=304)
    api.get(url, alt="media", ifMetagenerationMatch=9, status=412)
    api.patch(url, {"metadata": {"a": "b"}}, ifMetagenerationMatch=2, status=412)
    api.patch(url, {"metadata": {"a": "b"}}, ifMetagenerationMatch=1, ifGenerationMatch=first)
    api.put(url, {}, ifMetagenerationMatch=1, status=412)
    api.delete(url, ifGenerationMatch=1, status=412)
    api.delete(url, ifMetagenerationMatch=1, status=412)
    copy = f"{url}/copyTo/b/{bucket.name}/o/y"
    api.post(copy, ifSourceGenerationMatch=1, status=412)
    api.post(copy, ifSourceMetagenerationNotMatch=2, status=412)
    api.post(copy, ifSourceGenerationMatch=first, ifGenerationMatch=0)
    api.post(copy, ifGenerationMatch=0, status=412)
    api.delete(url, ifGenerationMatch=first, status=204)
    api.delete(url, status=404)
    refused = bucket.send("x", ifGenerationMatch="soon")
    assert refused.status_code == 400
    assert "ifGenerationMatch" in refused.text


def test_of_racing_writers_exactly_one_creates_the_object(bucket: Bucket) -> None:
    def write(number: int) -> int:
        one = session(bucket.api.local_cloud)
        params = {"uploadType": "media", "name": "lock", "ifGenerationMatch": "0"}
        data = f"{number}".encode() * 50000
        return one.post(bucket.upload_url, params=params, data=data, timeout=30).status_code

    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(write, range(12)))
    assert sorted(statuses) == [200] + [412] * 11
    winner = statuses.index(200)
    assert bucket.read("lock") == f"{winner}".encode() * 50000


def test_a_patch_changes_metadata_key_by_key_and_an_update_replaces_it(bucket: Bucket) -> None:
    bucket.put("x")
    url = f"{bucket.url}/o/x"
    bucket.api.patch(url, {"metadata": {"a": "1", "b": "2"}, "cacheControl": "no-store"})
    patched = bucket.api.patch(url, {"metadata": {"a": None, "c": "3"}})
    assert patched["metadata"] == {"b": "2", "c": "3"}
    assert patched["metageneration"] == "3"
    updated = bucket.api.put(url, {"contentType": "text/plain"})
    assert "metadata" not in updated
    assert "cacheControl" not in updated


def test_an_upload_without_bytes_is_refused(bucket: Bucket) -> None:
    answer = bucket.api.post(f"{bucket.url}/o", {"name": "x"}, status=400)
    assert "uploadType" in str(answer)


def test_a_chunked_upload_is_read_to_its_end(bucket: Bucket) -> None:
    pieces = [b"x" * size for size in (1, 70000, 3, 2_000_000)]
    answer = bucket.api.session.put(f"{HOST}/{bucket.name}/stream", data=iter(pieces), timeout=30)
    assert answer.ok
    assert bucket.read("stream") == b"".join(pieces)
