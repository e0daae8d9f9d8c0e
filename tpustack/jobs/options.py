"""The options that say what a job is, for every command that makes jobs."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from infra.startup.agent.jobs.layout import NAME
from infra.startup.agent.jobs.record import FRAMEWORKS, Spec
from tpustack import options
from tpustack.errors import UsageError
from tpustack.jobs.source import Source, in_text, source_of

_F = TypeVar("_F", bound=Callable[..., Any])
_BUDGET = click.IntRange(0, 1000)
_FILE = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--command", "-c", help='What bash runs, such as "python main.py".'),
    click.option("--dir", "folder", type=_FILE, help="Take this folder along."),
    click.option("--wheel", type=_FILE, help="Install this wheel."),
    click.option("--git", help="Take a commit along: URL@REF. Fetched here, with your rights."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable; repeatable."),
    click.option("--requirements", type=_FILE, help="Install this; with hashes, only these."),
    click.option(
        "--framework",
        type=click.Choice(FRAMEWORKS),
        default="none",
        help="Whose variables to set; tensorflow: with the machine's TensorFlow and trainer.",
    ),
    click.option("--priority", type=click.IntRange(-1000, 1000), default=0, help="Higher first."),
    click.option("--after", multiple=True, metavar="JOB", help="Run once JOB has succeeded."),
    click.option("--timeout", type=Span(), help="End a try after so long, such as 2h."),
    click.option("--failures", type=_BUDGET, default=0, help="Starts after failures (0)."),
    click.option("--preemptions", type=_BUDGET, default=10, help="Starts after preemptions (10)."),
)


def spec_options(command: _F) -> _F:
    """Declare the options, whose values `Given` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Given:
    """The values of the options."""

    command: str | None
    folder: Path | None
    wheel: Path | None
    git: str | None
    env: tuple[str, ...]
    requirements: Path | None
    framework: str
    priority: int
    after: tuple[str, ...]
    timeout: float | None
    failures: int
    preemptions: int

    @contextlib.contextmanager
    def described(self, name: str | None) -> Iterator[tuple[Spec, Source]]:
        """Yield what to run and what it brings along, which is there within the block only.

        Raises:
            UsageError: with everything that is wrong.
            TpustackError: git fails.
        """
        if self.command is None:
            raise UsageError('--command: (not given). Give one like "python main.py"')
        wanted = Wanted(self.command, name, self.env, self.requirements)
        with source_of(self.folder, self.wheel, self.git) as source:
            check_job(wanted, source)
            yield self._spec(wanted, source), source

    def _spec(self, wanted: Wanted, source: Source) -> Spec:
        return Spec(
            command=wanted.command,
            kind=source.kind,
            archive=source.archive.sha256 if source.archive else "",
            source=source.origin,
            env=wanted.variables(),
            requirements=wanted.requirements_text(),
            framework=self.framework,
            priority=self.priority,
            after=self.after,
            timeout=self.timeout,
            failures=self.failures,
            preemptions=self.preemptions,
        )


# --- Checks what a person wants to submit: every problem at once, before anything is uploaded.

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_OPTION_WITH_FILE = re.compile(r"-(r|c|e)\b|--(requirement|constraint|editable)\b")
_LONGEST_TEXT = 256 << 10


@dataclass(frozen=True)
class Wanted:
    """What the person asks for, as the options have it."""

    command: str
    name: str | None
    env: tuple[str, ...]
    requirements: Path | None

    def variables(self) -> dict[str, str]:
        """Return the variables of --env, for arguments without problems."""
        return dict(pair.split("=", 1) for pair in self.env)

    def requirements_text(self) -> str:
        """Return what --requirements holds, for arguments without problems."""
        return self.requirements.read_text("utf-8") if self.requirements else ""


def check_job(wanted: Wanted, source: Source) -> None:
    """Raise UsageError with everything that is wrong."""
    problems = [
        *_of_name(wanted.name),
        *_of_env(wanted.env),
        *_of_requirements(wanted.requirements),
        *_of_command(wanted.command, source),
    ]
    if problems:
        raise UsageError("\n".join(problems))


