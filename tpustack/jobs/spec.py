"""What a job is to be: the options of the commands that make jobs, and their checks.

Every problem is reported at once, before anything is uploaded.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from tpu_agent.jobs.queue import FRAMEWORKS, IMAGE, Spec
from tpu_core.paths import NAME
from tpustack import console, errors
from tpustack.jobs.queue import explained, open_queue, stack_of
from tpustack.jobs.source import Source, secret_in, source_of

_F = TypeVar("_F", bound=Callable[..., Any])
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
# A year. The record's reader takes no NaN or infinity, which a float of many digits would become.
_LONGEST_SPAN = 365 * 86400.0
# Bytes of a requirements file, which is a part of the job's record: thousands of hashes fit.
_LONGEST_TEXT = 256 << 10
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# Of a requirements file: https://pip.pypa.io/en/stable/reference/requirements-file-format/
_OPTION_WITH_FILE = re.compile(r"-(r|c|e)\b|--(requirement|constraint|editable)\b")


def _span(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    found = _SPAN.fullmatch(value)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0 < seconds <= _LONGEST_SPAN:
        text = f"{value!r} is not a duration. Write it like 90s, 30m or 2h"
        raise click.BadParameter(text, ctx, param)
    return seconds


def span_option(name: str, help: str) -> Callable[[_F], _F]:
    """Declare an option whose value is seconds, written like 90s, 30m, 2h or 1d."""
    return click.option(name, callback=_span, metavar="DURATION", help=help)


def queue_options(command: Callable[..., None]) -> Callable[..., None]:
    """Declare `--stack` and `--bucket`, one of which names the queue.

    A bucket is enough for those who have no clone of the project with the stack's file.
    """

    @wraps(command)
    def chosen(stack: str | None, bucket: str | None, **given: Any) -> None:
        command(stack=stack_of(stack, bucket), bucket=bucket, **given)

    declared = click.option("--bucket", help="The queue of this bucket, gs://BUCKET.")(chosen)
    return console.stack("The queue of this stack.")(declared)


def on_queue(command: Callable[..., None]) -> Callable[..., None]:
    """Declare the options that name a queue, and hand the queue over as `queue`.

    What the bucket refuses while the command runs is explained.
    """

    @wraps(command)
    def opened(stack: str | None, bucket: str | None, **given: Any) -> None:
        queue = open_queue(stack, bucket)
        with explained(queue):
            command(queue=queue, **given)

    return queue_options(opened)


def job_argument(command: _F) -> _F:
    """Declare the argument JOB, a job's name."""
    return click.argument("job", shell_complete=_job_names)(command)


def _job_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the jobs of the queue that the options before it name."""
    stack, bucket = ctx.params.get("stack"), ctx.params.get("bucket")
    if stack is None and bucket is None:
        return []  # Pulumi takes too long to say which stack is selected.
    try:
        queue = open_queue(stack, bucket)
        with explained(queue):
            return sorted(name for name in queue.summaries() if name.startswith(incomplete))
    except errors.TpustackError:
        return []  # A shell that completes shows no errors.


# How often a job is started again: after as many, a person should look.
_BUDGET = click.IntRange(0, 1000)
_FILE = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--command", "-c", help='What bash runs, such as "python main.py".'),
    click.option("--dir", "folder", type=_FILE, help="Upload this folder."),
    click.option("--wheel", type=_FILE, help="Install this wheel."),
    click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable. May be repeated."),
    click.option("--requirements", type=_FILE, help="Install these; with hashes, no others."),
    click.option(
        "--framework",
        type=click.Choice(FRAMEWORKS),
        default="none",
        help="Sets its variables; tensorflow adds the machine's TensorFlow and the trainer.",
    ),
    click.option("--priority", type=click.IntRange(-1000, 1000), default=0, help="Higher first."),
    click.option("--after", multiple=True, metavar="JOB", help="Run once JOB has succeeded."),
    click.option("--image", help="Run in this container; on vertex by default the framework's."),
    span_option("--timeout", "End an attempt after this time, such as 2h."),
    click.option("--failures", type=_BUDGET, default=0, help="Restarts after failures (0)."),
    click.option("--preemptions", type=_BUDGET, default=10, help="Restarts if preempted (10)."),
)
_OF_VERTEX = (
    click.option("--on", type=click.Choice(("stack", "vertex")), default="stack", help="Where."),
    click.option("--tpu", help="On vertex: the TPU's type; by default the stack's."),
    click.option("--spot", is_flag=True, help="On vertex: a spot TPU, which Google may preempt."),
)


def job_options(command: _F) -> _F:
    """Declare the options whose values `JobOptions` takes, without those of Vertex AI."""
    return _declare(_OPTIONS, command)


def vertex_options(command: _F) -> _F:
    """Declare the options that have Vertex AI run a job."""
    return _declare(_OF_VERTEX, command)


def _declare(options: Sequence[Callable[[_F], _F]], command: _F) -> _F:
    # The help has them in the order in which decorators would stand, the last one applied first.
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class JobOptions:
    """The values of the options, by the names that click gives them.

    Attributes:
        command: for bash; None if it is not given, which only a sweep accepts.
        folder: what `--dir` names.
        env: pairs of NAME=VALUE.
        timeout: seconds that an attempt may take.
        failures: how often the job is started again after a failure.
        preemptions: how often after its TPU or machine went.
        on: `stack` or `vertex`; tpu and spot are for the latter alone.
        image: a container image, which on the stack's own machine brings all packages.
    """

    command: str | None
    folder: Path | None
    wheel: Path | None
    env: tuple[str, ...]
    requirements: Path | None
    framework: str
    priority: int
    after: tuple[str, ...]
    timeout: float | None
    failures: int
    preemptions: int
    on: str = "stack"
    tpu: str | None = None
    image: str | None = None
    spot: bool = False

    @property
    def on_vertex(self) -> bool:
        """Whether Vertex AI runs the job."""
        return self.on == "vertex"

    def checked(self, name: str | None) -> tuple[Spec, Source]:
        """Return what to run, and what it brings along. Raises UsageError with every problem."""
        if self.command is None:
            raise errors.UsageError('--command: (not given). Give one like "python main.py"')
        source = source_of(self.folder, self.wheel)
        problems = [
            *name_problems(name),
            *_env_problems(self.env),
            *_requirements_problems(self.requirements),
            *_command_problems(self.command, source),
            *self._image_problems(),
        ]
        if problems:
            raise errors.UsageError("\n".join(problems))
        spec = Spec(
            command=self.command,
            kind=source.kind,
            archive=source.archive.sha256 if source.archive else "",
            source=source.origin,
            env=dict(pair.split("=", 1) for pair in self.env),
            requirements=self.requirements.read_text("utf-8") if self.requirements else "",
            framework=self.framework,
            priority=self.priority,
            after=self.after,
            timeout=self.timeout,
            failures=self.failures,
            preemptions=self.preemptions,
            image="" if self.on_vertex else self.image or "",
        )
        return spec, source

    def _image_problems(self) -> Iterator[str]:
        """Yield what is wrong with `--image`, and what can't be added to an image."""
        if self.image is None:
            return
        if not IMAGE.fullmatch(self.image):
            yield (
                f"--image: {self.image!r} is not a container image. Write it like "
                "us-docker.pkg.dev/PROJECT/REPOSITORY/NAME:TAG or NAME@sha256:DIGEST"
            )
        given = {"--requirements": self.requirements, "--wheel": self.wheel}
        for option, path in given.items() if not self.on_vertex else ():
            if path is not None:
                yield (
                    f"{option}: {path} can't be installed into the image {self.image}, which "
                    "brings its own packages. Build them into it, or leave out --image"
                )
        for name in (pair.partition("=")[0] for pair in self.env):
            if name.startswith("DOCKER_") and not self.on_vertex:
                yield (
                    f"--env: {name} would change which Docker runs the image {self.image}. Leave "
                    "it out, or set it in --command"
                )


