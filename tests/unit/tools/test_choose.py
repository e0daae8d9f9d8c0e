import hashlib
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from toolchain import cache, choose, download, gobuild, pins, processes
from toolchain.choose import Toolchain
from toolchain.pins import (
    ENGINE,
    ENGINE_VERSION,
    HOST,
    HOST_SCRIPTS,
    MODULES,
    PROVIDER,
    PROVIDER_VERSION,
    TOOLS,
    ToolchainError,
)


class Machine:
    """A machine with fakes where the toolchain meets the outside: programs and downloads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.folder = tmp_path / "on-path"
        self.folder.mkdir()
        self.online = False
        self.download_fails = False
        self.commands: list[list[str]] = []
        self.engine_says = "v3.259.0"
        monkeypatch.setenv("PATH", str(self.folder))
        monkeypatch.setattr(processes, "run", self._run)
        monkeypatch.setattr(download, "reachable", lambda: self.online)
        monkeypatch.setattr(download, "_download_engine", self._download)

    def has(self, *names: str) -> None:
        for name in names:
            self.makes(self.folder / name)

    def has_provider(self) -> None:
        self.makes(self.plugin)

    def builds(self) -> list[str]:
        return [command[-1] for command in self.commands if command[1:2] == ["build"]]

    @property
    def plugin(self) -> Path:
        home = self.folder.parent / "pulumi-home" / "plugins"
        return home / f"resource-gcp-v{PROVIDER_VERSION}" / PROVIDER

    def makes(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def _download(self, folder: Path) -> None:
        if self.download_fails:
            raise ToolchainError("the checksum is wrong")
        for name in (ENGINE, HOST, *HOST_SCRIPTS):
            self.makes(folder / name)

    def _run(
        self,
        command: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        words = [str(part) for part in command]
        self.commands.append(words)
        match words[1:]:
            case ["version"]:
                return self.engine_says
            case ["env", "GOVERSION"]:
                return "go1.26.8"
            case ["list", "-m", *_]:
                sdk = self.folder.parent / "sdk"
                for script in MODULES[HOST].scripts:
                    self.makes(sdk / script)
                return str(sdk)
            case ["build", *rest]:
                self.makes(Path(rest[rest.index("-o") + 1]))
            case ["plugin", "install", *_]:
                self.has_provider()
        return ""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    machine = Machine(monkeypatch, tmp_path)
    machine.has("go")
    return machine


def origins(chosen: Toolchain) -> tuple[str, str, str]:
    return chosen.engine.origin, chosen.language_host.origin, chosen.provider.origin


def test_what_the_machine_has_is_taken(machine: Machine) -> None:
    machine.has(ENGINE, HOST, *HOST_SCRIPTS)
    machine.has_provider()
    machine.online = True
    assert origins(choose.toolchain()) == ("path", "path", "path")
    assert not machine.builds()


def test_what_it_lacks_is_downloaded(machine: Machine) -> None:
    machine.online = True
    assert origins(choose.toolchain()) == ("download", "download", "download")
    assert not machine.builds()


def test_offline_everything_is_built_one_after_the_other(machine: Machine) -> None:
    assert origins(choose.toolchain()) == ("build", "build", "build")
    assert machine.builds() == [MODULES[n].package for n in (ENGINE, HOST, PROVIDER)]


def test_a_download_that_fails_is_built_instead(machine: Machine) -> None:
    machine.online = machine.download_fails = True
    assert choose.toolchain().engine.origin == "build"


@pytest.mark.parametrize("said", ["v3.149.0", "v4.0.0", "no idea"])
def test_an_engine_on_path_that_does_not_suit_is_passed_over(
    machine: Machine, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has(ENGINE, HOST, *HOST_SCRIPTS)
    machine.engine_says = said
    assert choose.toolchain().engine.origin == "build"
    assert ", not 3.219.0 or later, below 4.0.0" in capsys.readouterr().err


def test_an_engine_on_path_without_its_python_host_is_passed_over(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has(ENGINE)
    assert choose.toolchain().engine.origin == "build"
    assert f"lacks {HOST}" in capsys.readouterr().err


def test_the_second_time_nothing_is_built_and_the_folder_is_the_same(machine: Machine) -> None:
    first = choose.toolchain().bin
    built = len(machine.builds())
    machine.online = True  # a cached build is taken before any download
    second = choose.toolchain()
    assert second.bin == first
    assert origins(second) == ("build", "build", "build")
    assert len(machine.builds()) == built


def test_our_own_folder_on_path_does_not_make_its_parts_found_ones(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = choose.toolchain().bin
    monkeypatch.setenv("PATH", str(folder))
    assert choose.toolchain().engine.origin == "build"


def test_the_folder_has_what_pulumi_looks_for_on_path(machine: Machine) -> None:
    folder = choose.toolchain().bin
    programs = [ENGINE, HOST, *HOST_SCRIPTS]
    assert sorted(p.name for p in folder.iterdir()) == sorted(programs)
    assert folder.parent == cache.root()
    assert all(program.resolve().is_file() for program in folder.iterdir())


def test_a_built_provider_is_among_pulumis_plugins_and_not_on_path(machine: Machine) -> None:
    """The engine warns at every command of a provider that it takes from PATH."""
    chosen = choose.toolchain()
    assert machine.plugin.resolve() == Path(chosen.provider.path)
    assert not (chosen.bin / PROVIDER).exists()
    # A link that is there already is no plugin that someone installed.
    assert choose.toolchain() == chosen


def test_a_link_to_a_build_of_another_day_is_renewed(machine: Machine) -> None:
    older = machine.folder.parent / "tpu-stack" / "toolchain" / f"{PROVIDER}-older" / PROVIDER
    machine.plugin.parent.mkdir(parents=True)
    machine.plugin.symlink_to(older)  # and its cache is gone
    assert machine.plugin.resolve() == older
    assert choose.toolchain().provider.origin == "build"
    assert machine.plugin.resolve().is_relative_to(cache.root())


@pytest.mark.parametrize("in_ci", [False, True])
def test_a_plugin_that_somebody_installed_stays(
    machine: Machine, in_ci: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where CI doesn't run it, since its digest isn't pinned."""
    machine.has_provider()
    monkeypatch.setenv("CI", str(in_ci).lower())
    assert choose.toolchain().provider.origin == ("build" if in_ci else "path")
    assert machine.plugin.is_file()
    assert not machine.plugin.is_symlink()


