import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from toolchain import cache


@dataclass(frozen=True)
class FakeModule:
    path: Path
    name: str = "pulumi"
    package: str = "."
    version: str = "v1"


@pytest.fixture
def module(tmp_path):
    folder = tmp_path / "module"
    folder.mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (folder / name).write_text(name)
    return FakeModule(folder)


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_build_is_keyed_by_everything_that_goes_into_it(module, name):
    before = cache.build_key(module)
    (module.path / name).write_text("other")
    assert cache.build_key(module) != before


def test_a_new_source_file_changes_the_key_and_a_new_test_does_not(module):
    before = cache.build_key(module)
    (module.path / "main_test.go").write_text("package main")
    assert cache.build_key(module) == before
    (module.path / "more.go").write_text("package main")
    assert cache.build_key(module) != before


def test_another_machine_has_another_key(module, monkeypatch):
    before = cache.build_key(module)
    monkeypatch.setattr(cache.platform, "machine", lambda: "riscv64")
    assert cache.build_key(module) != before


def test_macs_keep_the_cache_where_macs_do(monkeypatch, tmp_path):
    monkeypatch.setattr(cache.sys, "platform", "darwin")
    assert cache.root() == tmp_path / "home" / "Library" / "Caches" / "tpu-stack" / "toolchain"


def test_an_entry_is_made_once():
    makes = []

    def make(folder):
        makes.append(folder)
        (folder / "pulumi").touch()

    first, second = cache.entry("pulumi-1", make), cache.entry("pulumi-1", make)
    assert first == second
    assert (first / "pulumi").exists()
    assert len(makes) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_entry_leaves_nothing(interruption):
    def make(folder):
        (folder / "half").write_text("half")
        raise interruption

    with pytest.raises(interruption):
        cache.entry("pulumi-1", make)
    assert [path.name for path in cache.root().iterdir()] == ["pulumi-1.lock"]


def test_what_a_killed_process_left_is_removed_by_the_next():
    left_over = cache.root() / ".pulumi-1.x7"
    left_over.mkdir(parents=True)
    (left_over / "half").touch()
    cache.entry("pulumi-1", lambda folder: None)
    assert not left_over.exists()


def test_of_two_at_once_one_makes_the_entry_and_the_other_waits_for_it():
    began, go_on = threading.Event(), threading.Event()
    makes, waited = [], []

    def make(folder):
        makes.append(folder)
        began.set()
        assert go_on.wait(5)

    def second():
        cache.entry("pulumi-1", make, waiting=lambda: (waited.append(True), go_on.set()))

    first_thread = threading.Thread(target=cache.entry, args=("pulumi-1", make))
    first_thread.start()
    assert began.wait(5)
    second_thread = threading.Thread(target=second)
    second_thread.start()
    for thread in (first_thread, second_thread):
        thread.join(5)
        assert not thread.is_alive()
    assert len(makes) == 1
    assert waited == [True]


def test_locks_of_different_entries_do_not_wait_for_each_other():
    with cache.locked("a", lambda: pytest.fail("waited")):
        before = time.monotonic()
        cache.entry("b", lambda folder: None, waiting=lambda: pytest.fail("waited"))
    assert time.monotonic() - before < 5
