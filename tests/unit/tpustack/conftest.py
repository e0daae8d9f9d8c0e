"""The command line in this process, and a project folder of the test's own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpustack import stacks
from tpustack.__main__ import main
from tpustack.commands import init
from tpustack.errors import TpustackError
from tpustack.recovery.repair import Recovery

REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`tpustack` with arguments, as a shell would run it into a pipe."""

    def command(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tpustack", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        return Done(code if isinstance(code, int) else int(code is not None), *captured)

    return command


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with this repository's stack files (in projects of ours), a wheel and data."""
    shutil.copytree(REPOSITORY / "stacks", tmp_path / "stacks")
    for path in (tmp_path / "stacks").glob("Pulumi.*.yaml"):
        ours = path.read_text(encoding="utf-8").replace("gcp:project: my-", "gcp:project: our-")
        path.write_text(ours, encoding="utf-8")
    monkeypatch.setenv("LOGNAME", "ada")
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "tpu_stack_training-0.1.0-py3-none-any.whl").write_bytes(b"a wheel")
    data = tmp_path / ".demo" / "data"
    data.mkdir(parents=True)
    (data / "manifest.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(stacks, "root", lambda: tmp_path)
    return tmp_path


def recovery_of(**methods: object) -> Recovery:
    """A recovery that asks these functions instead of the engine."""
    made = Recovery.__new__(Recovery)
    made.notes = []
    vars(made).update(methods)
    return made


class Pulumi:
    """Stands in for the engine: it remembers its commands, and refuses one of them on request."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []
        self.variables: dict[str, str] = {}
        self.refused = ""

    def run(self, variables: dict[str, str], *arguments: str) -> None:
        self.variables = dict(variables)
        if arguments[0] == self.refused:
            raise TpustackError(f"`pulumi {' '.join(arguments)}` failed: it is refused")
        self.commands.append(arguments)


@pytest.fixture
def pulumi(monkeypatch: pytest.MonkeyPatch) -> Pulumi:
    """The engine, and an environment that says the passphrase alone."""
    for name in ("PULUMI_BACKEND_URL", init.PASSPHRASE_FILE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(init.PASSPHRASE_VARIABLE, "secret")
    engine = Pulumi()
    monkeypatch.setattr(init, "_pulumi", engine.run)
    return engine
