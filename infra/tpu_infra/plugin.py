"""Serves the stack as components to Pulumi programs in any language.

A source-based plugin (pulumi.com/docs/iac/guides/building-extending/packages/source-based-plugin):
the engine starts it, asks for the schema, which is the settings' own, and has it declare what a
component is made of. Pulumi's host for components reads their arguments from Python's types, where
they would stand a second time; so this is the interface below it.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import pulumi
from pulumi.dynamic.dynamic import PROVIDER_KEY
from pulumi.errors import InputPropertiesError
from pulumi.provider.experimental import provider as protocol, server
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime import rpc, settings as runtime
from pulumi.runtime.config import CONFIG
from pulumi.runtime.proto import provider_pb2 as messages
from pulumi.runtime.proto.resource_pb2 import RegisterResourceRequest
from pulumi.runtime.stack import wait_for_rpcs

from tpu_core.words import plural
from tpu_infra import catalog, checks, credentials, names, program
from tpu_infra.checks import software
from tpu_infra.resources.provider import PROVIDERS
from tpu_infra.rest import Api
from tpu_infra.settings import StackSettings, base, parse
from tpu_infra.settings.base import Problem, SettingsError

PACKAGE: Final = "tpu-stack"
VERSION: Final = "0.1.0"
_MODULE: Final = f"{PACKAGE}:index:"
# What may come from another stack or resource. The checks need all else before anything is made.
_INPUTS: Final = ("project", "zone", "network", "bucket", "labels")
_INPUT_TYPES: Final = ("NetworkSettings", "BucketSettings", "LifecycleRule", "EncryptionSettings")
# What the plugin's own resources need of the program's configuration, which it lacks on destroy.
# It is one of their inputs, so it can hold no secret.
_CREDENTIALS: Final = "credentials"
_SECRET: Final = {
    "gcp:accessToken": "GOOGLE_OAUTH_ACCESS_TOKEN",
    "gcp:credentials": "GOOGLE_CREDENTIALS",
}
_PLAIN: Final = {*credentials.SETTINGS} - {*_SECRET}
# As the engine takes it: PropertyValue.marshal refuses the SDK's own class for an unknown value.
_UNKNOWN: Final = PropertyValue(rpc.UNKNOWN)
_SIGNATURE: Final = rpc._special_sig_key
_OUTPUT: Final = rpc._special_output_value_sig

Json = dict[str, Any]


class Kind:
    """A component: what it is, what it settles, and which settings are then no arguments."""

    run, outputs = checks.CHECKS, tuple(program.OUTPUTS)

    def __init__(self, what: str, settled: Json, *without: str) -> None:
        self.what, self.settled = what, settled
        self._without = without

    def takes(self, setting: str) -> bool:
        """Return whether a setting is an argument."""
        return setting not in self._without


class BucketAlone(Kind):
    """A bucket, which takes few of the settings."""

    run, outputs = checks.OF_BUCKET, program.OF_BUCKET

    def takes(self, setting: str) -> bool:
        """Return whether a setting is an argument."""
        return setting in ("project", "zone", "bucket", "labels", "grantRoles", "enableApis")


KINDS: Final[Mapping[str, Kind]] = {
    "TpuTraining": Kind("A bucket, a VM, a TPU and the training that runs on them.", {}, "jobs"),
    "TpuQueue": Kind(
        "A bucket, a VM and a TPU that run jobs from a queue, sent by `tpustack job submit`. "
        "Anyone who can write to the bucket can run programs on the machine.",
        {"jobs": {"enabled": True}},
    ),
    "TpuMachine": Kind(
        "A bucket, and a machine of Compute Engine with a TPU (v5p, v6e or TPU7x), which trains.",
        {"architecture": "compute", "training": {"runOn": "tpu"}},
        *("jobs", "architecture", "vm", "recovery"),
    ),
    "TpuBucket": BucketAlone(
        "A bucket in the region of a zone with TPUs, for other components to use: with uniform "
        "access, without public access, and kept on destroy unless forceDestroy is set.",
        {},
    ),
}


# --- The schema


def schema() -> Json:
    """Return the package's schema: an argument for each setting, with its description."""
    whole = StackSettings.model_json_schema()
    return {
        "name": PACKAGE,
        "version": VERSION,
        "description": "TPUs with the machines and the training that use them",
        "types": {
            f"{_MODULE}{name}": _type(definition, plain=name not in _INPUT_TYPES)
            for name, definition in whole["$defs"].items()
        },
        "resources": {
            f"{_MODULE}{name}": {
                "isComponent": True,
                "description": kind.what,
                "inputProperties": {
                    key: _property(each, plain=key not in _INPUTS)
                    for key, each in whole["properties"].items()
                    if kind.takes(key)
                },
                # `gcp:project` of the configuration is the project's default.
                "requiredInputs": ["zone"],
                "properties": {
                    _camel(key): _output(key, program.OUTPUTS[key]) for key in kind.outputs
                },
                "required": [*map(_camel, kind.outputs)],
            }
            for name, kind in KINDS.items()
        },
    }


