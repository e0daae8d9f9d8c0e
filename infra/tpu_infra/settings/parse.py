"""From a stack's file, or the engine, to `StackSettings`, or to every problem at once.

Pydantic finds what is wrong, and this module says it to the author of a stack file: by the name
that the setting has there, with what would be right. Settings that could be read are kept next to
the problems, so that the checks can add theirs to the same message.
"""

import copy
import datetime
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tpu_infra.settings import StackSettings, base
from tpu_infra.settings.base import UNSET, Problem, Section, SettingsError

Location = tuple[int | str, ...]
"""The names and numbers that lead to a value, as in pydantic's errors."""
Fields = list[tuple[type[Section], FieldInfo]]
NAMESPACE: Final = "tpu-stack"
PROJECT_KEY: Final = "gcp:project"
STAND_IN: Final = "stand-in"
"""What the names of a project and a zone begin with that stand for those that are not set."""
_STAND_INS: Final = {"project": f"{STAND_IN}-project", "zone": f"{STAND_IN}1-a"}

_NAMES: Final = [info.alias or name for name, info in StackSettings.model_fields.items()]

# Limits of pydantic's error types: what is wrong, and what would be right ({0} is the limit).
_LIMITS: Final[Mapping[str, tuple[str, str, str]]] = {
    "greater_than_equal": ("ge", "is too small", "Use at least {0}"),
    "greater_than": ("gt", "is too small", "Use more than {0}"),
    "less_than_equal": ("le", "is too large", "Use at most {0}"),
    "enum": ("expected", "is unknown", "Use {0}"),
    "too_short": ("min_length", "has too few", "Use at least {0}"),
}
_KINDS: Final[Mapping[str, str]] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "string": "text",
    "model": "a map of settings",
    "dict": "a map of names and values",
    "tuple": "a list",
    "datetime": "a time",
    "timezone": "a time with a time zone, such as Z at its end",
}


