"""Environments that a machine keeps between attempts and jobs."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.patience import until
from tpu_agent.jobs.environment import Environment, SetupError, is_pinned, kept_folder
from tpu_agent.jobs.kept import FREE, MOST, Kept, being_built
from tpu_agent.jobs.queue import Spec
from tpu_core.contract import Environment as Variables
from tpustack.jobs.job import job_log

from .conftest import Site, submitted
from .memory import Bucket, Clock, MemoryStore

DAY = 86400.0


def wheel(folder: Path, version: str) -> Path:
    """A package with a program, as pip takes it."""
    folder.mkdir(exist_ok=True)
    path, about = folder / f"demo-{version}-py3-none-any.whl", f"demo-{version}.dist-info"
    files = {
        "demo.py": f"def main():\n    print('demo {version}')\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\ndemo = demo:main\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def pinned(path: Path) -> str:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"# Locked.\ndemo @ {path.as_uri()} \\\n    --hash=sha256:{digest}\n"


class Machine:
    """What makes environments for attempts, one after the other.

    Without `is_real` an environment is empty, and pip installs nothing and ends with `code`.
    """

    def __init__(self, folder: Path, *, is_real: bool) -> None:
        self.folder, self.is_real, self.code = folder / "jobs", is_real, 0
        self.ran: list[str] = []
        self.taken: list[Path] = []
        self.bucket = MemoryStore(Bucket(Clock()))
        self.folder.mkdir()

    def call(self, command: Sequence[str], variables: Mapping[str, str]) -> int:
        self.ran += command
        if not self.is_real and "pip" in command:
            return self.code
        if not self.is_real and "venv" in command:
            for name in ("bin", "lib/python3/site-packages"):
                (Path(command[5]) / name).mkdir(parents=True, exist_ok=True)
            return 0
        # As in a job's folder, where a job may have put this.
        (self.folder / "pip.py").write_text("raise SystemExit(9)")
        everything = {**os.environ, **variables}
        return subprocess.run(command, cwd=self.folder, env=everything, check=False).returncode

    def attempt(self, name: str, spec: Spec) -> tuple[str, str]:
        """How the environment of an attempt was made, and what its command says in it."""
        folder = self.folder / name
        folder.mkdir()
        self.ran.clear()
        environment = Environment(
            folder, spec, {"variables": {}}, self.call, lambda _: None, self.taken.append
        )
        how = environment.make(self.bucket)
        done = subprocess.run(
            ["/bin/bash", "-c", spec.command],
            cwd=folder / "work",
            env={**os.environ, "PYTHONPATH": "", **environment.variables()},
            capture_output=True,
            check=False,
            text=True,
        )
        return how, done.stdout + done.stderr

    def how(self, name: str, spec: Spec) -> str:
        return "kept" if self.attempt(name, spec)[0].startswith("kept ") else "built"

    def kept(self) -> set[str]:
        return {path.name for path in kept_folder(self.folder).iterdir()} - {"lock"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel(tmp_path_factory.mktemp("wheels"), "1.0")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, one: Path) -> Iterator[Machine]:
    """A machine that has run one attempt with these requirements."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(Variables.PYTHON, sys.executable)
        patched.delenv(Variables.PACKAGES, raising=False)
        patched.setattr("tpu_agent.jobs.kept._free", lambda _: 1.0)
        made = Machine(tmp_path_factory.mktemp("machine"), is_real=True)
        how, said = made.attempt("a-1", Spec("demo", requirements=pinned(one)))
        assert how.startswith("environment built in ")
        assert said == "demo 1.0\n"
        (key,) = made.kept()
        # Nothing of it was left to the user who built it.
        assert made.taken == [being_built(kept_folder(made.folder) / key)]
        yield made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setenv(Variables.PYTHON, sys.executable)
    monkeypatch.delenv(Variables.PACKAGES, raising=False)
    monkeypatch.setattr("tpu_agent.jobs.kept._free", lambda _: 1.0)
    return Machine(tmp_path, is_real=False)


