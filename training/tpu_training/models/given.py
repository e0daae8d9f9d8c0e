"""The parameters that a user gives: `--name=value` arguments and a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpu_training.errors import InputError


def split_overrides(rest: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split each `--name=value`; also return a problem for each argument of another form."""
    problems, overrides = [], []
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name.startswith("--") and equals:
            overrides.append((name.removeprefix("--"), value))
        else:
            problems.append(f"{argument}: expected --name=value")
    return overrides, problems


def read_config(path: str | None) -> dict[str, Any]:
    """Return the parameters in a YAML or JSON file. Raises InputError."""
    return {} if path is None else read_mapping(path, "--config")


def read_mapping(path: str, flag: str) -> dict[str, Any]:
    """Return the names and values in the YAML or JSON file that `flag` names. Raises InputError."""
    given = f"{flag}={path}"
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{given}: can't be read ({error})") from error
    content = _parse_json(text, given) if path.endswith(".json") else _parse_yaml(text, given)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InputError(f"{given}: expected `name: value` lines, found {content!r}")
    return content


def _parse_json(text: str, given: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{given}: is not JSON ({error})") from error


def _parse_yaml(text: str, given: str) -> object:
    try:
        import yaml
    except ImportError as error:
        raise InputError(
            f"{given}: needs PyYAML, which is not installed; use a .json file instead"
        ) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{given}: is not YAML ({error})") from error