def _type(definition: Json, *, plain: bool) -> Json:
    about = {"type": definition["type"], "description": base.one_line(definition["description"])}
    if "enum" in definition:
        values = definition["enum"]
        named = [{"name": each.title().replace("-", ""), "value": each} for each in values]
        return {**about, "enum": named}
    properties = definition["properties"]
    return {
        **about,
        "properties": {key: _property(each, plain=plain) for key, each in properties.items()},
        "required": definition.get("required", []),
    }


def _property(node: Json, *, plain: bool) -> Json:
    """Return a setting as an argument.

    Its default is part of the description: as a part of the schema, it would be set in each
    program, and some checks tell what is set from what is not.
    """
    said = base.one_line(node.get("description"))
    if node.get("default") not in (None, [], {}) and not isinstance(node["default"], dict):
        said += f" Default: {json.dumps(node['default'])}."
    return {**_shape(node), "description": said, **({"plain": True} if plain else {})}


def _shape(node: Json) -> Json:
    if "anyOf" in node:
        node = next(each for each in node["anyOf"] if each.get("type") != "null")
    if "$ref" in node:
        return {"$ref": f"#/types/{_MODULE}{node['$ref'].rpartition('/')[2]}"}
    if node["type"] == "array":
        return {"type": "array", "items": _shape(node["items"])}
    if node["type"] == "object":
        return {"type": "object", "additionalProperties": _shape(node["additionalProperties"])}
    return {"type": node["type"]}


def _output(name: str, text: str) -> Json:
    several = name in ("tpu_endpoints", "tpu_names", "tpu_zones")
    shape: Json = {"type": "array", "items": {"type": "string"}} if several else {"type": "string"}
    return {**shape, "description": f"{text}."}


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(each.title() for each in rest)


# --- From arguments to a stack that has passed the checks


def checked(kind: str, name: str, arguments: Json, root: Path) -> checks.Checked:
    """Return the stack, or the bucket, that a component stands for.

    Args:
        kind: one of `KINDS`.
        name: the component's; all names that Google sees contain it.
        arguments: what the program gave, in camelCase.
        root: the folder whose dist/ has the training wheel.

    Raises:
        SettingsError: with every problem.
    """
    stack, run = pulumi.get_stack(), KINDS[kind].run
    values = _merged(KINDS[kind].settled, arguments)
    project = values.pop("project", None) or pulumi.Config("gcp").get("project")
    config = {parse.PROJECT_KEY: project} if project else {}
    config |= {f"{parse.NAMESPACE}:{key}": value for key, value in values.items()}

    def context(settings: StackSettings) -> checks.Context:
        # What the program names is relative to its own folder, where the engine starts a plugin.
        own = names.names_of(settings, f"{stack}-{name}")
        return checks.Context(stack, Path.cwd(), catalog.Catalog(), own)

    try:
        settings = parse.parse(config, stack)
    except SettingsError as error:
        if isinstance(error.rest, StackSettings):
            error.rest = _with_wheel(error.rest, root)
        raise checks.with_checks(error, context, run) from None
    if run is checks.OF_BUCKET:
        if problems := checks.find_problems(settings, context(settings), run):
            raise SettingsError(stack, problems)
        return checks.Checked(settings, context(settings))
    settings = _with_wheel(settings, root)
    if unfit := [*_unfit(kind, settings)]:
        raise SettingsError(stack, [*unfit, *checks.find_problems(settings, context(settings))])
    return checks.ensure_valid(settings, context(settings))


