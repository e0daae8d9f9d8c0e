"""The IAM API: service accounts, their policies and tokens, predefined and custom roles."""

from __future__ import annotations

from localcloud.services.iam import accounts, credentials, federation, roles
from localcloud.services.iam.api import API, CREDENTIALS_API

__all__ = ["API", "CREDENTIALS_API", "accounts", "credentials", "federation", "roles"]
