"""A try's log in the bucket: whole, in few objects, whatever else lies there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.attempt import Shipping
from tpu_core import paths

DAY = 86400


class Site:
    """A log and the bucket that it goes to."""

    def __init__(self, folder: Path) -> None:
        self.log, self.bucket = folder / "log", Bucket(Clock())
        self.calls = 0
        self.store = MemoryStore(self.bucket, self._count)
        self.shipping = self.again()

    def again(self) -> Shipping:
        self.shipping = Shipping(self.store, self.log, "one", 1)
        return self.shipping

    def write(self, data: bytes) -> None:
        with self.log.open("ab") as file:
            file.write(data)

    def shipped(self) -> bytes:
        prefix = paths.logs("one", 1)
        things = self.bucket.things
        return b"".join(things[path].data for path in sorted(things) if path.startswith(prefix))

    def _count(self) -> None:
        self.calls += 1
        assert self.calls < 300_000, "it never ends"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("there", [b"", b"more than the log has"])
def test_what_another_has_put_where_a_piece_goes_holds_nothing_up(site: Site, there: bytes) -> None:
    MemoryStore(site.bucket).write(paths.piece("one", 1, 0), there)
    site.write(b"line\n")
    site.shipping.finish()
    assert site.calls < 10
    assert site.shipped() == b"line\n"


@pytest.mark.parametrize("name", ["", "x", "0" * 14, "9" * 15, "1e3"])
def test_an_object_that_is_no_piece_of_the_log_is_passed_over(site: Site, name: str) -> None:
    MemoryStore(site.bucket).write(f"{paths.logs('one', 1)}{name}", b"")
    site.write(b"line\n")
    site.shipping.finish()
    assert site.shipped() == b"line\n"


def test_a_long_log_takes_some_thousand_objects(site: Site) -> None:
    for second in range(0, 2 * DAY, 15):
        site.write(b"step\n")
        site.shipping.ship(float(second))
    site.shipping.finish()
    assert site.shipped() == b"step\n" * (2 * DAY // 15)
    assert len(site.bucket.things) < 6_000
    # Another runner continues at the same pace.
    site.again().ship(0.0)
    site.write(b"x")
    site.shipping.ship(0.0)
    before = len(site.bucket.things)
    for second in range(30):
        site.write(b"x")
        site.shipping.ship(float(second))
    assert len(site.bucket.things) <= before + 1


def test_a_young_log_is_there_a_second_after_it_was_written(site: Site) -> None:
    for second in range(60):
        site.write(b"x")
        site.shipping.ship(float(second))
        assert site.shipped() == b"x" * (second + 1)


def test_a_log_that_is_in_the_bucket_takes_no_space_on_the_disk(site: Site) -> None:
    for _ in range(8):
        site.write(b"x" * (2 << 20))
        site.shipping.finish()
    assert site.log.stat().st_size == 16 << 20
    if site.log.stat().st_blocks * 512 == 16 << 20:
        pytest.skip("the file system of this disk frees no part of a file")
    assert site.log.stat().st_blocks * 512 < 1 << 20
    site.write(b"last\n")
    site.again().finish()
    assert site.shipped() == b"x" * (16 << 20) + b"last\n"
