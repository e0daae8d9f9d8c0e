import threading
from dataclasses import replace
from pathlib import Path

import pytest
from toolchain import cache, pins
from toolchain.pins import ENGINE, MODULES, Module


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr(pins, "TOOLS", tmp_path)
    module = replace(MODULES[ENGINE], folder="module")
    module.path.mkdir()
    for name in ("go.mod", "go.sum", "main.go"):
        (module.path / name).write_text(name)
    return module


def make_nothing(folder: Path) -> None:
    pass


def must_not_wait() -> None:
    pytest.fail("waited")


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go"])
def test_a_build_is_keyed_by_everything_that_goes_into_it(module: Module, name: str) -> None:
    before = cache.build_key(module)
    (module.path / name).write_text("other")
    assert cache.build_key(module) != before


def test_a_new_source_file_changes_the_key_and_a_new_test_does_not(module: Module) -> None:
    before = cache.build_key(module)
    (module.path / "main_test.go").write_text("package main")
    assert cache.build_key(module) == before
    (module.path / "more.go").write_text("package main")
    assert cache.build_key(module) != before


def test_another_machine_has_another_key(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    before = cache.build_key(module)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert cache.build_key(module) != before


def test_macs_keep_the_cache_where_macs_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.root() == tmp_path / "home" / "Library" / "Caches" / "tpu-stack" / "toolchain"


def test_an_entry_is_made_once() -> None:
    makes: list[Path] = []

    def make(folder: Path) -> None:
        makes.append(folder)
        (folder / "pulumi").touch()

    first, second = cache.entry("pulumi-1", make), cache.entry("pulumi-1", make)
    assert first == second
    assert (first / "pulumi").exists()
    assert len(makes) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_entry_leaves_nothing(interruption: type[BaseException]) -> None:
    def make(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise interruption

    with pytest.raises(interruption):
        cache.entry("pulumi-1", make)
    assert [path.name for path in cache.root().iterdir()] == ["pulumi-1.lock"]


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    left_over = cache.root() / ".pulumi-1.x7"
    left_over.mkdir(parents=True)
    (left_over / "half").touch()
    cache.entry("pulumi-1", make_nothing)
    assert not left_over.exists()


def test_of_two_at_once_one_makes_the_entry_and_the_other_waits_for_it() -> None:
    began, go_on = threading.Event(), threading.Event()
    makes: list[Path] = []
    waited: list[bool] = []

    def make(folder: Path) -> None:
        makes.append(folder)
        began.set()
        assert go_on.wait(5)

    def waiting() -> None:
        waited.append(True)
        go_on.set()

    first_thread = threading.Thread(target=cache.entry, args=("pulumi-1", make))
    first_thread.start()
    assert began.wait(5)
    second_thread = threading.Thread(target=cache.entry, args=("pulumi-1", make, waiting))
    second_thread.start()
    for thread in (first_thread, second_thread):
        thread.join(5)
        assert not thread.is_alive()
    assert len(makes) == 1
    assert waited == [True]


def test_locks_of_different_entries_do_not_wait_for_each_other() -> None:
    with cache.locked("a", must_not_wait):
        cache.entry("b", make_nothing, waiting=must_not_wait)
