"""A run of the pipeline, what it did to each stack, and the texts and files that tell of it.

Names of resources, messages of rules and errors come from a request. In Markdown such a text could
end the block that it stands in, mention people, show pictures and links, or give GitLab orders (a
line that begins with `/` is one, even in a fence that is longer than three backticks). So every
text passes through `prose`, `code` or `block`.
"""

import io
import json
import os
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from tpu_core.words import plural
from tpu_infra import checks, names
from tpu_infra.catalog import Catalog
from tpu_infra.checks.context import Context
from tpu_infra.settings import StackSettings, base, parse
from tpustack.console import line, printable
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Change, Violation
from tpustack.errors import TpustackError, UsageError
from tpustack.project import BACKEND, read_yaml
from tpustack.recovery.locks import LockedError, locked_message

# Each preview is an engine, a Python and a provider, some 300 MB together.
_SIDE_BY_SIDE = 8
_PASSPHRASES = ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")


class Outcome(Enum):
    """The outcome of one stack, from good to bad: a word and an exit code."""

    exit_code: int

    # 2 is left out: it is the exit code of a wrong command line.
    # `worst` goes by the order of these lines.
    NO_CHANGE = "no change", 0
    CHANGES = "changes", 3
    DRIFT = "drift", 4
    POLICY = "policy violation", 5
    FAILURE = "failure", 1

    def __new__(cls, word: str, exit_code: int) -> "Outcome":
        """Let the word be the value."""
        outcome = object.__new__(cls)
        outcome._value_, outcome.exit_code = word, exit_code
        return outcome


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a run over several stacks; one over none changes nothing."""
    return max(outcomes, key=list(Outcome).index, default=Outcome.NO_CHANGE)


@dataclass(frozen=True)
class CostChange:
    """US dollars an hour before and after, as texts; None: unknown, or no such stack."""

    before: str | None
    after: str | None
    difference: str | None


@dataclass(frozen=True)
class Result:
    """The result of a run for one stack, as plain data.

    Attributes:
        outcome: decides the exit code.
        changes: what was or will be done; for drift, what differs from the state.
        violations: what the policies say; None if they were not asked.
        cost: None if it was not compared.
        problem: why it failed.
        unfinished: what was to be done and failed.
    """

    stack: str
    outcome: Outcome
    changes: tuple[Change, ...] = ()
    violations: tuple[Violation, ...] | None = None
    cost: CostChange | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    unfinished: tuple[Change, ...] = ()
    seconds: float = 0.0

    @property
    def replaced(self) -> tuple[Change, ...]:
        """The resources that are deleted and made again."""
        return tuple(change for change in self.changes if change.operation == "replace")

    def noting(self, *notes: str) -> "Result":
        """Return the same result with more notes in front."""
        return replace(self, notes=(*notes, *self.notes))

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        found: dict[str, Any] = _RESULTS.dump_python([self], mode="json")[0]
        return found | {"seconds": round(self.seconds, 2)}


def failed(stack: str, problem: str, *notes: str) -> Result:
    """Return the result of a stack that nothing could be done about."""
    return Result(stack, Outcome.FAILURE, problem=problem, notes=notes)


class StackError(Exception):
    """A reason why nothing can be done with a stack."""


@dataclass(frozen=True)
class Run:
    """The run that every command of the pipeline works in.

    Attributes:
        root: the folder of Pulumi.yaml.
        output: the folder of plans, texts and results.
        report: gets lines of progress.
    """

    backend: Backend
    root: Path
    output: Path
    report: Callable[[str], None]
    catalog: Catalog = field(default_factory=Catalog)

    def line(self, stack: str) -> Callable[[str], None]:
        """Return a listener for the engine's output about one stack."""

        def report(text: str) -> None:
            if text.strip():
                self.report(f"{stack}: {text.rstrip()}")

        return report


def explained(stack: str, work: Callable[[], Result]) -> Result:
    """Do the work and time it; an expected error becomes a failed stack."""
    started = time.monotonic()
    try:
        result = work()
    except LockedError as error:
        result = failed(stack, locked_message(stack, error.locks))
    except (StackError, TpustackError) as error:
        result = failed(stack, str(error))
    return replace(result, seconds=time.monotonic() - started)


def in_parallel(stacks: Sequence[str], work: Callable[[str], Result]) -> list[Result]:
    """Do the work for every stack at the same time."""
    with ThreadPoolExecutor(max_workers=_SIDE_BY_SIDE) as pool:
        return list(pool.map(lambda stack: explained(stack, lambda: work(stack)), stacks))


