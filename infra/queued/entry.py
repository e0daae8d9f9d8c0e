"""The place under which the state of older stacks knows the provider of queued requests.

The engine keeps a dynamic provider as a pickle, which names its module and class: to destroy or
refresh what an earlier release has made, it imports this one.
"""

from infra.queued.request import QueuedRequestProvider as QueueEntryProvider

__all__ = ["QueueEntryProvider"]
