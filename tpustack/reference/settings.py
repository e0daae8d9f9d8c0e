"""Writes the reference of settings as a page and as text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from infra.settings.reference import Setting, all_settings, groups

_INTRODUCTION = """\
# Settings

<!-- Made by `make docs` from infra/settings; a test keeps the two equal. -->

A stack is one file, `stacks/Pulumi.STACK.yaml`. Below `config:` it has Google's project and the
settings of this page, each with `tpu-stack:` before its first part:

```yaml
config:
  gcp:project: my-tpus
  tpu-stack:zone: us-central1-a
  tpu-stack:tpu:
    acceleratorType: v5litepod-4
    runtimeVersion: tpu-vm-tf-2.16.1-pod-pjrt
    capacity: spot
```

`tpustack init NAME` asks for what such a file needs and offers what the catalog allows; options
answer in advance:

```console
$ tpustack init mine --project my-tpus --zone us-central1-a --accelerator-type v5litepod-4 \\
    --capacity spot --backend file
stacks/Pulumi.mine.yaml is written. It costs $1.09 an hour.
tpu-vm-tf-2.16.1-pod-pjrt has TensorFlow 2.16.1: test your model with that version.
The stack mine is made and selected; its state is in ~/.pulumi.
Next:
  pulumi preview
  pulumi up
```

It also chooses where Pulumi keeps the stack's state (`--backend`: a bucket or this machine) and
what encrypts its secrets (`--secrets-provider`), logs in there and makes the stack
([state](state.md#where-the-state-is)). Git ignores the file: it is one person's.

`tpustack check` says everything that is wrong with a stack file, or with all of them, without
engine or cloud. It exits with 0 if all is fine and with 2 if not; warnings are of what is allowed
and may surprise:

```console
$ tpustack check --stack mine
mine: fine
  warning: not proven on a real TPU (docs/tpu.md#what-stays-unproven): a VM that drives it by ...
```

`tpustack settings` prints this reference. A name that is not here is an error; so are settings
beside `config:` or in another namespace, numbers and flags in quotes within a group, and
[secrets](gitops.md#from-an-empty-project-to-the-first-green-pipeline).

`Pulumi.yaml` declares what its format can say: the type of the first parts, and their defaults. It
takes every name without a default for required, so `namePrefix` cannot stand there; neither can
`gcp:project`, which is the provider's, nor what is inside a group. The engine checks that much
before the program runs, and says only the first thing that is wrong; `tpustack check` says all.
"""


def facts(setting: Setting) -> str:
    """Return type, choices, range and default in a few words."""
    words = [setting.type]
    if setting.choices:
        words.append(f"one of {', '.join(setting.choices)}")
    if setting.minimum is not None and setting.maximum is not None:
        words.append(f"{setting.minimum:g} to {setting.maximum:g}")
    if setting.required:
        words.append("required")
    elif default := _default(setting):
        words.append(f"default {default}")
    return ", ".join(words)


def markdown() -> str:
    """Return the page docs/settings.md."""
    settings = all_settings()
    parts = [_INTRODUCTION, "## The stack\n", *_table([s for s in settings if not s.group])]
    for group, about in groups().items():
        parts += [f"\n## {group}\n", f"{about}\n"]
        parts += _table([setting for setting in settings if setting.group == group])
    return "\n".join(parts) + "\n"


def _table(settings: Sequence[Setting]) -> Iterator[str]:
    yield "| setting | type | range | default | meaning |"
    yield "|---|---|---|---|---|"
    for setting in settings:
        allowed = ", ".join(f"`{choice}`" for choice in setting.choices)
        if setting.minimum is not None and setting.maximum is not None:
            allowed = f"{setting.minimum:g} to {setting.maximum:g}"
        default = f"`{text}`" if (text := _default(setting)) else ""
        cells = (
            f"`{setting.path}`",
            setting.type,
            allowed,
            "required" if setting.required else default,
            setting.description.replace("|", "\\|"),
        )
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _default(setting: Setting) -> str:
    if setting.default in (None, [], {}):
        return ""
    return setting.default if isinstance(setting.default, str) else json.dumps(setting.default)
