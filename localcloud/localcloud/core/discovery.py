"""Google's discovery documents: which methods exist, at which paths, with which fields.

The documents are those that google-api-python-client ships. They are the emulator's router and
its schema: a call that they don't know is refused, as is a body with a field they don't know.
"""

import importlib.util
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from localcloud import data

Json = dict[str, Any]
# What descriptions say of fields that a caller may send and Google does not look at.
_OUTPUT = re.compile(r"^\W?output[ -]only|^identifier\.|ignored on input", re.IGNORECASE)
_VARIABLE = re.compile(r"\{(\+?)([^}]+)\}")


@dataclass(frozen=True)
class Method:
    """A method of an API version, as its discovery document has it."""

    api: str
    version: str
    id: str
    verb: str
    parameters: frozenset[str]
    required: frozenset[str]
    request: str | None
    response: str | None
    scopes: frozenset[str]

    @property
    def name(self) -> str:
        """The id without the API's name, such as `projects.locations.nodes.create`."""
        return self.id.partition(".")[2]


@dataclass(frozen=True)
class Match:
    """A method found for a path; `upload` says that the path is the one for media."""

    method: Method
    params: dict[str, str]
    upload: bool


@dataclass(frozen=True)
class _Template:
    """A path: `flat` has a variable for each part, `named` one for the whole name (`{+name}`).

    Handlers get the variables of both. `literal` counts the characters that are no variable.
    """

    method: Method
    flat: re.Pattern[str]
    named: re.Pattern[str]
    literal: int
    upload: bool


class Document:
    """One version of one API.

    What Google serves and does not document (fields, parameters) is added from
    data/undocumented.yaml, each with its source.
    """

    def __init__(self, api: str, version: str) -> None:
        self.api = api
        self.version = version
        with source(api, version).open(encoding="utf-8") as file:
            raw: Json = json.load(file, object_hook=_without_prose)
        self.schemas: Json = raw.get("schemas", {})
        undocumented: Json = data.load("undocumented").get(api, {})
        for schema, fields in undocumented.get("schemas", {}).items():
            if schema in self.schemas:
                properties = self.schemas[schema].setdefault("properties", {})
                properties.update({field: {"type": "any"} for field in fields})
        self.host: str = urlsplit(raw["rootUrl"]).hostname or ""
        self._common = frozenset([*raw.get("parameters", {}), *undocumented.get("parameters", [])])
        # By verb and number of slashes, which is 0 for paths with a variable that may hold slashes.
        self._templates: dict[tuple[str, int], list[_Template]] = {}
        self.methods: dict[str, Method] = {}
        self._collect(raw, raw["servicePath"])

    def match(self, verb: str, path: str) -> Match | None:
        """Return the method that `verb` calls at `path`, which is still percent-encoded."""
        candidates = self._templates.get((verb, path.count("/")), [])
        candidates = candidates + self._templates.get((verb, 0), [])
        fitting = [template for template in candidates if template.flat.fullmatch(path)]
        if not fitting:
            return None
        # The template that says most of the path itself: `…/nodes:batch` before `…/{nodesId}`.
        template = max(fitting, key=lambda template: template.literal)
        params: dict[str, str] = {}
        for pattern in (template.flat, template.named):
            found = pattern.fullmatch(path)
            params |= found.groupdict() if found else {}
        decoded = {key.replace("__", "."): unquote(value) for key, value in params.items()}
        return Match(template.method, decoded, template.upload)

    def _collect(self, node: Json, service_path: str) -> None:
        for raw in node.get("methods", {}).values():
            self._add(raw, service_path)
        for child in node.get("resources", {}).values():
            self._collect(child, service_path)

    def _add(self, raw: Json, service_path: str) -> None:
        own = raw.get("parameters", {})
        queried = {name: spec for name, spec in own.items() if spec.get("location") == "query"}
        method = Method(
            api=self.api,
            version=self.version,
            id=raw["id"],
            verb=raw["httpMethod"],
            parameters=frozenset(own) | self._common,
            required=frozenset(name for name, spec in queried.items() if spec.get("required")),
            request=raw.get("request", {}).get("$ref"),
            response=raw.get("response", {}).get("$ref"),
            scopes=frozenset(raw.get("scopes", [])),
        )
        self.methods[method.name] = method
        path = f"/{service_path}{raw['path']}"
        flat = f"/{service_path}{raw.get('flatPath') or raw['path']}"
        uploads = [p["path"] for p in raw.get("mediaUpload", {}).get("protocols", {}).values()]
        for named, flat_path, upload in [(path, flat, False), *((p, p, True) for p in uploads)]:
            literal = len(_VARIABLE.sub("", flat_path))
            template = _Template(method, _compile(flat_path), _compile(named), literal, upload)
            self._file(template, flat_path)
        # Storage's clients read bytes at /download/, which is not among the paths.
        if raw.get("supportsMediaDownload") and raw.get("useMediaDownloadService"):
            download = "/download" + path
            pattern = _compile(download)
            self._file(_Template(method, pattern, pattern, len(download), False), download)

    def _file(self, template: _Template, path: str) -> None:
        slashes = 0 if "{+" in path else path.count("/")
        self._templates.setdefault((template.method.verb, slashes), []).append(template)


@cache
def document(api: str, version: str) -> Document:
    """Return the discovery document, read at first use: compute's alone takes half a second."""
    return Document(api, version)


def _compile(template: str) -> re.Pattern[str]:
    """Return a path template of RFC 6570 as a pattern; `{+name}` may hold slashes."""
    literal, *pieces = _VARIABLE.split(template)
    parts = [re.escape(literal)]
    for plus, name, literal in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        reach = ".+" if plus else "[^/]+"
        parts.append(f"(?P<{name.replace('.', '__')}>{reach}){re.escape(literal)}")
    return re.compile("".join(parts))


def source(api: str, version: str) -> Path:
    """Return the file of a discovery document; it may not exist."""
    spec = importlib.util.find_spec("googleapiclient")
    if spec is None or spec.origin is None:
        raise RuntimeError("google-api-python-client is not installed: it ships the API schemas")
    folder = Path(spec.origin).parent / "discovery_cache" / "documents"
    return folder / f"{api}.{version}.json"


def _without_prose(node: Json) -> Json:
    # Four fifths of a document are descriptions, which nothing here reads. Properties may have the
    # same names: their values say what they are.
    for key in ("description", "enumDescriptions", "enumDeprecated", "annotations"):
        value = node.get(key)
        if key == "description" and isinstance(value, str) and _OUTPUT.search(value):
            node["readOnly"] = True
        if not isinstance(value, dict) or not value.keys() & {"type", "$ref"}:
            node.pop(key, None)
    # Only those of numbers are checked: most fields are nothing but texts then.
    if "int" not in (format_ := node.get("format", "int")) and isinstance(format_, str):
        del node["format"]
    return node