def _of_name(name: str | None) -> Iterator[str]:
    if name is not None and not NAME.fullmatch(name):
        yield (
            f"--name: {name!r} is no job name (at most 63 lower-case letters, digits, hyphens, "
            "dots, underscores; a letter or digit first and last). Use one like mnist-1"
        )


def _of_env(pairs: Iterable[str]) -> Iterator[str]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            yield f"--env: {pair!r} is no variable. Write it like NAME=VALUE"
        elif why := in_text(value.encode()):
            yield (
                f"--env: the value of {name} must not go into the bucket: {why}. Let the job get "
                "it from Secret Manager"
            )


def _of_requirements(path: Path | None) -> Iterator[str]:
    if path is None:
        return
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield f"--requirements: {path} can't be read: {getattr(error, 'strerror', error)}"
        return
    if len(text) > _LONGEST_TEXT:
        yield f"--requirements: {path} is longer than {_LONGEST_TEXT >> 10} KiB"
    if why := in_text(text.encode()):
        yield f"--requirements: {path} must not go into the bucket: {why}"
    for number, line in enumerate(text.splitlines(), 1):
        if _OPTION_WITH_FILE.match(line.strip()):
            yield (
                f"--requirements: line {number} of {path} names another file, which the machine "
                "does not have. Write its lines into this one, or lock it"
            )


def _of_command(command: str, source: Source) -> Iterator[str]:
    if not command.strip():
        yield '--command: it is empty. Give one like "python main.py"'
        return
    if why := in_text(command.encode()):
        yield (
            f"--command: it must not go into the bucket: {why}. Let the job get it from Secret "
            "Manager"
        )
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        yield f"--command: bash can't read {command!r}: {str(error).lower()}"
        return
    names = source.archive.names if source.archive and source.kind == "folder" else frozenset()
    for file in _files(words):
        if file not in names:
            brings = f"{source.origin} has no such file" if names else "the job brings no files"
            yield (
                f"--command: it runs {file}, but {brings}. Give the folder that has it by --dir "
                "(is it ignored?)"
            )


def _files(words: list[str]) -> Iterator[str]:
    """Yield the files that a simple command runs, where they are in the job's own folder."""
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words = words[1:]
    if not words:
        return
    if words[0].startswith("./"):
        yield words[0][2:]
    if _PYTHON.fullmatch(words[0]):
        scripts = [word for word in words[1:2] if not word.startswith("-")]
        yield from (word.removeprefix("./") for word in scripts if not word.startswith("/"))


# --- Options and arguments that the commands of jobs share.

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 365 * 86400.0


def place_options(command: _F) -> _F:
    """Declare `--stack` and `--bucket`, one of which says where the queue is."""
    bucket = click.option("--bucket", help="The queue of this bucket: gs://BUCKET.")
    return options.stack("The queue of this stack.")(bucket(command))


def job_argument(command: _F) -> _F:
    """Declare the argument JOB, the name of one."""
    return click.argument("job", shell_complete=_names)(command)


class Span(click.ParamType[float]):
    """A duration in seconds, written like 90s, 30m, 2h or 1d."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds. Fails the command, exit code 2, if it is none or out of range."""
        found = _SPAN.fullmatch(str(value))
        seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not 0 < seconds <= _LONGEST:
            self.fail(f"{value!r} is no duration. Write it like 90s, 30m or 2h", param)
        return seconds


def _names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the jobs of the queue that the options before name."""
    from tpustack.errors import TpustackError
    from tpustack.jobs.queue import explained, open_queue

    try:
        queue = open_queue(ctx.params.get("stack"), ctx.params.get("bucket"))
        with explained(queue):
            return sorted(name for name in queue.summaries() if name.startswith(incomplete))
    except TpustackError:
        return []
