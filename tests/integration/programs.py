"""Programs in other languages that use the project's components, with what runs them.

The hosts that can be built here are older than the engine, which therefore can't have them add a
package to a program: that last step of `pulumi package add` is done here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from tests.patience import PATIENCE
from tpustack.engine.toolchain import Toolchain
from tpustack.project import cache_folder, root

from .installed import UV

TOOLS = root() / "tools"
FILES = {"yaml": "Pulumi.yaml", "typescript": "index.ts", "python": "__main__.py"}
# What npm and Go say of a lock that they can't keep to: no network cures that.
BROKEN = ("EUSAGE", "EINTEGRITY", "checksum mismatch")
RUNTIMES = {"yaml": "yaml", "typescript": "nodejs", "python": "python"}


class MissingError(Exception):
    """What a language needs is neither in the user's cache nor to be had now."""


def with_hosts(tools: Toolchain) -> tuple[Toolchain, dict[str, str]]:
    """The engine with the hosts that can be had, and why the other languages can't, by language.

    The hosts and what Node.js needs are made once for this user.
    """
    install = [sys.executable, str(TOOLS / "install.py"), "--json"]
    missing = {}
    for language, runtime in RUNTIMES.items():
        if runtime != "python":
            try:
                if runtime == "nodejs":
                    node_modules()
                report = json.loads(had(*install, "--language", runtime))
                tools = replace(tools, bin=Path(report["bin"]))
                install += ["--language", runtime]
            except MissingError as error:
                missing[language] = str(error)
    return tools, missing


def node_modules() -> Path:
    """What programs in TypeScript need, installed once for this user from the lock.

    Raises:
        MissingError: without the network or npm, for example.
    """
    source = TOOLS / "language-nodejs"
    lock = (source / "package-lock.json").read_bytes()
    folder = cache_folder() / "toolchain" / f"node-{hashlib.sha256(lock).hexdigest()[:20]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as parent:
            unfinished = Path(parent) / folder.name
            unfinished.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(source / name, unfinished)
            quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
            had("npm", "ci", *quiet, "--prefix", str(unfinished))
            # Of two at once, that of the first stays.
            with contextlib.suppress(OSError):
                unfinished.rename(folder)
    return folder / "node_modules"


def had(*command: str) -> str:
    """What a command writes.

    Raises:
        MissingError: if what it needs is not to be had now; a broken lock is an error of ours.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(str(error)) from None
    if done.returncode:
        said = f"{' '.join(command)} failed: {done.stderr.strip()}"
        assert not any(each in done.stderr for each in BROKEN), said
        raise MissingError(said)
    return done.stdout


class Program:
    """A program of one language in a folder of its own.

    Args:
        language: of `FILES`.
        code: what its file has.
        folder: where all programs of the test are.
        environment: what the engine gets.
        python: a virtual environment for the program.
    """

    def __init__(
        self,
        language: str,
        code: str,
        folder: Path,
        environment: Mapping[str, str],
        python: Path,
    ) -> None:
        self.language, self.folder = language, folder / language
        self.environment = {
            **environment,
            "PULUMI_NODEJS_TRANSPILE_ONLY": "true",
            "npm_config_offline": "true",
            "PYTHONPATH": str(self.folder / "lib"),
        }
        self.folder.mkdir()
        options = {"virtualenv": str(python)} if language == "python" else {}
        runtime = {"name": RUNTIMES[language], "options": options}
        self._definition = {"name": f"in-{language}", "runtime": runtime}
        self.write(code)
        config = {
            "gcp:project": "tpu-stack-local",
            "gcp:batching": {"enableBatching": True, "sendAfter": "0.3s"},
        }
        # Google sees the stack's name.
        self._save(f"Pulumi.{language}.yaml", {"config": config})
        self.pulumi("stack", "init", language)

    def write(self, code: str) -> None:
        """Put the program into place, instead of an earlier one."""
        if self.language == "yaml":
            self._save("Pulumi.yaml", self._definition | yaml.safe_load(code))
        else:
            self._save("Pulumi.yaml", self._definition)
            (self.folder / "package.json").write_text("{}", encoding="utf-8")
            (self.folder / FILES[self.language]).write_text(code, encoding="utf-8")

    def add(self, plugin: Path) -> None:
        """Make the plugin's components known in the program."""
        added = self.run("package", "add", str(plugin))
        assert added.returncode == 0 or "linking package" in added.stdout, added.stdout
        self._definition["packages"] = {"tpu-stack": str(plugin)}
        sdk = self.folder / "sdks" / "tpu-stack"
        if self.language == "typescript":
            self._link(sdk)
        elif self.language == "python":
            options = ("--offline", "--quiet", "--no-deps", "--no-build-isolation")
            where = ("--python", sys.executable, "--target", str(self.folder / "lib"), str(sdk))
            subprocess.run([str(UV), "pip", "install", *options, *where], check=True)

    def _link(self, sdk: Path) -> None:
        modules = self.folder / "node_modules"
        shutil.rmtree(modules, ignore_errors=True)
        (modules / "@pulumi").mkdir(parents=True)
        for path in node_modules().iterdir():
            if path.name != "@pulumi":
                (modules / path.name).symlink_to(path)
        (modules / "@pulumi" / "pulumi").symlink_to(node_modules() / "@pulumi" / "pulumi")
        (modules / "@pulumi" / "tpu-stack").symlink_to(sdk)
        # Built with Go 1.26, whose filepath.Rel leaves out a dot, this host is off by a folder.
        for path in (sdk / "types").glob("*.ts"):
            text = path.read_text(encoding="utf-8")
            for name in ("types/", "utilities"):
                text = text.replace(f'"./{name}', f'"../{name}')
            path.write_text(text, encoding="utf-8")
        compiler = ["node", str(modules / "typescript" / "bin" / "tsc")]
        subprocess.run(compiler, cwd=sdk, check=True)
        shutil.copy(sdk / "package.json", sdk / "bin")
        # The program's own types; the engine then leaves them unchecked.
        checked = ("--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "node")
        subprocess.run([*compiler, *checked, "index.ts"], cwd=self.folder, check=True)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Pulumi."""
        return subprocess.run(
            ["pulumi", *command, "--non-interactive"],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def pulumi(self, *command: str) -> str:
        """All that a command of Pulumi writes; it must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _save(self, name: str, content: object) -> None:
        (self.folder / name).write_text(yaml.safe_dump(content), encoding="utf-8")
