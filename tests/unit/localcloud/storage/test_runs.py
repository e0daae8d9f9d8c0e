"""A program of one's own in a bucket: its lease, its checkpoints and its ledger."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tpu_core
from tests.unit.localcloud.storage.conftest import Bucket
from tpu_core.ledger import read
from tpu_core.process import Process
from tpustack.cloud.google import Google
from tpustack.goodput import files_of

URL = "gs://test-bucket/jobs/own/model"


@pytest.fixture
def google(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Google:
    """The machine's account is the bucket's owner."""
    made = Google(bucket.api.session)
    entry = '{"access_token": "token", "expires_in": 3600}', ""
    server = SimpleNamespace(read=lambda *_: entry)
    monkeypatch.setattr("tpu_core.google.metadata_server", lambda: server)
    monkeypatch.setattr("tpu_core.google.transport", lambda *_: made.exchange)
    return made


def test_a_run_in_a_bucket_resumes_and_the_command_line_reads_its_ledger(
    google: Google, bucket: Bucket
) -> None:
    def program() -> None:
        with tpu_core.run(f"{URL}/") as run:
            assert run.read("state") is None
            run.step(0)
            run.step(1)
            run.save("state", b"of step 1")
            run.step(2)
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        program()
    with tpu_core.run(URL) as run:
        assert (run.read("state"), run.done) == (b"of step 1", 2)
        assert "jobs/own/model/lease.json" in bucket.names()
        run.step(1)
        run.step(3)
    assert "jobs/own/model/lease.json" not in bucket.names()
    ledger = read(files_of(URL, google))
    assert [(one.first_step, one.last_step, one.ending) for one in ledger.entries] == [
        (0, 2, "failed: ValueError"),
        (1, 3, "finished"),
    ]


def test_a_run_that_lost_its_lease_writes_no_checkpoint_and_ends_with_one_line(
    google: Google, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = r"model directory .*process 12 on vm-b .* has taken it over"
    there = tpu_core.bucket.Bucket("test-bucket", google.exchange)
    other = Process("b", "vm-b", 12, "", "", "2026-11-22T12:00:00Z")
    # The last confirmation counts for two seconds.
    monkeypatch.setattr("tpu_core.lease.FRESH", 0.0)

    def program() -> None:
        with tpu_core.run(URL) as run:
            run.step(0)
            found = there.look("jobs/own/model/lease.json")
            assert found
            summary = {"id": "b", "name": str(other), "about": vars(other)}
            there.write(found.path, b"", generation=found.generation, summary=summary)
            run.save("state", b"of another")

    with pytest.raises(SystemExit, match=taken):
        program()
    assert "jobs/own/model/state" not in bucket.names()


def test_a_bucket_that_is_not_there_is_named(google: Google) -> None:
    refused = "model_dir=gs://no-bucket/m: gs://no-bucket: HTTP response code 404"
    with pytest.raises(SystemExit, match=refused), tpu_core.run("gs://no-bucket/m"):
        pytest.fail("it runs")
