"""What all commands share: lazy groups, options, text that is safe to print, and interruption.

Each start of the command line loads this module, so it imports click and the standard library only.
"""

import contextlib
import difflib
import importlib
import json
import locale
import os
import re
import shutil
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, TypeVar

import click

from tpustack.errors import UsageError


class LazyGroup(click.Group):
    """Commands of other modules next to those that are added.

    Args:
        later: where each is, such as "tpustack.jobs.command:command", by its name.
    """

    def __init__(self, *arguments: Any, later: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, sorted."""
        return sorted([*self._later, *self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None for an unknown name."""
        if cmd_name not in self._later:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._later[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments; suggest the closest command for an unknown name."""
        names = self.list_commands(ctx)
        close = difflib.get_close_matches(args[0], names, n=1)
        if args[0] not in names and close and not ctx.resilient_parsing:
            ctx.fail(f"No such command '{args[0]}'. Did you mean '{close[0]}'?")
        return super().resolve_command(ctx, args)


# Options.

_F = TypeVar("_F", bound=Callable[..., Any])


def stacks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the stacks that have a file."""
    from tpustack.stacks import all_stacks

    try:
        return [name for name in all_stacks() if name.startswith(incomplete)]
    except UsageError:
        return []


def zones(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the zones with TPUs."""
    from tpu_infra.catalog import Catalog

    types = Catalog().accelerators.values()
    found = {zone for tpu in types for zone in tpu.zones}
    return sorted(zone for zone in found if zone.startswith(incomplete))


def accelerators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Offer the types of TPU, smallest first within a family."""
    from tpu_infra.catalog import Catalog

    catalog = Catalog()
    return [n for n in (*catalog.accelerators, *catalog.hosts) if n.startswith(incomplete)]


SELECTED = "Pulumi's selected stack"


def stack(help: str, default: str = SELECTED, *, several: bool = False) -> Callable[[_F], _F]:
    """Declare `--stack`, or with `several` the option that hands over `stacks`.

    By default it is the stack of `tpustack.engine.named`.
    """
    names = ("--stack", "-s", *(["stacks"] if several else []))
    about = f"{help}{' May be repeated.' if several else ''}  [default: {default}]"
    return click.option(*names, shell_complete=stacks, multiple=several, help=about)


def as_json(thing: str = "result") -> Callable[[_F], _F]:
    """Declare `--json`, handed over as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print the {thing} as JSON.")


def columns() -> int | None:
    """Return the width of the terminal; None for a pipe or file, whose lines stay whole."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def echo_json(document: object) -> None:
    """Print a document as JSON."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """Tell a person something on standard error: scripts read the result on standard output."""
    click.echo(plain(text), err=True)


# Terminals obey escapes, control characters and directions. Tables obey markup, too, and take such
# a text as a `rich.text.Text`.

# Taken away whole, colours above all, so that nothing of them is left to read.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")


def line(text: str) -> str:
    """Return a text as one line without characters that control a terminal or the direction."""
    return " ".join(printable(text).split())


def plain(text: str) -> str:
    """Return a text with its lines, without colours and what else controls a terminal."""
    return printable(_SEQUENCES.sub("", text).replace("\r\n", "\n").replace("\r", "\n"), "\t\n")


def unbroken(text: str) -> str:
    """Return a line of a log or table as `plain` does, still as one line, with its indentation."""
    return plain(text.rstrip("\r")).replace("\n", " ")


def printable(text: str, kept: str = "\t") -> str:
    """Return a text with a space for each character that controls something, but for those kept."""
    return "".join(each if each in kept or not _controls(each) else " " for each in text)


def _controls(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def in_chinese() -> bool:
    """Return whether the person reads Chinese, and the terminal can show it.

    TPUSTACK_LANG decides, then the locale. What is unknown or not installed is English.
    """
    language = os.environ.get("TPUSTACK_LANG")
    if not language:
        before = locale.setlocale(locale.LC_MESSAGES)
        try:
            language = locale.setlocale(locale.LC_MESSAGES, "")
        except locale.Error:
            return False
        finally:
            locale.setlocale(locale.LC_MESSAGES, before)
    try:
        "\u4e2d\u6587".encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return language.lower().startswith("zh")


# Ctrl-C, `kill` and a closed terminal: each ends a command with one line.

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The command is to end.

    Not a KeyboardInterrupt: libraries on the way catch those, and end with words of their own.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)

    @property
    def patient(self) -> bool:
        """Whether a person waits at the terminal; other signals are soon followed by a kill."""
        return self.number == signal.SIGINT

    @property
    def exit_code(self) -> int:
        """Return the exit code that shells expect."""
        return 128 + self.number


_came = threading.Event()
hurry = threading.Event()
"""Is set by the second signal: what cleans up hurries."""


@contextlib.contextmanager
def handled() -> Iterator[None]:
    """Raise Interrupted in this block, once, when the process is told to end."""
    _came.clear()
    hurry.clear()
    before = {number: signal.signal(number, _handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(number: int, frame: FrameType | None) -> None:
    # Raised once: a second exception would break off what the first one cleans up.
    if _came.is_set():
        hurry.set()
    else:
        _came.set()
        raise Interrupted(number)
