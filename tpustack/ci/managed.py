"""Custom jobs of Vertex AI that go on although the stack that they belong to has no state.

Their own labels are whatever a submitter wrote. A job belongs to the stack whose account it runs
as, and that account says by its description which stack of which backend made it (unlabelled.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from infra.catalog.vertex import regions
from infra.managed_jobs import UNENDED, account_of
from tpu_core.google import vertex_root
from tpustack.ci.orphans import Orphan, listed, made
from tpustack.cloud.google import Forbidden, Google
from tpustack.errors import TpustackError


def find(google: Google, project: str, orphans: Iterable[Orphan]) -> Iterator[Orphan]:
    """Yield the jobs that have not ended and run as an account among `orphans`.

    Without such an account no region is asked.

    Raises:
        TpustackError: nobody may look; what is not found here would lose its account.
    """
    stacks = {each.url.rpartition("/")[2]: each.stack for each in orphans if each.runs_jobs}
    for region in regions() if stacks else ():
        root = vertex_root(region)
        url = f"{root}/projects/{project}/locations/{region}/customJobs"
        try:
            for job in listed(google, url, "customJobs", filter=UNENDED):
                if stack := stacks.get(account_of(job)):
                    # Its title is whatever a submitter wrote.
                    name = f"custom job {job['name'].rpartition('/')[2]} in {region}"
                    yield Orphan(stack, name, f"{root}/{job['name']}", made(job))
        except Forbidden as error:
            raise TpustackError(
                f"{error}. Custom jobs may run as {', '.join(sorted(stacks))}, whose stacks are in "
                "no state: looking takes aiplatform.customJobs.list, which `tpustack bootstrap` "
                "grants"
            ) from None