def test_a_plugin_that_somebody_linked_stays(machine: Machine) -> None:
    own = machine.folder.parent / "own" / PROVIDER
    machine.makes(own)
    machine.plugin.parent.mkdir(parents=True)
    machine.plugin.symlink_to(own)
    assert choose.toolchain().provider.origin == "path"
    assert machine.plugin.resolve() == own


def test_many_processes_link_the_same_provider_at_once(machine: Machine) -> None:
    built = Path(choose.toolchain().provider.path)
    machine.plugin.unlink()
    script = "import sys, pathlib; sys.path.insert(0, sys.argv[1])\n"
    script += "from toolchain import plugins; plugins.link(pathlib.Path(sys.argv[2]))"
    command = [sys.executable, "-c", script, str(TOOLS), str(built)]
    side_by_side = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait() for process in side_by_side] == [0] * 4
    assert [path.resolve() for path in machine.plugin.parent.iterdir()] == [built]


def test_without_go_and_without_pip_the_message_says_what_to_install(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.folder / "go").unlink()

    def fail(command: Sequence[str], **_: object) -> str:
        raise ToolchainError("python failed: no network")

    monkeypatch.setattr(processes, "run", fail)
    with pytest.raises(ToolchainError, match=r"Install Go \(go\.dev\) or the Pulumi CLI"):
        gobuild.build(MODULES[HOST])


def test_an_archive_with_a_wrong_checksum_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("pulumi/pulumi"), io.BytesIO())
    name = f"pulumi-v{ENGINE_VERSION}-{cache.machine().replace('amd64', 'x64')}.tar.gz"

    def answer(address: str, timeout: float) -> io.BytesIO:
        """A site that someone has taken over: its checksums fit its archives."""
        digest = hashlib.sha256(packed.getvalue()).hexdigest()
        checksums = f"{digest}  {name}\n".encode()
        return io.BytesIO(checksums if address.endswith(".txt") else packed.getvalue())

    monkeypatch.setattr("urllib.request.urlopen", answer)
    with pytest.raises(ToolchainError, match=r"doesn't have the digest that digests\.txt pins"):
        download.engine()
    assert download.cached_engine() is None


def test_a_mirror_of_pulumis_releases_is_asked_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        asked.append(address)
        return io.BytesIO(b"")

    monkeypatch.setattr("urllib.request.urlopen", answer)
    monkeypatch.setenv("TPUSTACK_PULUMI_RELEASES", "https://mirror.example/pulumi")
    download.reachable.cache_clear()
    assert download.reachable()
    # What a mirror has must fit the digests of this repository, too.
    with pytest.raises(ToolchainError):
        download.engine()
    download.reachable.cache_clear()
    assert len(asked) > 1
    assert all(address.startswith("https://mirror.example/pulumi/pulumi-") for address in asked)


@pytest.mark.parametrize("pinned", [False, True])
def test_ci_runs_a_program_that_it_found_only_if_its_digest_is_pinned(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    pinned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CI", "true")
    machine.has(ENGINE, HOST, *HOST_SCRIPTS)
    machine.has_provider()
    found = pins.digest_of(machine.folder / ENGINE)
    monkeypatch.setattr(pins, "pinned", lambda: {"pulumi": found} if pinned else {})
    origin = "path" if pinned else "build"
    assert origins(choose.toolchain()) == (origin, origin, origin)
    said = capsys.readouterr().err
    assert ("because digests.txt lacks its digest" in said) is not pinned
    if not pinned:
        assert ["version"] not in [command[1:] for command in machine.commands]


def test_ci_downloads_no_plugin_whose_digest_is_not_pinned(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    machine.online = True
    assert origins(choose.toolchain()) == ("download", "download", "build")
    assert not any("plugin" in command for command in machine.commands)


def test_a_plugin_whose_digest_is_pinned_is_downloaded_with_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.online = True
    archive = f"{PROVIDER}-v{PROVIDER_VERSION}-{cache.machine()}.tar.gz"
    monkeypatch.setattr(pins, "pinned", lambda: {archive: "5e"})
    assert origins(choose.toolchain()) == ("download", "download", "download")
    (install,) = [command for command in machine.commands if "plugin" in command]
    assert install[-2:] == ["--checksum", "5e"]


def test_every_machine_that_has_an_official_engine_has_its_digest() -> None:
    machines = {f"{system}-{kind}" for system in ("linux", "darwin") for kind in ("x64", "arm64")}
    names = {f"pulumi-v{ENGINE_VERSION}-{name}.tar.gz" for name in machines}
    assert names <= pins.pinned().keys()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in pins.pinned().values())


def test_a_build_is_checked_against_go_sum_and_the_public_database() -> None:
    """What is not in go.sum is refused by `readonly`; nothing turns a check off."""
    assert "-mod=readonly" in gobuild._ENVIRONMENT["GOFLAGS"]
    assert not {"GOSUMDB", "GONOSUMDB", "GONOSUMCHECK", "GOINSECURE"} & gobuild._ENVIRONMENT.keys()
