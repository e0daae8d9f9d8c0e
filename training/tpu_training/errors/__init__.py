"""Errors that a user can act on. Each message says what is wrong, where, and how to fix it.

Exit codes: 2 for wrong input, 1 for a failure, 75 (EX_TEMPFAIL of sysexits.h) for "start me again".
Exceptions of TensorFlow and Google are translated by the catalog, known_errors.json; JSON, because
a training machine may lack a YAML parser.
"""

import importlib
import json
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tpu_core
from tpu_core.lease import LeaseError

EXIT_FAILURE = 1
EXIT_WRONG_INPUT = 2
# systemd counts an exit by SIGTERM as clean and does not restart the job. 75 counts as a failure
# for Restart=on-failure, so an interrupted job starts again and resumes.
EXIT_START_AGAIN = tpu_core.START_AGAIN


class TrainingError(Exception):
    """A failure while the job runs: endpoint, permission, network, divergence."""

    exit_code = EXIT_FAILURE
    cause = ""
    """An ID of the catalog of errors, or a word of its own: what a supervisor decides by."""


class InputError(TrainingError):
    """The user has to change something: a flag, a value, a file."""

    exit_code = EXIT_WRONG_INPUT


class ParamsError(InputError):
    """All wrong flags and values of a command line and its configuration file."""

    def __init__(self, problems: Sequence[str]) -> None:
        """Join `problems` into one message; keep the list in `self.problems`."""
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class DataError(InputError):
    """A data file or its manifest is missing, corrupt or inconsistent."""


class CheckpointError(InputError):
    """A checkpoint belongs to another model."""


class LoweringError(InputError):
    """A step holds something that a TPU's compiler does not take."""


class EndpointError(TrainingError):
    """The TPU's endpoint can't be found or does not answer."""

    cause = "endpoint"


class TpuStateError(EndpointError):
    """The TPU exists, but waiting will not make it ready."""

    cause = "tpu-state"


class AccessError(TrainingError):
    """A role, an access scope or an API is missing."""

    cause = "permission"


class DivergedError(TrainingError):
    """The loss is no longer a finite number."""

    cause = "loss-diverged"


class Interrupted(TrainingError, SystemExit):
    """The job received SIGTERM; its progress is saved and it should be started again.

    A program that does not catch it ends with its exit code, as the command line does.
    """

    code = exit_code = EXIT_START_AGAIN


def require(module: str, package: str, extra: str, purpose: str, otherwise: str = "") -> Any:
    """Import `module`; InputError that says what to install when it is not there, or broken.

    `otherwise` ends the sentence with what can be done without it.
    """
    try:
        return importlib.import_module(module)
    # Incompatible versions of libraries fail with arbitrary errors.
    except Exception as error:
        raise InputError(
            f"{purpose} needs {package}: pip install 'tpu-stack-training[{extra}]'{otherwise} "
            f"({error})"
        ) from error


# The catalog: known errors with causes and fixes, and exceptions translated by them.

# Python's words where TensorFlow is not installed.
NO_TENSORFLOW = "No module named 'tensorflow'"

_FILE = Path(__file__).parent / "known_errors.json"
# Cloud Storage's answers and names in graphs contain slashes, too, but not after a blank.
_PATHS = tuple(re.compile(start + r"[^\s'\";:,]+") for start in ("gs://", r"(?<![^\s'\"(:])/"))
# TensorFlow's decoration around the message.
_NOISE = re.compile(r"\{\{\w+ [^}]*\}\} ?| ?\[Op:\w+\]( name:)?")
_HEADINGS = ("in user code:", "Graph execution error:")
_LONGEST = 300
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PACKAGES = (str(Path(__file__).parents[1]), str(Path(tpu_core.__file__).parent))
# The last is this package's command, which pip writes.
_LIBRARIES = (
    "/site-packages/",
    "/dist-packages/",
    "/__autograph_generated_file",
    "/bin/tpu-training",
)


