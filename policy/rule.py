"""Rules as data, and how the engine gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    PolicyConfigSchema,
    PolicyResource,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)

from policy.resource import Resource, plain, shown

Config = Mapping[str, Any]
ResourceCheck = Callable[[Resource, Config], Iterable[str]]
StackCheck = Callable[[Sequence[Resource], Config], Iterable[tuple[Resource, str]]]

STACK_TYPE = "pulumi:pulumi:Stack"
PRODUCTION = "productionStacks"
ALLOWED = "allowed"


@dataclass(frozen=True)
class Option:
    """A setting of a rule: its JSON type, its default, and what it means."""

    type: str
    default: Any
    description: str

    def schema(self) -> dict[str, Any]:
        """Return the option as JSON schema."""
        items = {"items": {"type": "string"}} if self.type == "array" else {}
        return {
            "type": self.type,
            **items,
            "default": self.default,
            "description": self.description,
        }


def production() -> Option:
    """Return the option that names production stacks."""
    return Option("array", ["prod", "prod-*"], "Names of production stacks; * is anything.")


def allowed(what: str) -> Option:
    """Return the option that names the exceptions to a rule."""
    return Option("array", [], f"Names of {what}; * is anything.")


@dataclass(frozen=True)
class Rule:
    """One rule, which looks at one resource or at the whole stack."""

    name: str
    description: str
    options: Mapping[str, Option] = field(default_factory=dict)
    level: EnforcementLevel = EnforcementLevel.MANDATORY

    def configured(self, config: Config | None = None) -> Config:
        """Return every option's value: the configured one, else its default."""
        return {name: option.default for name, option in self.options.items()} | dict(config or {})

    def misnamed(self, config: Config) -> list[str]:
        """Return messages about options that the rule lacks; the engine lets them pass."""
        return [
            f"{self.name}.{name}: {shown(value)} in the policy configuration is no option of this "
            f"rule. {_cure(name, list(self.options))}"
            for name, value in config.items()
            if name not in self.options
        ]

    def as_policy(self) -> Policy:
        """Return the rule as the engine knows it."""
        raise NotImplementedError

    def schema(self) -> PolicyConfigSchema | None:
        """Return the schema that the engine checks the rule's configuration with."""
        properties = {name: option.schema() for name, option in self.options.items()}
        return PolicyConfigSchema(properties) if properties else None


@dataclass(frozen=True)
class ResourceRule(Rule):
    """Looks at one resource before it is made: `check` yields a message for each violation."""

    check: ResourceCheck = field(kw_only=True)

    def violations(self, resource: Resource, config: Config | None = None) -> list[str]:
        """Yield what is wrong with a resource."""
        return list(self.check(resource, self.configured(config)))

    def as_policy(self) -> Policy:
        """Return the rule as the engine knows it."""

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            resource = _resource(args)
            config = args.get_config()
            wrong = self.misnamed(config) if resource.type == STACK_TYPE else []
            for message in [*wrong, *self.violations(resource, config)]:
                report(message, None)

        return ResourceValidationPolicy(
            self.name, self.description, validate, self.level, self.schema()
        )


@dataclass(frozen=True)
class StackRule(Rule):
    """Looks at all resources together, at the end of a preview or update."""

    check: StackCheck = field(kw_only=True)

    def violations(
        self, resources: Sequence[Resource], config: Config | None = None
    ) -> list[tuple[Resource, str]]:
        """Yield what is wrong with a stack, and the resource that it is about."""
        return list(self.check(resources, self.configured(config)))

    def as_policy(self) -> Policy:
        """Return the rule as the engine knows it."""

        def validate(args: StackValidationArgs, report: ReportViolation) -> None:
            resources = [_resource(each) for each in args.resources]
            config = args.get_config()
            for message in self.misnamed(config):
                report(message, None)
            for resource, message in self.violations(resources, config):
                report(message, resource.urn)

        return StackValidationPolicy(
            self.name, self.description, validate, self.level, self.schema()
        )


def _cure(name: str, options: Sequence[str]) -> str:
    if near := get_close_matches(name, options, 1):
        return f"Did you mean {near[0]}?"
    return f"There are: {', '.join(options)}."


def _resource(of: PolicyResource | ResourceValidationArgs) -> Resource:
    return Resource(of.resource_type, of.name, of.urn, plain(of.props), of.opts.protect)
