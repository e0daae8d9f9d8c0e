"""Checks of the project, of names, of the provider, the budget and the messages."""

import re
from collections.abc import Iterator, Sequence

from infra.catalog.entries import numbers
from infra.checks.compute import host_of
from infra.checks.context import Context
from infra.deployer import permissions_of_role
from infra.grants import commands
from infra.settings import StackSettings
from infra.settings.base import UNSET, Problem, misplaced
from infra.settings.parse import PROJECT_KEY

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
# What the stack files of this repository say (stacks/).
_EXAMPLES = ("my-project-dev", "my-project-staging", "my-project-prod")
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
# A service account's id has 6 to 30 characters: the shortest limit of all names.
_SHORTEST_ID, _LONGEST_ID = 6, 30
LONGEST_PREFIX = _LONGEST_ID - len("-sa")
_SHORTEST_PREFIX = _SHORTEST_ID - len("-sa")


def is_project_id(text: str) -> bool:
    """Return whether a text has the form of a project's id."""
    return _PROJECT.fullmatch(text) is not None


def check_project(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the project's id has the form of Google's ids and is not an example's.

    An example's id may be a real project by now, of a person who knows nothing of this stack.
    """
    if settings.project in _EXAMPLES:
        yield Problem(
            PROJECT_KEY,
            settings.project,
            "is the placeholder of the example",
            f"Run `pulumi config set {PROJECT_KEY} YOUR-PROJECT --stack {context.stack}`, or "
            "create a stack with `tpustack init NAME`",
        )
    if not is_project_id(settings.project):
        why = "is not a project ID (6 to 30 lower-case letters, digits and hyphens, a letter first)"
        cure = "Use the project ID, not its name or number: `gcloud projects list` shows it"
        yield Problem(PROJECT_KEY, settings.project, why, cure)


def check_prefix(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the prefix leaves room for the longest of all names (RFC 1035)."""
    if settings.owner and settings.name_prefix:
        why = f"has no effect, because namePrefix is {settings.name_prefix!r}"
        yield Problem("owner", settings.owner, why, "Remove one of the two")
    prefix = context.names.prefix
    value = settings.name_prefix or UNSET
    why = "" if settings.name_prefix else f"and would be {prefix!r}, which "
    if not _NAME.fullmatch(prefix):
        why += "is not a valid resource name (lower-case letters, digits and hyphens, a letter "
        why += "first, no hyphen last)"
        yield Problem("namePrefix", value, why, "Set one like tpu-stack-dev")
    elif not _SHORTEST_PREFIX <= len(prefix) <= LONGEST_PREFIX:
        why += f"has {len(prefix)} characters, but a service account's id, which begins with it, "
        why += f"has {_SHORTEST_ID} to {_LONGEST_ID}"
        cure = f"Set one of {_SHORTEST_PREFIX} to {LONGEST_PREFIX} characters"
        yield Problem("namePrefix", value, why, cure)


def check_bucket_name(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the bucket's name follows Google's rules, which are those of host names, too.

    https://docs.cloud.google.com/storage/docs/buckets#naming
    """
    name = context.names.bucket
    value = settings.bucket.name or UNSET
    derived = "" if settings.bucket.name else f"and would be {name!r}, which "
    if not _BUCKET.fullmatch(name):
        why = (
            "is not a bucket name (3 to 63 lower-case letters, digits, hyphens, dots and "
            "underscores)"
        )
    elif settings.bucket.create and "." in name:
        why = "has a dot: only the owner of a domain can create a bucket with its name"
    elif name.startswith("goog") or "google" in name:
        why = 'starts with "goog" or contains "google", which Google reserves'
    else:
        return
    if not settings.bucket.name and any(check_project(settings, context)):
        return  # The name is wrong because the project is.
    yield Problem("bucket.name", value, derived + why, "Set one like my-project-tpu-data")


# --- Accounts that are there already, and roles that others grant


def check_accounts(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that jobs have an account of their own, and that an existing one of theirs is used."""
    jobs, own = settings.jobs, context.names
    if not jobs.apart:
        why = "is for jobs with an account of their own, which needs jobs.enabled without "
        why += "jobs.asRoot"
        yield from misplaced({"jobs.serviceAccount": jobs.service_account}, why, "Remove it")
    named = {
        "jobs.serviceAccount": jobs.apart and own.jobs_email == own.email,
        "jobs.vertex.serviceAccount": jobs.vertex is not None and own.vertex_email == own.email,
    }
    for setting in (name for name, same in named.items() if same):
        why = "is the account of the machines, so jobs could do all that they can"
        yield Problem(setting, own.email, why, "Use another account, or leave it out")
    if jobs.apart and jobs.vertex is not None and own.vertex_email == own.jobs_email:
        why = "is the account of the queue's jobs, which may not write the queue"
        cure = "Use another account, or leave it out"
        yield Problem("jobs.vertex.serviceAccount", own.vertex_email, why, cure)


def check_grants(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse what takes a grant that no administrator can give before the update."""
    if settings.grant_roles:
        return
    limits, encryption = settings.limits, settings.bucket.encryption
    if settings.keeps_limits and limits.role is None:
        *most, last = permissions_of_role(creates=settings.recovery.enabled)
        cure = f"Set the ID of a custom role with {', '.join(most)} and {last}"
        why = "is required with grantRoles: false, because the stack creates no role either"
        yield Problem("limits.role", UNSET, why, cure)
    if encryption is not None and encryption.key is None:
        why = "is required with grantRoles: false, because Cloud Storage must be able to use the "
        why += "key before the bucket is created"
        yield Problem("bucket.encryption.key", UNSET, why, "Set the name of an existing key")
    topics = {
        "messages.pubsubTopic": settings.messages.pubsub_topic,
        "budget.pubsubTopic": settings.budget and settings.budget.pubsub_topic,
    }
    why = "takes a role on the topic, but grantRoles is false"
    yield from misplaced(topics, why, "Use e-mail addresses or messages.channels")
    if settings.is_node:
        why = "is for architecture vm and compute: Google chooses a TPU Node's account when it "
        why += "creates the node"
        yield Problem("grantRoles", False, why, "Use another architecture, or remove it")


def warn_about_grants(settings: StackSettings, context: Context) -> Iterator[str]:
    """List the commands by which an administrator grants what the stack doesn't."""
    if wanted := commands(settings, context.names):
        lines = "\n".join(f"    {command}" for command in wanted)
        yield (
            "grantRoles is false, so the stack grants no roles. Its machines work once an "
            f"administrator has run these commands:\n{lines}"
        )


# --- The generation of Google's provider: 8 to 10 work, 8 alone has TPU nodes

# https://github.com/pulumi/pulumi-gcp/releases/tag/v9.0.0 takes `gcp.tpu.Node` out.
_LAST_WITH_NODES = 8
# `target_size_policies`: changelog of Google's provider 7.28, which pulumi-gcp 9.20 has.
_FIRST_WITH_BULK = (9, 20)


def check_provider(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the provider has what the stack declares.

    Otherwise the program would end in the middle of its declarations, with an AttributeError.
    """
    has = f"and the project has pulumi-gcp {context.provider}"
    if settings.is_node and numbers(context.provider)[0] > _LAST_WITH_NODES:
        why = f"needs TPU Nodes, which pulumi-gcp {_LAST_WITH_NODES} is the last to have, {has}"
        yield Problem("architecture", settings.architecture.value, why, _cure("vm", 8))
    host = host_of(settings, context)
    slices = host.slices if host else ()
    if host and settings.tpu.topology in slices and numbers(context.provider) < _FIRST_WITH_BULK:
        first = ".".join(map(str, _FIRST_WITH_BULK))
        why = f"needs a managed instance group in bulk mode, which pulumi-gcp {first} is the first "
        why += f"to have, {has}"
        yield Problem("tpu.topology", settings.tpu.topology, why, _cure(host.tpu.topology, 10))


def _cure(other: str, generation: int) -> str:
    return f"Use {other}, or install the one it needs: `tpustack provider {generation}`"


# --- What budgets and messages have in common: e-mail addresses, and names of topics

_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_TOPIC = re.compile(r"(projects/[^/]+/topics/)?(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)


def email_problems(setting: str, addresses: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with addresses."""
    for address in addresses:
        if not _EMAIL.fullmatch(address):
            why = "is not an e-mail address"
            yield Problem(setting, address, why, "Use one like me@example.com")
    if len(set(addresses)) < len(addresses):
        yield Problem(setting, list(addresses), "has one twice", "Name each of them once")


# --- Budget

_ACCOUNT = re.compile(r"[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}")
# https://cloud.google.com/billing/docs/how-to/budgets-notification-recipients
_MOST_EMAILS = 5


def check_budget(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that account, addresses and topic can exist at Google.

    Whether they do exist, and whether the account is the project's, only Google can say.
    """
    budget = settings.budget
    if budget is None:
        return
    forms = (
        ("billingAccount", budget.billing_account, _ACCOUNT, "billing account", _ACCOUNTS_CURE),
        ("pubsubTopic", budget.pubsub_topic, _TOPIC, "topic name", _TOPIC_CURE),
    )
    for name, value, form, what, cure in forms:
        if value is not None and not form.fullmatch(value):
            yield Problem(f"budget.{name}", value, f"is not a {what}", cure)
    yield from email_problems("budget.emails", budget.emails)
    if len(budget.emails) > _MOST_EMAILS:
        why = f"are too many: a budget notifies at most {_MOST_EMAILS} addresses"
        yield Problem("budget.emails", list(budget.emails), why, "Use the address of a group")
    percents = budget.thresholds
    if len(set(percents)) < len(percents):
        why, cure = "has one twice", "Name each of them once"
        yield Problem("budget.thresholds", list(percents), why, cure)
    if not percents:
        why, cure = "never sends a notification", "Name at least one, such as 100"
        yield Problem("budget.thresholds", [], why, cure)


_ACCOUNTS_CURE = "Use one like 01ABCD-234567-89EF01: `gcloud billing accounts list` shows them"
_TOPIC_CURE = "Use one like tpu-budget, or projects/PROJECT/topics/NAME of an existing one"


# --- Messages

# Notification channels of one policy: https://docs.cloud.google.com/monitoring/quotas
_MOST_CHANNELS = 16
_CHANNEL = re.compile(r"projects/[^/]+/notificationChannels/\d+")


def check_messages(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse channels that can't exist."""
    messages, topic = settings.messages, settings.messages.pubsub_topic
    yield from email_problems("messages.emails", messages.emails)
    for channel in messages.channels:
        if not _CHANNEL.fullmatch(channel):
            cure = "Use projects/PROJECT/notificationChannels/NUMBER, as `gcloud beta monitoring "
            cure += "channels list` shows it"
            why = "is not the full name of a notification channel"
            yield Problem("messages.channels", channel, why, cure)
    names = [*messages.channels, *messages.emails, *([topic] if topic else [])]
    if len(names) > _MOST_CHANNELS:
        why = f"are too many: an alert has at most {_MOST_CHANNELS} channels"
        yield Problem("messages", names, why, "Use the address of a group")
    if topic is not None and ("/" in topic or not _TOPIC.fullmatch(topic)):
        cure = "Use the name of a new topic, like tpu-messages"
        yield Problem("messages.pubsubTopic", topic, "is not a topic name", cure)
    elif topic is not None and settings.budget and settings.budget.own_topic == topic:
        cure = "Use another name, because the stack creates both"
        yield Problem("messages.pubsubTopic", topic, "is the topic of the budget, too", cure)