def _with_wheel(settings: StackSettings, root: Path) -> StackSettings:
    """Return the settings with the wheel in `root`, if they name none."""
    if settings.training.wheel is not None:
        return settings
    wheel = software.find_wheel(settings, root)
    training = settings.training.model_copy(update={"wheel": str(wheel) if wheel else None})
    return settings.model_copy(update={"training": training})


def _unfit(kind: str, settings: StackSettings) -> Iterator[Problem]:
    tpu, jobs = settings.tpu, settings.jobs
    if kind == "TpuQueue" and not jobs.enabled:
        yield Problem("jobs.enabled", False, "leaves no queue", "Remove it, or use TpuTraining")
    queued = tpu.queue is not None and not (settings.is_compute or settings.is_node)
    if queued or jobs.vertex is not None:
        whose = "a queued TPU" if queued else "jobs.vertex"
        for setting in sorted(CONFIG.get().keys() & _SECRET.keys()):
            yield Problem(
                setting,
                "[secret]",
                f"doesn't reach the plugin when it deletes {whose} of a component",
                f"Set {_SECRET[setting]} in the environment instead",
            )


def _merged(below: Json, above: Json) -> Json:
    """Return both, group by group; what is above wins."""
    both = {
        key: _merged(below[key], above[key])
        for key in below.keys() & above.keys()
        if (isinstance(below[key], dict) and isinstance(above[key], dict))
    }
    return {**below, **above, **both}


def told(value: PropertyValue) -> Any:
    """Return an argument as a stack file has it. Raises UnknownError if it is not known yet."""
    if value.is_secret:
        return {"secure": ""}
    inner = value.value
    if inner == rpc.UNKNOWN:
        raise UnknownError
    if isinstance(inner, Mapping):
        items = {key: told(each) for key, each in inner.items()}
        return {key: each for key, each in items.items() if each is not None}
    if isinstance(inner, tuple):
        return [told(each) for each in inner]
    # All numbers come as floats.
    return int(inner) if isinstance(inner, float) and inner.is_integer() else inner


class UnknownError(Exception):
    """An argument is of a resource that this preview has not created."""


# --- The plugin


def completed(value: Any) -> None:
    """Say of each output in an argument what the engine leaves out if there is nothing to say.

    `value` is a protobuf Value. The SDK (3.259) ends with an error without what is left out
    (PropertyValue.unmarshal).
    """
    for each in (*value.list_value.values, *value.struct_value.fields.values()):
        completed(each)
    fields = value.struct_value.fields
    if fields and _SIGNATURE in fields and fields[_SIGNATURE].string_value == _OUTPUT:
        whole = {"value": rpc.UNKNOWN, "dependencies": [], "secret": False}
        value.struct_value.update({key: whole[key] for key in whole.keys() - {*fields}})