@dataclass(frozen=True)
class KnownError:
    """An error that users meet: how to recognise it, its cause and its fix.

    Attributes:
        symptom: The words that people see in their log; `…` stands for what differs.
        chinese: Cause and fix in Chinese.
        example: The text as it was seen.
        partial: A part of it that suffices for recognition.
        wrong_input: Whether it is the user's mistake (exit code 2) rather than a failure (1).
    """

    id: str
    symptom: str
    pattern: re.Pattern[str]
    cause: str
    fix: str
    chinese: tuple[str, str]
    link: str
    example: str
    partial: str
    wrong_input: bool = False


def find_known_error(text: str) -> KnownError | None:
    """Return the first known error whose pattern occurs in `text`."""
    return next((known for known in known_errors() if known.pattern.search(text)), None)


@cache
def known_errors() -> tuple[KnownError, ...]:
    """Return the catalog, more specific entries first."""
    return tuple(_known(entry) for entry in _read()["errors"])


@cache
def innocent_lines() -> re.Pattern[str]:
    """Return the pattern of lines that look like errors but come from healthy programs."""
    return _compile(_read()["innocent"])


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return content


def _known(entry: dict[str, Any]) -> KnownError:
    names = ("id", "symptom", "cause", "fix", "link", "example", "partial")
    texts = {name: entry[name] for name in names}
    chinese = (entry["zh"]["cause"], entry["zh"]["fix"])
    wrong_input = entry.get("wrongInput", False)
    pattern = _compile(entry["patterns"])
    return KnownError(pattern=pattern, chinese=chinese, wrong_input=wrong_input, **texts)


def _compile(patterns: list[str]) -> re.Pattern[str]:
    """Join patterns; a blank matches any white space, because logs break lines anywhere."""
    return re.compile("|".join(f"(?:{p})" for p in patterns).replace(" ", r"\s+"), re.I | re.S)


def translate(error: Exception) -> TrainingError:
    """Return a TrainingError with the cause, the fix and the original text."""
    if isinstance(error, LeaseError):
        held = TrainingError(str(error))
        held.cause = "lease"
        return held
    text = _NOISE.sub("", f"{type(error).__name__}: {error}")
    known = find_known_error(text)
    shown = describe(error)
    line = user_line(error)
    if known is None and line:
        return InputError(f"{line}: {type(error).__name__}: {shown}")
    if known is None:
        return TrainingError(
            f"{type(error).__name__}: {shown} (not a known error; --debug shows where it occurred)"
        )
    kind = InputError if known.wrong_input else TrainingError
    paths = (found[0] for path in _PATHS if (found := path.search(text)))
    where = line or next(paths, "")
    place = f" ({where})" if where not in shown else ""
    link = f"; see {known.link}" if known.link else ""
    translated = kind(f"{known.cause}{place}: {known.fix}{link} [{shown}]")
    translated.cause = known.id
    return translated


def describe(error: Exception) -> str:
    """Return the line of an error's text that states the problem."""
    message = str(getattr(error, "message", None) or error)
    return _first_line(_NOISE.sub("", message)) or type(error).__name__


def _first_line(text: str) -> str:
    """Return the informative line: the first one, above TensorFlow's stack and graph.

    Errors in compiled functions begin with one of _HEADINGS and end with the informative line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    kept = [line for line in lines if not line.startswith("[[")]
    line = kept[-1] if lines[0] in _HEADINGS else lines[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def user_line(error: BaseException) -> str:
    """Return FILE:LINE of the innermost line outside libraries and this package; "" without one."""
    return users_line(_frames(error))


def users_line(frames: Iterable[tuple[str, int]]) -> str:
    """Return the first FILE:LINE of `frames` outside libraries and our packages, or ""."""
    return next((f"{file}:{line}" for file, line in frames if _is_users(file)), "")


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yield files and lines, the innermost first.

    AutoGraph runs a translated copy of a user's file and keeps the original lines with the
    error. An operation that fails in a step has them in its text.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        yield error.filename, error.lineno
    if converted := getattr(error, "ag_error_metadata", None):
        yield from ((frame.filename, frame.lineno) for frame in converted.translated_stack)
    yield from ((file, int(line)) for file, line in reversed(_FRAME.findall(str(error))))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield frame.filename, frame.lineno or 0


def _is_users(file: str) -> bool:
    not_users = (*_PACKAGES, sysconfig.get_path("stdlib"), "<")
    return not file.startswith(not_users) and not any(part in file for part in _LIBRARIES)