def checked_settings(
    root: Path, stack: str, catalog: Catalog, environment: Mapping[str, str]
) -> StackSettings:
    """Return a stack's settings before the engine is started.

    Raises:
        StackError: with everything that is wrong with them.
    """

    def context(settings: StackSettings) -> Context:
        return Context(stack, root, catalog, names.names_of(settings, stack))

    path = parse.stack_path(root, stack)
    try:
        settings = parse.load_stack_file(path)
        checks.ensure_valid(settings, context(settings))
    except base.SettingsError as error:
        raise StackError(str(checks.with_checks(error, context))) from None
    known = {**os.environ, **environment}
    provider = read_yaml(path).get("secretsprovider")
    if provider in (None, "passphrase") and not any(known.get(name) for name in _PASSPHRASES):
        raise StackError(
            f"{_PASSPHRASES[0]}: (not set), but a passphrase encrypts the secrets of {path.name}. "
            "Set it as the pipeline's secret of that name, or encrypt them with a key: `pulumi "
            "stack change-secrets-provider gcpkms://KEY` (docs/ci-cd.md#set-up-the-pipeline). "
            "Nothing was created or changed."
        )
    return settings


def require_backend(environment: Mapping[str, str]) -> None:
    """Raise UsageError unless the environment says where the state is."""
    if not {**os.environ, **environment}.get(BACKEND):
        raise UsageError(
            f"{BACKEND} is not set. Set it to the stacks' state backend, such as "
            "gs://MY-STATE-BUCKET (the output backend_url of bootstrap/)"
        )


# The text about one stack, for a comment on a request or for an issue.

# GitHub takes 65,536 characters; the rest is for what others put around the text.
LONGEST = 64_000
_CUT = "\n\n… cut here. The run's files have the whole text.\n"
_SIGNS = {"create": "+", "update": "~", "delete": "-", "replace": "±"}
_TITLES = {
    "preview": "Preview of",
    "deploy": "Deployment of",
    "drift": "Drift of",
    "sweep": "Sweep of",
    "destroy": "Destruction of",
}
# Invisible, and no space to any of the parsers: it only keeps two characters apart.
_APART = "\u200b"
_SPAN = re.compile(r"`([^`]*)`")
_MARKS = re.compile(r"([\\`*_\[\]<>#|~&]|\$(?!\d))")
# What makes a list, a heading or a rule of a line that begins with it.
_BEGINS = re.compile(r"[-+=:]|\d+[.)]")
_FENCE = "```"


def marker(command: str, stack: str) -> str:
    """Return the invisible line by which a later run finds this text, to replace it."""
    return f"<!-- tpustack ci {command} {stack} -->"


def markdown(command: str, result: Result) -> str:
    """Return the whole text, shorter than LONGEST."""
    parts = [
        marker(command, result.stack),
        f"### {_TITLES[command]} stack {code(result.stack)}: {result.outcome.value}",
        *(f"> {prose(note)}" for note in result.notes),
        *([block(result.problem, "text")] if result.problem else []),
        *_sections(command, result),
    ]
    return shortened("\n\n".join(parts) + "\n", LONGEST, _CUT)


def _sections(command: str, result: Result) -> Iterator[str]:
    """Yield what the rules say, what is replaced, what changes, what failed, and the cost."""
    if result.violations:
        broken = (
            f"\n- {code(each.rule)} ({prose(each.level)}): {prose(each.message)}"
            for each in result.violations
        )
        yield f"**Policies**\n{''.join(broken)}"
    elif result.violations is not None:
        yield "**Policies**: no violations."
    if result.replaced:
        replaced = (
            f"\n- {code(each.type)} **{prose(each.name)}**"
            + (f", because of {', '.join(map(code, each.because))}" if each.because else "")
            for each in result.replaced
        )
        yield f"**Replaced** (deleted, then recreated)\n{''.join(replaced)}"
    if result.changes:
        what = {"drift": "changed manually", "preview": "to change"}.get(command, "changed")
        count = f"{plural(len(result.changes), 'resource')} {what}"
        listing = block("\n".join(map(_change, result.changes)), "diff")
        yield f"<details open><summary>{count}</summary>\n\n{listing}\n\n</details>"
    elif result.outcome is Outcome.NO_CHANGE:
        yield "No changes."
    if result.unfinished:
        failures = (
            f"\n- {line(each.operation)} {code(each.type)} **{prose(each.name)}**"
            for each in result.unfinished
        )
        yield f"**Failed** ({len(result.unfinished)})\n{''.join(failures)}"
    if cost := result.cost:
        before, after = cost.before or "nothing", cost.after or "unknown"
        difference = cost.difference or "unknown difference"
        yield f"**Cost per hour**: {prose(f'{before} → {after} ({difference})')}"


def _change(change: Change) -> str:
    operation, kind, name = map(line, (change.operation, change.type, change.name))
    of = f" [{line(', '.join(change.properties))}]" if change.properties else ""
    return f"{_SIGNS.get(operation, '?')} {operation:8} {kind} {name}{of}"


def prose(text: str) -> str:
    """Return a text of one line for Markdown, in which only `code` keeps its meaning."""
    kept = line(text)
    parts = [
        code(part) if index % 2 else _plain(part) for index, part in enumerate(_SPAN.split(kept))
    ]
    return "".join([_APART, *parts] if _BEGINS.match(kept) else parts)