def name_problems(name: str | None) -> Iterator[str]:
    """Yield what is wrong with `--name`, which becomes a part of paths in the bucket."""
    if name is not None and not NAME.fullmatch(name):
        yield (
            f"--name: {name!r} is not a job name (at most 63 lower-case letters, digits, hyphens, "
            "dots, underscores; a letter or digit first and last). Use one like mnist-1"
        )


def _env_problems(pairs: tuple[str, ...]) -> Iterator[str]:
    """Yield what is wrong with variables; who may read the bucket may read their values."""
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            yield f"--env: {pair!r} is not a variable. Write it like NAME=VALUE"
        elif why := secret_in(value.encode()):
            yield (
                f"--env: the value of {name} must not go into the bucket: {why}. Let the job get "
                "it from Secret Manager"
            )


def _requirements_problems(path: Path | None) -> Iterator[str]:
    """Yield what is wrong with a requirements file: its text alone goes into the job's record."""
    if path is None:
        return
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield f"--requirements: {path} can't be read: {getattr(error, 'strerror', error)}"
        return
    if len(text) > _LONGEST_TEXT:
        yield f"--requirements: {path} is longer than {_LONGEST_TEXT >> 10} KiB"
    if why := secret_in(text.encode()):
        yield f"--requirements: {path} must not go into the bucket: {why}"
    for number, line in enumerate(text.splitlines(), 1):
        if _OPTION_WITH_FILE.match(line.strip()):
            yield (
                f"--requirements: line {number} of {path} names another file, which the machine "
                "does not have. Write its lines into this one, or lock it"
            )


def _command_problems(command: str, source: Source) -> Iterator[str]:
    if not command.strip():
        yield '--command: it is empty. Give one like "python main.py"'
        return
    # The record and the list of jobs show the command to all who may read the bucket.
    if why := secret_in(command.encode()):
        yield (
            f"--command: it must not go into the bucket: {why}. Let the job get it from Secret "
            "Manager"
        )
    try:
        words = shlex.split(command, comments=True)
    except ValueError as error:
        yield f"--command: bash can't read {command!r}: {str(error).lower()}"
        return
    # A wheel's files are installed, and not in the folder that the command runs in.
    names = source.archive.names if source.archive and source.kind == "folder" else frozenset()
    for file in _files_run(words):
        if file not in names:
            brings = f"{source.origin} has no such file" if names else "the job brings no files"
            yield (
                f"--command: it runs {file}, but {brings}. Give the folder that has it by --dir "
                "(is it ignored?)"
            )


def _files_run(words: list[str]) -> Iterator[str]:
    """Yield the files of the job's own folder that a simple command runs.

    A job that fails for a missing file has waited for its TPU in vain.

    Only what is sure counts, `./FILE` and `python FILE`: a wrong guess would refuse a good job.
    """
    # Assignments may stand before a command.
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        words = words[1:]
    if not words:
        return
    if words[0].startswith("./"):
        yield words[0][2:]
    if _PYTHON.fullmatch(words[0]):
        scripts = [word for word in words[1:2] if not word.startswith("-")]
        yield from (word.removeprefix("./") for word in scripts if not word.startswith("/"))
