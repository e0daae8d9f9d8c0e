"""Every setting with its type, default, range and description, read from the model itself."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from infra.settings import StackSettings
from infra.settings.base import one_line
from infra.settings.parse import PROJECT_KEY

# The model calls it `project`; stack files set the provider's own key.
PROJECT: Final = "project"


@dataclass(frozen=True)
class Setting:
    """One setting. A group that may be missing as a whole is a setting too."""

    path: str
    """As in a stack file below `tpu-stack:`, e.g. `tpu.acceleratorType`."""
    type: str
    """string, integer, number, boolean, object, list of string, …"""
    required: bool
    default: Any
    """None: nothing is set."""
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None
    description: str

    @property
    def group(self) -> str:
        """The first part of the path, or nothing."""
        return self.path.partition(".")[0] if "." in self.path else ""

    def as_json(self) -> dict[str, Any]:
        """Return the setting for programs."""
        return asdict(self)


def all_settings() -> list[Setting]:
    """Return every setting in the order of the model."""
    schema = StackSettings.model_json_schema()
    return [*_settings(schema, schema["$defs"], "")]


def groups() -> dict[str, str]:
    """Return the groups of settings and what each is about."""
    schema = StackSettings.model_json_schema()
    found = {name: resolved(entry, schema["$defs"]) for name, entry in schema["properties"].items()}
    return {
        name: schema["$defs"][entry["$ref"].rpartition("/")[2]]["description"]
        for name, entry in found.items()
        if "properties" in entry
    }


def _settings(
    section: Mapping[str, Any], definitions: Mapping[str, Any], path: str
) -> Iterator[Setting]:
    for name, entry in section["properties"].items():
        whole = resolved(entry, definitions)
        full = f"{path}{name}"
        grouped = "properties" in whole
        optional = any(way.get("type") == "null" for way in entry.get("anyOf", ()))
        if not grouped or optional:
            yield Setting(
                PROJECT_KEY if full == PROJECT else full,
                _kind(whole),
                name in section.get("required", ()),
                whole.get("default"),
                tuple(whole.get("enum", ())),
                whole.get("minimum"),
                whole.get("maximum"),
                one_line(entry.get("description")),
            )
        if grouped:
            yield from _settings(whole, definitions, f"{full}.")
        if reference := whole.get("items", {}).get("$ref"):
            yield from _settings(
                definitions[reference.rpartition("/")[2]], definitions, f"{full}[]."
            )


def resolved(entry: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with what it refers to, and without the `null` of optional settings."""
    merged = dict(entry)
    for way in (entry, *entry.get("anyOf", ())):
        if way.get("type") == "null":
            continue
        if reference := way.get("$ref"):
            merged = {**definitions[reference.rpartition("/")[2]], **merged}
        merged = {**way, **merged}
    return merged


def _kind(entry: Mapping[str, Any]) -> str:
    if entry["type"] == "array":
        return f"list of {entry['items'].get('type', 'object')}"
    if entry.get("format") == "date-time":
        return "date and time"
    return str(entry["type"])
