"""The options that say what a job is, for every command that makes jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from tpu_agent.jobs.queue import FRAMEWORKS, Spec
from tpustack.errors import UsageError
from tpustack.jobs import arguments
from tpustack.jobs.source import Source, source_of
from tpustack.jobs.wanted import Wanted, check

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
    click.option("--timeout", type=arguments.Span(), help="End a try after so long, such as 2h."),
    click.option("--failures", type=_BUDGET, default=0, help="Starts after failures (0)."),
    click.option("--preemptions", type=_BUDGET, default=10, help="Starts after preemptions (10)."),
)


def declared(command: _F) -> _F:
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
            check(wanted, source)
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
