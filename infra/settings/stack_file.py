"""Stack files, for programs without an engine: the command line and the tests."""

from __future__ import annotations

from pathlib import Path

import yaml

from infra.settings import StackSettings
from infra.settings.bounded import load
from infra.settings.parse import NAMESPACE, parse
from infra.settings.problems import Problem, SettingsError

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
        document = load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        there = sorted(stack_name(other) for other in path.parent.glob("Pulumi.*.yaml"))
        cure = f"There are: {', '.join(there) or 'none'}"
        raise _refusal(stack, f"has no file {path.name}", cure) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _refusal(stack, f"has a file that can't be read: {reason}", "Correct it") from None
    except yaml.YAMLError as error:
        where = str(error).replace("\n", " ")
        raise _refusal(stack, f"has a file that is not valid YAML: {where}", "Correct it") from None
    document = document if isinstance(document, dict) else {}
    config = document.get("config")
    if config is not None and not isinstance(config, dict):
        problem = Problem(
            "config", config, "is not a group of settings", "Write one setting a line"
        )
        raise SettingsError(stack, [problem])
    if unnamed := [key for key in config or {} if not isinstance(key, str)]:
        cure = "Write NAME: VALUE, such as tpu-stack:zone: us-central1-b"
        raise SettingsError(
            stack, [Problem("config", key, "is no setting's name", cure) for key in unnamed]
        )
    beside = {str(key): document[key] for key in document if key not in _PULUMIS}
    why, cure = "stands beside config, where Pulumi does not read it", "Indent it, below config"
    told = [Problem(key, value, why, cure) for key, value in beside.items()]
    meant = {key: beside[key] for key in beside if key.startswith((f"{NAMESPACE}:", "gcp:"))}
    return parse({**meant, **(config or {})}, stack, told)


def _refusal(stack: str, why: str, cure: str) -> SettingsError:
    return SettingsError(stack, [Problem("stack", stack, why, cure)])
