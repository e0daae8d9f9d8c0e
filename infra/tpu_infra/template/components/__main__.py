"""The components of this project, for programs in any language of Pulumi's."""

from pathlib import Path

from tpu_infra import plugin

plugin.serve(Path(__file__).resolve().parent.parent)
