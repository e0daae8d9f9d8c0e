"""The Compute Engine API's registration: its handlers live in the modules beside this one."""

from __future__ import annotations

from localcloud.core.registry import Api

API = Api("compute", ("beta", "v1"), hosts=("www.googleapis.com",))
STORE = "compute"
"""The store's kind of every compute resource; the key is its path from `projects/` on."""
