from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from localcloud.app import LocalCloud, soft_deleted_bytes
from localcloud.core.clock import VirtualClock
from localcloud.services.storage import records
from localcloud.testing import Client
from tests.unit.localcloud.storage.conftest import HOST, Bucket

Files = Callable[[], list[Path]]


def test_bytes_that_no_object_needs_are_deleted(bucket: Bucket, files: Files) -> None:
    bucket.put("x", b"1")
    bucket.put("x", b"2")
    bucket.put("y", b"3")
    assert len(files()) == 2
    bucket.api.delete(f"{bucket.url}/o/x", status=204)
    bucket.api.delete(f"{bucket.url}/o/y", status=204)
    assert files() == []


def test_a_failed_upload_leaves_no_file(bucket: Bucket, files: Files) -> None:
    wrong = {"x-goog-hash": "crc32c=AAAAAA=="}
    bucket.api.session.put(f"{HOST}/{bucket.name}/x", data=b"1", headers=wrong, timeout=30)
    assert files() == []


def test_a_full_disk_is_a_clear_error(
    bucket: Bucket, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(crc32c: int, chunk: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("google_crc32c.extend", full)
        refused = bucket.send("x", b"1")
    assert refused.status_code == 507
    assert "disk is full" in refused.json()["error"]["message"]
    assert files() == []
    bucket.put("x", b"1")


def test_a_deletion_does_not_interrupt_a_reader(bucket: Bucket) -> None:
    data = os.urandom(8 << 20)
    bucket.put("x", data)
    answer = bucket.api.session.get(f"{HOST}/{bucket.name}/x", stream=True, timeout=30)
    first = next(answer.iter_content(1000))
    Client(bucket.api.local_cloud).delete(f"{bucket.url}/o/x", status=204)
    assert first + b"".join(answer.iter_content(1 << 16)) == data


def test_objects_outlive_the_emulator(tmp_path: Path, clock: VirtualClock) -> None:
    first = LocalCloud(tmp_path / "cloud", clock=clock)
    first.start()
    bucket = Bucket(Client(first))
    made = bucket.put("x", b"1")
    first.stop()
    second = LocalCloud(tmp_path / "cloud", clock=VirtualClock(clock.now()))
    second.start()
    bucket.api = Client(second)
    assert bucket.api.get(f"{bucket.url}/o/x") == made
    assert bucket.read("x") == b"1"
    assert int(bucket.put("x", b"2")["generation"]) > int(made["generation"])
    second.stop()


def test_a_start_clears_what_a_killed_emulator_left(tmp_path: Path) -> None:
    first = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    first.start()
    bucket = Bucket(Client(first))
    bucket.put("x", b"1")
    version = records.require(first.cloud, bucket.name, "x")
    # As if it was killed between the two steps of deleting it, and inside an upload.
    key = records.version_key("x", version.generation)
    records.save(first.cloud, records.noncurrent_kind(bucket.name), key, version)
    first.cloud.store.put(records.DELETED, f"{bucket.name}/{key}", {"size": 1, "until": 1e12})
    root = first.cloud.home / "objects"
    (root / bucket.name / "orphan").write_bytes(b"lost")
    (root / ".partial" / "half").write_bytes(b"lost")
    (root / ".uploads").mkdir(exist_ok=True)
    (root / ".uploads" / "unknown").write_bytes(b"lost")
    first.stop()
    second = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    second.start()
    bucket.api = Client(second)
    assert bucket.names(versions="true") == ["x"]
    assert bucket.read("x") == b"1"
    assert soft_deleted_bytes(second.cloud) == 0
    assert len([path for path in root.rglob("*") if path.is_file()]) == 1
    second.stop()


@pytest.mark.server
def test_an_emulator_killed_under_load_has_only_whole_objects(tmp_path: Path) -> None:
    program = """
        import sys, threading
        from pathlib import Path
        from localcloud.app import LocalCloud
        local = LocalCloud(Path(sys.argv[1]))
        local.start()
        print(local.listener.port, flush=True)
        threading.Event().wait()
    """
    home = tmp_path / "cloud"
    first = LocalCloud(home)
    first.start()
    bucket = Bucket(Client(first))
    session = bucket.api.session
    first.stop()
    command = [sys.executable, "-c", textwrap.dedent(program), str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        session.proxies = {"https": f"http://127.0.0.1:{port}"}
        sent = 0
        try:
            while sent < 200:
                if sent == 20:
                    running.send_signal(signal.SIGKILL)
                bucket.put(f"o-{sent:04d}", bytes([sent]) * 100_000)
                sent += 1
        except OSError:
            pass
    assert sent < 200
    second = LocalCloud(home)
    second.start()
    bucket.api = Client(second)
    names = bucket.names()
    assert names[:20] == [f"o-{index:04d}" for index in range(20)]
    for name in names:
        assert bucket.read(name) == bytes([int(name[2:])]) * 100_000
    held = {record["content"] for _, record in second.cloud.store.items("object/test-bucket")}
    assert {path.name for path in (home / "objects" / bucket.name).iterdir()} == held
    second.stop()


def test_a_big_upload_is_never_whole_in_memory(bucket: Bucket) -> None:
    piece = os.urandom(1 << 20)
    gc.collect()
    tracemalloc.start()
    url = f"{HOST}/{bucket.name}/big"
    bucket.api.session.put(url, data=(piece for _ in range(64)), timeout=60)
    answer = bucket.api.session.get(url, stream=True, timeout=60)
    read = sum(len(chunk) for chunk in answer.iter_content(1 << 16))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read == 64 << 20
    assert peak < 16 << 20