@pytest.mark.parametrize("name", ["a-2", "b-1"])
def test_the_next_attempt_and_another_job_build_nothing(
    name: str, real: Machine, one: Path
) -> None:
    command = "demo; which demo python; . $VIRTUAL_ENV/bin/activate; echo $VIRTUAL_ENV"
    said = real.attempt(name, Spec(command, requirements=pinned(one)))
    (key,) = real.kept()
    own = real.folder / name / "venv"
    lines = f"demo 1.0\n{own}/bin/demo\n{own}/bin/python\n{own}\n"
    assert said == (f"kept environment {key}", lines)
    assert not {"venv", "pip", "install"} & set(real.ran)


@pytest.mark.parametrize("pip", ["pip", "python -m pip"])
def test_what_a_job_installs_is_gone_with_its_attempt(pip: str, real: Machine, one: Path) -> None:
    newer = wheel(one.parent, "2.0")
    name = f"c-{len(pip)}"
    install = f"{pip} install --quiet --no-index {newer} && demo"
    assert real.attempt(name, Spec(install, requirements=pinned(one)))[1].endswith("demo 2.0\n")
    again = real.attempt(f"{name}-2", Spec("demo", requirements=pinned(one)))
    assert again[1] == "demo 1.0\n"


def test_a_wheel_of_ones_own_goes_into_the_attempts_environment(
    real: Machine, one: Path, tmp_path: Path
) -> None:
    own = wheel(tmp_path / "own", "3.0")
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    real.bucket.write(f"archives/{digest}", own.read_bytes())
    spec = Spec("demo", "wheel", digest, own.name, requirements=pinned(one))
    how, said = real.attempt("d-1", spec)
    assert how.startswith("kept ")
    assert said == "demo 3.0\n"


@pytest.mark.server
@pytest.mark.slow
def test_on_a_machine_the_log_of_each_attempt_says_how_it_got_its_environment(
    site: Site, one: Path
) -> None:
    command = "demo; test $JOB_TRY = 2"
    submitted(site, "twice", command, requirements=pinned(one), failures=1)
    site.boot()
    assert len(site.ends("twice", "succeeded").tries) == 2
    first, said, second, again = b"".join(job_log(site.queue, "twice")).decode().splitlines()
    assert first.startswith("tpu-stack: environment built in ")
    assert second.startswith("tpu-stack: kept environment ")
    assert said == again == "demo 1.0"


def test_other_requirements_are_another_environment(machine: Machine, one: Path) -> None:
    first = Spec("", requirements=pinned(one))
    other = Spec("", requirements=pinned(wheel(one.parent, "2.0")))
    hows = [machine.how(f"a-{n}", spec) for n, spec in enumerate((first, first, other, first))]
    assert hows == ["built", "kept", "built", "kept"]


