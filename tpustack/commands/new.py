"""`tpustack new`: a project of the user's own, which works without a clone; and its provider.

Its files are those of infra/tpu_infra/template and the wheels of what is installed here. So what
runs is what was tried, and no index is asked for a name that a stranger may have taken.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tpu_core.records import replace_file
from tpu_infra import names
from tpustack import project, stacks
from tpustack.engine import toolchain
from tpustack.errors import TpustackError, UsageError

TEMPLATE = Path(names.__file__).with_name("template")
_LOCK = "requirements.txt"
_WHEELS = "dist"
_PLUGIN = "components"
# What pins Google's provider, by its generation: 8 is the last with TPU Nodes, 10 the newest.
_PROVIDERS = {"8": TEMPLATE.with_name("locks") / "pulumi-gcp-8.txt", "10": TEMPLATE / _LOCK}
# Its entry in a lock, and that of what 8 alone depends on.
_ENTRIES = re.compile(r"^(?:parver|pulumi-gcp)==.*\n(?:[ \t].*\n)*", re.MULTILINE)
# Where the part of Pulumi.yaml begins that only `pulumi new` reads.
_FOR_PULUMI = "# `pulumi new`"
_HEADING = """\
# Made by `tpustack new`: the wheels in dist/, which git keeps, and what they depend on, by hash.
# docs/own-project.md of tpu-stack says how to add packages of your own.
"""
_DISTRIBUTIONS = ("tpu-stack", "tpu-stack-core", "tpu-stack-training")


@click.command("new")
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def new_command(folder: Path) -> None:
    """Create a project in DIR (default: the current folder) that needs no clone.

    It has a program, stack files, workflows for GitHub that check, preview and deploy them, and
    the installed packages as wheels in dist/. requirements.txt pins those and all that they depend
    on, by hash. The stack `local` runs in the local Google Cloud; `dev` needs your Google Cloud
    project. Existing files are never changed. Google's provider is the newest; for TPU Nodes, run
    `tpustack provider 8` in the project.
    """
    target = folder.resolve()
    create(target)
    place = "" if target == Path.cwd() else f"  cd {shlex.quote(str(target))}\n"
    click.echo(
        f"{target} is a project with the stacks local and dev. To try it in the local cloud:\n"
        f"{place}  pulumi install\n  tpustack local start\n"
        '  eval "$(tpustack local env --backend)"\n'
        "  pulumi stack init --stack local\n  pulumi up --stack local"
    )


@click.command("provider")
@click.argument("generation", type=click.Choice([*_PROVIDERS]))
def provider_command(generation: str) -> None:
    """Install a generation of Google's provider (pulumi-gcp) in a project of `tpustack new`.

    8 is for stacks with TPU Nodes (`architecture: node`), 10 for all others. The project's
    requirements then pin it by hash, and `pulumi install` installs them and the provider's plugin.
    """
    folder = project.root()
    if project.locked_provider() is None:
        raise UsageError(
            f"{folder} is not a project of `tpustack new`, whose {_LOCK} pins pulumi-gcp. A clone "
            "keeps the one that its tools can build: create a project outside of it"
        )
    # Without an engine nothing is changed.
    tools = toolchain.find()
    entries = "".join(_ENTRIES.findall(_PROVIDERS[generation].read_text(encoding="utf-8")))
    for lock in (folder / _LOCK, folder / _PLUGIN / _LOCK):
        if lock.exists():
            text = lock.read_text(encoding="utf-8")
            # In their place, so that a review shows them alone.
            whole = _ENTRIES.sub("\0", text).replace("\0", entries, 1).replace("\0", "")
            replace_file(lock.resolve(), whole.encode())
    click.echo(f"{_LOCK} pins pulumi-gcp {project.locked_provider()}; `pulumi install`:")
    if subprocess.run([tools.bin / "pulumi", "install"], cwd=folder, check=False).returncode:
        raise TpustackError(f"`pulumi install` failed in {folder}. Mend that, and run it again")


def create(target: Path) -> None:
    """Make a project, complete before its first file is in place.

    Args:
        target: its folder, as an absolute path.

    Raises:
        UsageError: when the folder can't become one, or the command runs from a clone.
        TpustackError: when the folder can't be written.
    """
    if problems := [*_problems(target)]:
        raise UsageError("\n".join(problems))
    with TemporaryDirectory() as made:
        _fill(Path(made) / "project", target.name)
        _copy(Path(made) / "project", target)


def _problems(target: Path) -> Iterator[str]:
    """Yield all that keeps a folder from becoming a project."""
    if not stacks.NAME.fullmatch(target.name):
        yield (
            f"DIR: {json.dumps(target.name, ensure_ascii=False)} can't be the project's name (at "
            "most 100 letters, digits, hyphens, dots and underscores). Choose another folder"
        )
    around = next((each for each in target.parents if project.is_project(each)), None)
    if around:
        yield f"DIR: {target} is in the project {around}. Choose a folder outside of it"
    written = {path.relative_to(TEMPLATE) for path in TEMPLATE.rglob("*")}
    there = sorted(
        str(path)
        for path in {*written, Path(_WHEELS)}
        # Links to nothing count, too.
        if "__pycache__" not in path.parts
        and os.path.lexists(target / path)
        and not ((target / path).is_dir() and (TEMPLATE / path).is_dir())
    )
    if there or (os.path.lexists(target) and not os.path.isdir(target)):
        what = f"has {', '.join(there)}" if there else "is a file"
        yield f"DIR: {target} {what}, which would be overwritten. Choose an empty or new folder"


def _fill(folder: Path, called: str) -> None:
    """Write a whole project of this name into a folder that is not there yet."""
    # The installer compiles the program there.
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    definition = folder / "Pulumi.yaml"
    text = definition.read_text(encoding="utf-8").partition(_FOR_PULUMI)[0]
    # Quoted, since a name like 1.10 is a number in YAML.
    definition.write_text(text.replace("${PROJECT}", f'"{called}"'), encoding="utf-8")
    # Not everyone has the local cloud.
    optional = ["tpu-stack-localcloud"] if find_spec("localcloud") else []
    packed = [project.pack(name, folder / _WHEELS) for name in (*_DISTRIBUTIONS, *optional)]
    lock = folder / _LOCK
    lines = [f"./{_WHEELS}/{path.name} --hash=sha256:{_digest(path)}\n" for path in packed]
    whole = _HEADING + "".join(lines) + lock.read_text(encoding="utf-8")
    lock.write_text(whole, encoding="utf-8")
    # Pulumi installs a plugin's requirements in the plugin's folder.
    (folder / _PLUGIN / _LOCK).write_text(whole.replace("\n./", "\n../"), encoding="utf-8")


def _copy(made: Path, target: Path) -> None:
    """Copy a project's files to a folder that has none of them, all or none of them.

    Raises:
        TpustackError: when that fails, for example since the disk is full.
    """
    copies = [target / path.relative_to(made) for path in (made, *made.rglob("*"))]
    own = [path for path in copies if not os.path.lexists(path)]
    try:
        shutil.copytree(made, target, dirs_exist_ok=True)
    except BaseException as error:
        for path in reversed(own):
            with suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        if not isinstance(error, OSError):
            raise
        # Of several files that fail (shutil.Error), the first one's reason.
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise TpustackError(
            f"DIR: {target} can't be written ({why}). Choose another folder, or mend this one"
        ) from None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
