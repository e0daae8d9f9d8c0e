"""The IAM API's registry."""

from __future__ import annotations

from localcloud.core.registry import Api

API = Api("iam", ("v1",))
CREDENTIALS_API = Api("iamcredentials", ("v1",))
