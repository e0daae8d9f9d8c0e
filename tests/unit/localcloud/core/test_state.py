from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core.body import schema_problems
from localcloud.core.clock import VirtualClock
from localcloud.core.discovery import document
from localcloud.core.errors import ApiError
from localcloud.core.store import Store
from localcloud.testing import Client


def test_records_are_copies_and_survive_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.put("kind", "a/1", {"list": [1]})
    store.put("kind", "b/1", {})
    found = store.get("kind", "a/1")
    assert found is not None
    found["list"].append(2)
    assert store.get("kind", "a/1") == {"list": [1]}
    assert store.keys("kind", "a/") == ["a/1"]
    assert store.delete("kind", "b/1")
    assert not store.delete("kind", "b/1")
    store.close()
    again = Store(tmp_path / "state.sqlite")
    assert again.items("kind") == [("a/1", {"list": [1]})]
    again.close()


def test_what_was_put_is_there_after_a_kill_up_to_the_last_record(tmp_path: Path) -> None:
    program = """
    import itertools, pathlib, sys
    from localcloud.core.store import Store
    store = Store(pathlib.Path(sys.argv[1]))
    for number in itertools.count():
        store.put("kind", f"{number:06}", {"n": number})
        print(number, flush=True)
    """
    path = tmp_path / "state.sqlite"
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        put = [running.stdout.readline() for _ in range(500)]
        running.kill()
        put += running.stdout.readlines()
    store = Store(path)
    kept = [record["n"] for _, record in store.items("kind")]
    # The last one may have been put and not yet said.
    assert kept == list(range(len(kept)))
    assert len(kept) - len(put) in (0, 1)
    # A full disk has no place for the file of an index that processes share.
    assert not path.with_name("state.sqlite-shm").exists()
    store.close()


def test_a_failed_write_changes_neither_disk_nor_memory(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.put("kind", "a", {"n": 1})
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(ApiError, match="the local cloud's disk is full") as refused:
        store.put("kind", "b", {"text": "x" * 100_000})
    assert (refused.value.code, refused.value.reason) == (507, "insufficientStorage")
    store._db.execute("PRAGMA query_only=ON")
    with pytest.raises(sqlite3.OperationalError):
        store.put("kind", "a", {"n": 2})
    with pytest.raises(sqlite3.OperationalError):
        store.delete("kind", "a")
    seen = store.items("kind")
    store.close()
    again = Store(tmp_path / "state.sqlite")
    assert seen == again.items("kind") == [("a", {"n": 1})]
    again.close()


def test_read_change_write_under_the_lock_loses_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    store.put("kind", "count", {"n": 0})

    def count() -> None:
        for _ in range(100):
            with store.locked():
                record = store.get("kind", "count") or {}
                store.put("kind", "count", {"n": record["n"] + 1})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("kind", "count") == {"n": 400}
    store.close()


def test_many_clients_at_once_are_all_answered(local_cloud: LocalCloud) -> None:
    url = "storage.googleapis.com/storage/v1/b"
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            client = Client(local_cloud)
            for turn in range(5):
                name = f"bucket-{number}-{turn}"
                client.post(url, {"name": name}, project="tpu-stack-local")
                assert client.get(f"{url}/{name}")["name"] == name
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(Client(local_cloud).get(url, project="tpu-stack-local")["items"]) == 40


def test_records_survive_a_restart(
    local_cloud: LocalCloud, api: Client, clock: VirtualClock
) -> None:
    url = "storage.googleapis.com/storage/v1/b"
    made = api.post(url, {"name": "kept-bucket"}, project="tpu-stack-local")
    local_cloud.stop()
    again = LocalCloud(local_cloud.cloud.home, clock=clock)
    again.start()
    assert Client(again).get(f"{url}/kept-bucket")["etag"] == made["etag"]
    again.stop()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"cidrBlock": "10.0.0.0/29"}, None),
        ({"cidrBlock": 5}, "TYPE_STRING"),
        ({"useServiceNetworking": "yes"}, "TYPE_BOOL"),
        ({"state": "BROKEN"}, "not one of"),
        ({"schedulingConfig": []}, "expected an object"),
        ({"networkEndpoints": {}}, "expected a list"),
        ({"networkEndpoints": [{"port": "x"}]}, "networkEndpoints[0].port"),
        ({"networkEndpoints": [{"port": 2**31}]}, "INT32"),
        ({"nettwork": "n"}, 'Unknown name "nettwork"'),
    ],
)
def test_bodies_are_checked_against_googles_schema(
    value: dict[str, object], said: str | None
) -> None:
    found = schema_problems(document("tpu", "v1"), "Node", value)
    if said is None:
        assert found == []
    else:
        assert said in found[0]