def parse(config: Mapping[str, object], stack: str, known: Sequence[Problem] = ()) -> StackSettings:
    """Parse the settings in `config`, whose keys are those of a stack file (`tpu-stack:zone`, …).

    Raises SettingsError with every problem, those that are `known` already among them.
    """
    values: dict[str, Any] = {}
    meant: dict[str, Any] = {}
    problems = list(known)
    for key, value in config.items():
        namespace, _, name = key.rpartition(":")
        if key == PROJECT_KEY:
            values |= {} if value in (None, "") else {"project": value}
        # What has no namespace is the program's own to Pulumi.
        elif namespace in (NAMESPACE, "") and name != "project":
            if name in values:
                why = f"is set twice, with and without {NAMESPACE}:, which is the same to Pulumi"
                problems.append(Problem(key, value, why, "Remove one"))
            values[name] = value
        elif problem := _astray(key, namespace, name, value):
            problems.append(problem)
            meant |= {name: value} if name in _NAMES else {}
    values = meant | values
    secret = [name for name in values if base.holds_secret(values[name])]
    problems += [base.secret_problem(dotted((name,))) for name in secret]
    values = {name: value for name, value in values.items() if name not in secret}
    settings: StackSettings | None = None
    wrong: list[ErrorDetails] = []
    try:
        settings = _validated(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
    problems += [_problem(details, stack) for details in wrong if details["loc"][0] not in secret]
    paths = [details["loc"] for details in wrong]
    problems += _dates(values, ())
    if problems or settings is None:
        raise SettingsError(stack, problems, settings or _without(values, paths))
    return settings


def _astray(key: str, namespace: str, name: str, value: object) -> Problem | None:
    """Return the problem with a setting in another namespace; None if it belongs there."""
    if name == "project":
        cure = f"Set it as {PROJECT_KEY}"
        return Problem(key, value, "is the provider's setting, not this program's", cure)
    if key in ("gcp:zone", "gcp:region"):
        cure = f"Set {NAMESPACE}:zone, whose region all resources use"
        return Problem(key, value, "is a default of the provider, which has no effect here", cure)
    if namespace in ("gcp", "pulumi"):
        return None
    cure = f"Write {NAMESPACE}:{name}" if name in _NAMES else f"Use {NAMESPACE} or gcp"
    return Problem(key, value, "is in a namespace that this program doesn't read", cure)


def _dates(value: object, path: Location) -> Iterator[Problem]:
    if isinstance(value, (dict, list)):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _dates(below, (*path, key))
    elif isinstance(value, datetime.date):
        why = "is a date in YAML, which Pulumi passes on in another format"
        yield Problem(dotted(path), value, why, "Put it in quotes")


def _validated(values: Mapping[str, Any]) -> StackSettings:
    """Return the settings, strict as JSON is: an enumeration or a time is a text there."""
    written = json.dumps(values, default=str, ensure_ascii=False)
    # Half a character, as `"\\ud800"` is, becomes another one, as in Pulumi.
    return StackSettings.model_validate_json(written.encode(errors="replace"))


def _without(values: Mapping[str, Any], paths: Sequence[Location]) -> StackSettings | None:
    """Return the settings without those at `paths`; None where they do without one badly.

    Others stand for a project and a zone that are not set.
    """
    kept = copy.deepcopy(dict(values))
    # The last of a list first: what is left of it does not move.
    for path in sorted(paths, key=str, reverse=True):
        group: Any = kept
        try:
            for part in path[:-1]:
                group = group[part]
            del group[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue
    try:
        return _validated({**_STAND_INS, **kept})
    except ValidationError:
        return None


def _problem(error: ErrorDetails, stack: str) -> Problem:
    problem = problem_of(error, StackSettings)
    if error["loc"] == ("project",) and error["type"] == "missing":
        why = "is required: everything is created in a project"
        cure = f"Run `pulumi config set {PROJECT_KEY} YOUR-PROJECT --stack {stack}`"
        return Problem(problem.setting, UNSET, why, cure)
    return problem


def problem_of(error: ErrorDetails, root: type[Section]) -> Problem:
    """Return what an error of pydantic's with `root` means to the author of a stack file."""
    path = tuple(error["loc"])
    value = UNSET if error["type"] == "missing" else error["input"]
    return Problem(dotted(path), value, *_why_and_cure(error, path, root))


def _why_and_cure(error: ErrorDetails, path: Location, root: type[Section]) -> tuple[str, str]:
    kind, (found, section) = error["type"], _walk(path, root)
    described = _description(found)
    if kind == "extra_forbidden":
        return "is not a setting", _nearest(path, root)
    if kind == "missing":
        return "is required", f"Set it: {described}"
    if kind == "value_error":
        return str(error["ctx"]["error"]), "Correct it"
    if kind in _LIMITS:
        key, why, cure = _LIMITS[kind]
        limit = error["ctx"][key]
        return why, cure.format(f"{limit:g}" if isinstance(limit, float) else limit)
    if kind == "string_too_short":
        return "is empty", f"Set or remove it: {described}"
    for prefix, expected in _KINDS.items():
        if kind.startswith(prefix):
            group = section if prefix == "model" else None
            cure = _members(group, found) if group else f"Meaning: {described}"
            return f"is not {expected}", cure
    return f"is not valid ({error['msg']})", described


def _members(section: type[Section], found: Fields) -> str:
    """Return the cure for a value that should be a group: the settings that the group has."""
    names = ", ".join(_by_alias(section))
    may_be_left_out = found and type(None) in get_args(found[-1][1].annotation)
    return f"Use {{}}, or set below it: {names}" if may_be_left_out else f"Set below it: {names}"


def dotted(path: Location) -> str:
    """Return the name that a stack file has for what a path leads to."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return PROJECT_KEY if text == ".project" else text.removeprefix(".") or '""'


def _nearest(path: Location, root: type[Section]) -> str:
    _, section = _walk(path[:-1], root)
    names = sorted(_by_alias(section)) if section else []
    names = [PROJECT_KEY if name == "project" else name for name in names]
    close = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {dotted((*path[:-1], close[0]))}?"
    return f"Choose from: {', '.join(names)}"


def _by_alias(section: type[Section]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in section.model_fields.items()}


def _walk(path: Location, root: type[Section]) -> tuple[Fields, type[Section] | None]:
    """Return section and field of each name in a path, and the section to which it leads, if any.

    The fields end with the first that does not exist.
    """
    found: Fields = []
    section: type[Section] | None = root
    is_key = False
    # The numbers are of lists of sections, which are all alike; so are those of a map by name.
    for name in (part for part in path if isinstance(part, str)):
        if is_key:
            is_key = False
            continue
        field = _by_alias(section).get(name) if section else None
        if section is None or field is None:
            return found, None
        found.append((section, field))
        section = _below(field)
        is_key = section is not None and get_origin(field.annotation) is Mapping
    return found, section


def _below(field: FieldInfo) -> type[Section] | None:
    """Return the section that a field holds, be it optional or a list of sections."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, Section)), None)


def _description(found: Fields) -> str:
    """Return the description of the setting that a path leads to, or through to what is in it."""
    if not found:
        return ""
    section, field = found[-1]
    return base.one_line(base.descriptions(section)[field.alias or ""]).rstrip(".")


# --- Stack files, for programs without an engine: the command line and the tests

# What else Pulumi keeps in such a file.
_PULUMIS = ("config", "environment", "secretsprovider", "encryptionsalt", "encryptedkey")


def stack_path(root: Path, stack: str) -> Path:
    """Return the path of a stack's file in the project's folder."""
    return root / "stacks" / f"Pulumi.{stack}.yaml"


def stack_name(path: Path) -> str:
    """Return the stack of a file `Pulumi.STACK.yaml`."""
    return path.stem.removeprefix("Pulumi.")


def load_stack_file(path: Path) -> StackSettings:
    """Return the settings in a stack file.

    Raises SettingsError if they are wrong or the file is missing or not YAML.
    """
    stack = stack_name(path)
    try:
        document = load_yaml(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        files = sorted(stack_name(other) for other in path.parent.glob("Pulumi.*.yaml"))
        close = difflib.get_close_matches(stack, files, n=1)
        cure = f"{f'Did you mean {close[0]}? ' if close else ''}Existing files: "
        cure += ", ".join(files) or "none"
        raise _refusal(stack, f"has no file {path.name}", cure) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _refusal(stack, f"has a file that can't be read: {reason}", "Correct it") from None
    except yaml.YAMLError as error:
        why = f"has a file that is not valid YAML: {yaml_reason(error)}"
        raise _refusal(stack, why, "Correct it") from None
    document = document if isinstance(document, dict) else {}
    config = document.get("config")
    if config is not None and not isinstance(config, dict):
        why, cure = "is not a map of settings", "Write one setting per line"
        raise SettingsError(stack, [Problem("config", config, why, cure)])
    if unnamed := [key for key in config or {} if not isinstance(key, str)]:
        why = "is not the name of a setting"
        cure = "Write NAME: VALUE, such as tpu-stack:zone: us-west4-a"
        raise SettingsError(stack, [Problem("config", key, why, cure) for key in unnamed])
    outside = {str(key): document[key] for key in document if key not in _PULUMIS}
    why, cure = "is next to config, where Pulumi doesn't read it", "Indent it, below config"
    known = [Problem(key, value, why, cure) for key, value in outside.items()]
    meant = {key: outside[key] for key in outside if key.startswith((f"{NAMESPACE}:", "gcp:"))}
    return parse({**meant, **(config or {})}, stack, known)


def _refusal(stack: str, why: str, cure: str) -> SettingsError:
    return SettingsError(stack, [Problem("stack", stack, why, cure)])


# The C loader is some ten times as fast; wheels of PyYAML for a few platforms come without it.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The largest of our stack files has some hundred values, five deep.
DEEPEST, MOST = 50, 20_000


def yaml_reason(error: yaml.YAMLError) -> str:
    """Return why a text is no YAML in one line, which begins with the place."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(error, 'problem', '')}"


def load_yaml(text: str) -> Any:
    """Return the document in a text that others wrote.

    PyYAML's loader in C ends the process if lists nest a hundred thousand deep, and a few lines
    with aliases can stand for more values than any memory holds.

    Raises:
        YAMLError: it is no YAML, too deep or too large.
    """
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it nests more than {DEEPEST} levels deep")
    try:
        document = yaml.load(text, Loader=Loader)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        # An invalid date, or a value that is not of the type that its tag names.
        raise yaml.YAMLError(f"it has an invalid value ({error})") from None
    _require_bounded(document)
    return document


def _require_bounded(document: object) -> None:
    waiting, seen = [(document, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if seen > MOST:
            raise yaml.YAMLError(f"it has more than {MOST} values, counting each use of an alias")
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it nests more than {DEEPEST} levels deep, or contains itself")
        if isinstance(value, dict):
            waiting += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, (list, tuple, set)):
            waiting += [(each, depth + 1) for each in value]


def settings_from_engine() -> StackSettings:
    """Read the settings of the stack that the engine runs. Raises SettingsError."""
    import pulumi  # The command line reads settings without it.

    return parse(config_from_engine(), pulumi.get_stack())


def config_from_engine() -> dict[str, object]:
    """Return the configuration as the stack's file has it: what is secret is so as a whole."""
    import pulumi

    secret = pulumi.runtime.get_config_secret_keys_env()
    return {
        key: {"secure": ""} if key in secret else _structured(value)
        for key, value in pulumi.runtime.get_config_env().items()
    }


def _structured(value: str) -> object:
    """Return a setting as the engine got it: groups and lists are JSON, all else is plain text."""
    return json.loads(value) if value.startswith(("{", "[")) else value
