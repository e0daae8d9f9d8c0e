"""Writes the catalogue of known errors as a page."""

from __future__ import annotations

from tpu_training.errors.catalog import KnownError, known_errors

_INTRODUCTION = """\
# Troubleshooting

<!-- Made by `make docs` from the trainer's known_errors.json; a test keeps the two equal. -->

`tpustack doctor FILE` finds the errors of this page in a log, also with what loggers and terminals
put around them, broken into lines, or only a piece of them; `-` is standard input. Without a file
it looks into a stack's own: the states of VM and TPU, and the VM's serial port.

```console
$ echo "terminate called after throwing an instance of 'std::bad_alloc'" | tpustack doctor -
<stdin>:1: host-memory: terminate called after throwing an instance of 'std::bad_alloc'
  cause: this machine's memory is full
  cure:  use a machine type with more memory, and run one job on it at a time
  see:   https://cloud.google.com/compute/docs/instances/changing-machine-type-of-stopped-instance
```

It exits with 0 if it found nothing, with 1 if it found an error, known or not, and with 2 if its
arguments are wrong. The trainer explains its own errors by the same catalogue.
"""


def markdown() -> str:
    """Return the page docs/troubleshooting.md."""
    return "\n".join([_INTRODUCTION, *map(_section, known_errors())])


def _section(known: KnownError) -> str:
    return (
        f"## {known.id}\n\n```text\n{known.example}\n```\n\n"
        f"Cause: {known.cause}.\n\nCure: {known.cure}.\n\nSee <{known.link}>.\n"
    )
