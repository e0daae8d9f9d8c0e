"""Checks of the project, of names, of the provider, the budget and the messages."""

import re
from collections.abc import Iterator, Sequence

from tpu_infra.catalog.entries import numbers
from tpu_infra.checks.compute import host_of
from tpu_infra.checks.context import Context
from tpu_infra.deployer import permissions_of_role
from tpu_infra.grants import commands
from tpu_infra.names import NAME, OWNER, STACK, Names
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import UNSET, Problem, misplaced
from tpu_infra.settings.parse import PROJECT_KEY

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
# What the stack files of this repository say (stacks/).
_EXAMPLES = ("my-project-dev", "my-project-staging", "my-project-prod")
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
# Characters of a service account's id: the shortest limit of all names.
_ID = (6, 30)
LONGEST_PREFIX = _ID[1] - len("-job")
"""Also where the queue's jobs have an account."""
# What belongs to a VM, a TPU or a network has up to nine characters more, such as a digest.
_RESOURCE = (1, 63 - len("-machines"))
# A week is at the end of a role's id (infra/tpu_infra/components/identity.py).
_ROLE = (3, 64 - len("_2026w48"))
_WORD = rf"([a-z0-9]+|{NAME}|{STACK}|{OWNER})"
_PATTERN = re.compile(rf"{_WORD}(-{_WORD})*")


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


def check_names(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that each resource can have the name that it would get (RFC 1035)."""
    names, prefix, pattern = context.names, settings.name_prefix, settings.name_pattern
    if prefix:
        others = {"owner": settings.owner, "namePattern": pattern}
        why = f"has no effect, because namePrefix is {prefix!r}"
        yield from misplaced(others, why, "Remove one of the two")
    if prefix or not pattern:
        setting, value, whole = "namePrefix", prefix or UNSET, prefix or names.prefix
        cure, said = (
            "Set one like tpu-stack-dev",
            "" if prefix else f"and would be {whole!r}, which ",
        )
    elif malformed := [*_check_pattern(pattern, settings.owner)]:
        yield from malformed
        return
    else:
        setting, value, whole = "namePattern", pattern, names.vm
        cure, said = "Correct it, or rename the stack", f"makes {whole!r}, which "
    limits = list(_limits(settings, names))
    if not _NAME.fullmatch(whole):
        said += "is not a valid resource name (lower-case letters, digits and hyphens, a letter "
        said += "first, no hyphen last)"
    elif wrong := [
        f"the {what} {name} has {len(name)} ({least} to {most})"
        for what, name, (least, most) in limits
        if not least <= len(name) <= most
    ]:
        said = "" if value == pattern else said
        said += f"gives names the wrong number of characters: {', '.join(wrong)}"
        missing = max(least - len(name) for _, name, (least, _) in limits)
        room = min(most - len(name) for _, name, (_, most) in limits)
        cure = f"Set one of {max(1, len(whole) + missing)} to {len(whole) + room} characters"
        if value == pattern:
            change = f"{-room} characters shorter" if room < 0 else f"{missing} characters longer"
            cure = f"Make it, or the stack's name, {change}"
    else:
        return
    yield Problem(setting, value, said, cure)


def _check_pattern(pattern: str, owner: str | None) -> Iterator[Problem]:
    """Check that no two resources, and no two stacks, get the same name from a pattern."""
    words, example = pattern.split("-"), f"Use one like acme-{STACK}-{NAME}"
    if not _PATTERN.fullmatch(pattern):
        why = f"is not a pattern (lower-case letters, digits, {STACK}, {NAME} and {OWNER}, with "
        yield Problem("namePattern", pattern, f"{why}hyphens between them)", example)
        return
    if words.count(NAME) != 1:
        why = f"must have {NAME} once, which tells the stack's resources apart"
        yield Problem("namePattern", pattern, why, example)
    if STACK not in words:
        why = f"has no {STACK}, so another stack's resources could have the same names"
        cure = f"Add {STACK}, or use namePrefix"
        yield Problem("namePattern", pattern, why, cure)
    if (OWNER in words) != bool(owner):
        why = (
            f"has no {OWNER}, but owner is {owner!r}"
            if owner
            else f"has {OWNER}, but no owner is set"
        )
        cure = f"Add {OWNER}, or remove owner" if owner else f"Set owner, or remove {OWNER}"
        yield Problem("namePattern", pattern, why, cure)
    if words[-1] != NAME and not words[-1][0].isalpha():
        why = f"ends in {words[-1]}, but Google adds numbers to the names of slices, so those of "
        why += "stack dev could be names of stack dev-0"
        cure = f"End it with {NAME} or with a word, as in {NAME}-{STACK}-acme"
        yield Problem("namePattern", pattern, why, cure)


def _limits(settings: StackSettings, names: Names) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Yield what gets a name, the name, and how few and how many characters it can have."""
    jobs = settings.jobs
    accounts = {
        names.account: settings.service_account is None,
        names.jobs_account: jobs.apart and jobs.service_account is None,
        names.vertex_account: jobs.vertex is not None and jobs.vertex.service_account is None,
        names.watcher_account: settings.has_watcher and settings.recovery.service_account is None,
    }
    yield from (("service account", name, _ID) for name, is_made in accounts.items() if is_made)
    if settings.keeps_limits and settings.limits.role is None:
        yield "role", names.limits_role, _ROLE
    yield from (("TPU", name, _RESOURCE) for name in names.tpus(settings.tpu.slices)[-1:])
    yield "VM", names.vm, _RESOURCE
    yield "network", names.network, _RESOURCE


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
    causes = [*check_project(settings, context)]
    if settings.name_prefix or settings.name_pattern:
        causes += check_names(settings, context)
    if not settings.bucket.name and causes:
        return  # The name is wrong because what it is made of is.
    yield Problem("bucket.name", value, derived + why, "Set one like my-project-tpu-data")


# --- Accounts that are there already, and roles that others grant


def check_accounts(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that jobs have an account of their own, and that an existing one of theirs is used."""
    jobs, own = settings.jobs, context.names
    if not jobs.apart:
        why = "is for jobs with an account of their own, which needs jobs.enabled without "
        why += "jobs.asRoot"
        yield from misplaced({"jobs.serviceAccount": jobs.service_account}, why, "Remove it")
    watcher = settings.recovery.service_account
    if not settings.has_watcher:
        why = "is for a VM that recreates a TPU with architecture compute"
        yield from misplaced({"recovery.serviceAccount": watcher}, why, "Remove it")
    elif watcher in (own.email, own.jobs_email):
        why = "is the account of the TPU's machines or jobs, which could then create machines"
        cure = "Use another account, or leave it out"
        yield Problem("recovery.serviceAccount", watcher, why, cure)
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
        *most, last = permissions_of_role(settings)
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