class Plugin(protocol.Provider):
    """Answers the engine; `root` is the folder whose dist/ has the training wheel."""

    def __init__(self, root: Path) -> None:
        self._root = root

    async def get_schema(self, request: protocol.GetSchemaRequest) -> protocol.GetSchemaResponse:
        """Return the schema, from which the engine makes an SDK in the program's language."""
        return protocol.GetSchemaResponse(schema=json.dumps(schema()))

    async def construct(self, request: protocol.ConstructRequest) -> protocol.ConstructResponse:
        """Check a component's arguments and declare what it is made of.

        Raises:
            InputPropertiesError: with every problem, before anything is declared.
        """
        kind, name = request.resource_type.rpartition(":")[2], request.name
        # In a plugin's variable the engine has the plugin's own configuration alone, and
        # tpu_infra.credentials needs the provider's.
        os.environ["PULUMI_CONFIG"] = json.dumps(CONFIG.get())
        unknown, arguments = [], {}
        for key, value in request.inputs.items():
            try:
                arguments[key] = told(value)
            except UnknownError:
                unknown.append(key)
        given = {key: value for key, value in arguments.items() if value is not None}
        stack: checks.Checked | None = None
        try:
            # An update knows all: the engine creates what a component's arguments come from first.
            if not unknown:
                stack = checked(kind, name, given, self._root)
        except SettingsError as error:
            # Without a list of errors the SDK fails to say anything.
            raise InputPropertiesError(_refusal(kind, name, error), []) from None
        # All that it is made of waits for it: what an argument comes from is deleted last.
        comes_from = {urn for each in request.inputs.values() for urn in each.all_dependencies()}
        needs = pulumi.ResourceOptions(
            depends_on=[pulumi.resource.DependencyResource(urn) for urn in sorted(comes_from)]
        )
        component = pulumi.ComponentResource(
            request.resource_type, name, None, pulumi.ResourceOptions.merge(request.options, needs)
        )
        urn = await component.urn.future()
        assert urn is not None
        if stack is None:
            pulumi.log.warn(
                f"this preview doesn't check {name} or show its resources, because it doesn't know "
                f"{' and '.join(sorted(unknown))} yet: an update creates what they come from",
                resource=component,
            )
            unmade = {_camel(each): _UNKNOWN for each in KINDS[kind].outputs}
            return protocol.ConstructResponse(urn, unmade, {})
        _name_after(component)
        values = {_camel(key): value for key, value in program.component(stack).items()}
        component.register_outputs(values)
        state = {key: await _state(pulumi.Output.from_input(each)) for key, each in values.items()}
        # A program waits for what it says of a preview, a plugin for resources alone.
        await wait_for_rpcs()
        return protocol.ConstructResponse(urn, state, {})


def _refusal(kind: str, name: str, error: SettingsError) -> str:
    count = plural(len(error.problems), "problem")
    lines = [f"{count} in the arguments of {kind} {name!r}:"]
    lines += [f"  - {problem}" for problem in error.problems]
    return "\n".join([*lines, "None of its resources was created or changed."])