def test_another_python_is_another_environment(
    machine: Machine, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = Spec("", requirements=pinned(one))
    assert machine.how("a-1", spec) == "built"
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    monkeypatch.setenv(Variables.PYTHON, str(other))
    assert machine.how("a-2", spec) == "built"


def test_other_packages_of_the_machine_count_where_a_job_sees_them(
    machine: Machine, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = tmp_path / "packages" / "its-1.0.dist-info"
    release.mkdir(parents=True)
    monkeypatch.setenv(Variables.PACKAGES, str(release.parent))
    plain = Spec("", requirements=pinned(one))
    sees = Spec("", requirements=pinned(one), framework="tensorflow")
    assert [machine.how("a-1", plain), machine.how("b-1", sees)] == ["built", "built"]
    release.rename(release.parent / "its-2.0.dist-info")
    assert [machine.how("a-2", plain), machine.how("b-2", sees)] == ["kept", "built"]


def test_what_has_no_hashes_is_built_each_time_and_says_so(machine: Machine, one: Path) -> None:
    for name in ("a-1", "a-2"):
        how, _ = machine.attempt(name, Spec("", requirements="demo==1.0\n"))
        assert how.endswith("for this attempt alone: only requirements with hashes are kept")
    assert not kept_folder(machine.folder).exists()


def test_an_installation_that_fails_leaves_nothing(machine: Machine, one: Path) -> None:
    machine.code = 1
    with pytest.raises(SetupError, match="can't be installed"):
        machine.attempt("a-1", Spec("", requirements=pinned(one)))
    assert machine.kept() == set()


@pytest.mark.parametrize(
    ("requirements", "is_kept"),
    [
        ("demo==1 \\\n  --hash=sha256:aa  # via x\n# a comment\n", True),
        ("--index-url https://x/simple\n--only-binary :all:\ndemo==1 --hash=sha256:aa", True),
        ("", False),
        ("demo\n", False),
        ("demo==1.0\n", False),
        ("demo==1 --hash=sha256:aa\n-r more.txt\n", False),
        ("# \\\n--requirement=more.txt\ndemo==1 --hash=sha256:aa\n", False),
        ("--find-links ./wheels\ndemo==1 --hash=sha256:aa\n", False),
        ("demo==1 --hash=sha256:aa\n-c bounds.txt\n-e .\n", False),
        ("--pre -r more.txt\ndemo==1 --hash=sha256:aa\n", False),
        ("--pre \\\n of -r more.txt\ndemo==1 --hash=sha256:aa\n", False),
        ("demo==1 --hash=sha256:aa --hash=sha256:bb  # via -r x.in\n# -r y\n", True),
        ("demo==1  # no --hash=sha256:aa\n", False),
        ("# a\r-r more.txt\rdemo==1 --hash=sha256:aa", False),
    ],
)
def test_only_what_hashes_decide_is_kept(requirements: str, is_kept: bool) -> None:
    assert is_pinned(requirements) is is_kept


KILLED = """
import sys, time
from pathlib import Path
from tpu_agent.jobs.kept import Kept

def fill(new):
    (new / "half").touch()
    time.sleep(600)

Kept(Path(sys.argv[1])).build("one", fill)
"""


def test_a_killed_build_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    builder = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    until((tmp_path / "one.new" / "half").exists)
    kept = Kept(tmp_path)
    # While it builds, nobody else writes there or removes it.
    assert kept.find("one") is None
    assert kept.build("one", lambda new: (new / "other").touch()) is None
    assert sorted(path.name for path in (tmp_path / "one.new").iterdir()) == ["half"]
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    assert kept.find("one") is None
    made = kept.build("one", lambda new: (new / "whole").touch())
    assert made == tmp_path / "one"
    assert [path.name for path in made.iterdir()] == ["whole"]
    assert kept.find("one") == made


def filled(folder: Path, clock: Clock, keys: Sequence[str], free: float = 1.0) -> None:
    for key in keys:
        clock.seconds += DAY
        kept = Kept(folder, clock.now, lambda _: free)
        if kept.find(key) is None:
            kept.build(key, lambda new: None)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir()}


def test_those_used_longest_ago_make_room(tmp_path: Path) -> None:
    clock = Clock()
    assert MOST == 4
    filled(tmp_path, clock, ["a", "b", "c", "d", "a", "e"])
    assert names(tmp_path) == {"a", "c", "d", "e"}


def test_on_a_short_disk_only_the_one_in_use_stays(tmp_path: Path) -> None:
    clock = Clock()
    filled(tmp_path, clock, ["a", "b", "c"])
    filled(tmp_path, clock, ["b"], FREE / 2)
    assert names(tmp_path) == {"b"}


def test_what_another_attempt_uses_stays(tmp_path: Path) -> None:
    clock = Clock()
    filled(tmp_path, clock, ["a", "b"])
    user = Kept(tmp_path, clock.now)
    assert user.find("a") == tmp_path / "a"
    short = Kept(tmp_path, clock.now, lambda _: 0.0)
    short.trim()
    assert names(tmp_path) == {"a"}
    del user
    short.trim()
    assert names(tmp_path) == set()