def code(text: str) -> str:
    """Return a text of one line as a span of code."""
    kept = line(text)
    longest = max((len(run) for run in re.findall("`+", kept)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if kept.startswith("`") or kept.endswith("`") or not kept else ""
    return f"{fence}{edge}{kept}{edge}{fence}"


def block(text: str, language: str) -> str:
    """Return a text as a block of code in a fence that no line of it can end."""
    lines = (_inside(printable(each)) for each in text.splitlines())
    return "\n".join([f"{_FENCE}{language}", *lines, _FENCE])


def shortened(whole: str, longest: int, cut: str) -> str:
    """Return a Markdown text of at most `longest` characters, with every block ended."""
    if len(whole) <= longest:
        return whole
    kept = whole[: longest - len(cut) - len(_FENCE) - 1].rpartition("\n")[0]
    fences = sum(each.startswith(_FENCE) for each in kept.split("\n"))
    return f"{kept}\n{_FENCE if fences % 2 else ''}{cut}"


def _plain(text: str) -> str:
    # A backslash ends no mention, reference or address.
    apart = re.sub(r"[@#]|//|www\.", lambda found: found[0][0] + _APART + found[0][1:], text)
    return _MARKS.sub(r"\\\1", apart)


def _inside(text: str) -> str:
    return _APART + text if re.match(r"\s*(`|~|/|>|<)", text) else text


# The files that a run writes: a text for each stack, and result.json for programs.

RESULTS = "result.json"
_STACK = re.compile(r"[A-Za-z0-9_-]{1,100}")
# What a run about a hundred stacks writes is far shorter.
_LONGEST = 50_000_000
_RESULTS = TypeAdapter(list[Result])


def results_document(command: str, results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return what a run writes to result.json."""
    outcome = worst(result.outcome for result in results)
    return {
        "command": command,
        "outcome": outcome.value,
        "exitCode": outcome.exit_code,
        "stacks": [result.as_json() for result in results],
        "seconds": round(seconds, 2),
    }


def write_results(folder: Path, command: str, results: Sequence[Result], seconds: float) -> None:
    """Write STACK.md for each stack, and result.json."""
    for result in results:
        path = folder / f"{result.stack}.md"
        path.write_text(markdown(command, result), encoding="utf-8")
    document = results_document(command, results, seconds)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    (folder / RESULTS).write_text(text, encoding="utf-8")


@dataclass(frozen=True)
class Texts:
    """The files of a run: a text by stack, and the stacks that drifted."""

    by_stack: dict[str, str]
    drifted: set[str]


def read_results(
    folder: Path, command: str, stacks: re.Pattern[str] = _STACK, notes: Sequence[str] = ()
) -> Texts:
    """Read what a run of `command` wrote, perhaps in another job, whose files are not trusted.

    The texts are made again from plain data, so that no other job decides what they look like.

    Args:
        command: the command whose results these must be.
        stacks: the stacks that they may be about.
        notes: what a reader should know of each.

    Raises:
        UsageError: if there is no such run, or it is about other stacks.
    """
    try:
        with (folder / RESULTS).open("rb") as file:
            found = json.loads(file.read(_LONGEST))
        if found["command"] != command:
            raise ValueError(f"they are from {found['command']!r}, not from {command!r}")
        results = _RESULTS.validate_python(found["stacks"])
        if strange := [each.stack for each in results if not stacks.fullmatch(each.stack)]:
            raise ValueError(f"{strange[0]!r} isn't a stack of this run")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{folder} has no results of {command}: {line(str(error))}") from None
    texts = {each.stack: markdown(command, each.noting(*notes)) for each in results}
    return Texts(texts, {each.stack for each in results if each.outcome is Outcome.DRIFT})


def unpack_results(archive: bytes, folder: Path) -> None:
    """Extract a run's results, for `read_results`, from an archive of its files."""
    _unpack(archive, RESULTS, folder)


def unpack_plan(archive: bytes, folder: Path, stack: str) -> bool:
    """Extract the plan of a stack from its preview's files, and no other.

    Returns False if there is none: the change does not touch the stack.
    """
    return _unpack(archive, f"{stack}.plan.json", folder)


def _unpack(archive: bytes, name: str, folder: Path) -> bool:
    """Extract a file from an archive of another job; return whether there is one.

    The others are not read: a few bytes of an archive may stand for gigabytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            found = [e for e in packed.infolist() if PurePosixPath(e.filename).name == name]
            if not found:
                return False
            if len(found) > 1 or found[0].file_size > _LONGEST:
                raise UsageError(f"the preview's files have {name} twice, or the file is too long")
            (folder / name).write_bytes(packed.read(found[0]))
            return True
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise UsageError(f"the preview's files aren't an archive: {line(str(error))}") from None