def _name_after(component: pulumi.ComponentResource) -> None:
    """Put what is declared from here on below a component, and its name before theirs.

    A program of its own calls its network `network`; the engine would take those of two components
    for one. What declares them knows neither this nor the component.
    """
    runtime.set_root_resource(component)
    monitor: Any = runtime.get_monitor()
    prefix = f"{component.pulumi_resource_name}-"
    # Here, since the SDK registers resources on threads, which have no configuration.
    given = {key: value for key, value in CONFIG.get().items() if key in _PLAIN}

    def named(register: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def registered(request: Any) -> Any:
            request.name = prefix + request.name
            if isinstance(request, RegisterResourceRequest):
                _make_own(request, given)
                for _, hooks in request.hooks.ListFields():
                    hooks[:] = [prefix + hook for hook in hooks]
            return register(request)

        return registered

    # This call's own: each one that the engine makes has another connection to it.
    for method in ("RegisterResource", "RegisterResourceHook", "RegisterErrorHook"):
        setattr(monitor, method, named(getattr(monitor, method)))


async def _state(output: pulumi.Output[Any]) -> PropertyValue:
    """Return an output as the engine takes it, with what it depends on."""
    urns = [await each.urn.future() for each in await output.resources()]
    value = _value(await output.future()) if await output.is_known() else _UNKNOWN
    return value.with_dependencies([urn for urn in urns if urn])


def _value(value: Any) -> PropertyValue:
    if isinstance(value, (list, tuple)):
        return PropertyValue([_value(each) for each in value])
    return PropertyValue(value)


# --- The resources that Google's provider lacks
#
# In a project of its own, a stack declares them as Pulumi's dynamic resources, which the engine
# runs with a plugin of that project (resources/provider.py). A user's program has none, but the
# engine runs the components' own plugin for it, also to destroy. So here they are resources of
# this package, and the state holds no pickle.

_DYNAMIC: Final = "pulumi-python:dynamic/"


def _make_own(request: RegisterResourceRequest, given: Json) -> None:
    """Turn what is declared as a dynamic resource into one of this package.

    `given` has the settings of the program that decide on credentials.
    """
    if not request.type.startswith(_DYNAMIC):
        return
    request.type = f"{PACKAGE}:{request.type.removeprefix(_DYNAMIC)}"
    request.version = VERSION
    del request.object[PROVIDER_KEY]
    del request.propertyDependencies[PROVIDER_KEY]
    request.object.update({_CREDENTIALS: given})


# Not the loop's own threads: on each of those the SDK waits for a resource that a component
# declares, and the engine asks this process to make some of them.
_THREADS: Final = ThreadPoolExecutor(max_workers=256)


class _Servicer(server.ProviderServicer):
    """Answers what the engine asks of components, as the SDK does, and of their resources."""

    async def Construct(self, request: Any, context: Any) -> Any:
        for each in request.inputs.fields.values():
            completed(each)
        return await super().Construct(request, context)

    async def Check(self, request: Any, context: Any) -> Any:
        return messages.CheckResponse(inputs=request.news)

    async def Diff(self, request: Any, context: Any) -> Any:
        olds, news = _plain(request.olds), _plain(request.news)
        found = await _ask(request.urn, context, news, "diff", request.id, olds, news)
        some = messages.DiffResponse.DIFF_SOME
        return messages.DiffResponse(
            changes=some if found.changes else messages.DiffResponse.DIFF_NONE,
            replaces=found.replaces,
            deleteBeforeReplace=found.delete_before_replace,
        )

    async def Create(self, request: Any, context: Any) -> Any:
        if request.preview:
            return messages.CreateResponse(properties=request.properties)
        props = _plain(request.properties)
        found = await _ask(request.urn, context, props, "create", props)
        return messages.CreateResponse(id=found.id, properties=await _sent(found.outs))

    async def Read(self, request: Any, context: Any) -> Any:
        props = _plain(request.properties)
        now = _plain(request.inputs)
        found = await _ask(request.urn, context, now, "read", request.id, props)
        properties = await _sent(found.outs)
        return messages.ReadResponse(id=found.id, properties=properties, inputs=request.inputs)

    async def Update(self, request: Any, context: Any) -> Any:
        if request.preview:
            return messages.UpdateResponse(properties=request.news)
        olds, news = _plain(request.olds), _plain(request.news)
        found = await _ask(request.urn, context, news, "update", request.id, olds, news)
        return messages.UpdateResponse(properties=await _sent(found.outs))

    async def Delete(self, request: Any, context: Any) -> Any:
        # Its inputs have the credentials of today; what it returned, those that created it. Older
        # engines don't send the inputs (ConfigureRequest.sends_old_inputs_to_delete).
        now, props = _plain(request.old_inputs), _plain(request.properties)
        await _ask(request.urn, context, now or props, "delete", request.id, props)
        return server.empty_pb2.Empty()  # type: ignore[attr-defined]


def _plain(properties: Any) -> Json:
    found: Json = rpc.deserialize_properties(properties, keep_unknowns=True)
    return found


async def _sent(properties: Json) -> Any:
    return await rpc.serialize_properties(properties, {})


async def _ask(urn: str, context: Any, inputs: Json, what: str, *arguments: Any) -> Any:
    """Have a resource's provider do something, in a thread, since most of it is waiting."""
    provider = PROVIDERS[urn.split("::")[2].rpartition("$")[2].removeprefix(f"{PACKAGE}:")]()

    def asked() -> Any:
        Api.configured_here.set(inputs.get(_CREDENTIALS) or {})
        return getattr(provider, what)(*arguments)

    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, asked)
    except (RuntimeError, OSError) as error:
        # The message alone; of any other error, people need the traceback.
        await context.abort(grpc.StatusCode.UNKNOWN, str(error))


def serve(root: Path) -> None:
    """Serve the components until the engine ends this process.

    Args:
        root: the folder whose dist/ has the training wheel.
    """
    # `main` takes no servicer of one's own.
    server.ProviderServicer = _Servicer  # type: ignore[misc]
    server.main(sys.argv[1:], VERSION, Plugin(root))
