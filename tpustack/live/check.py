"""All questions, asked side by side, and what their answers mean together."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tpustack.live import names, offered, peering, policies, project, quota
from tpustack.live.finding import UNKNOWN, WRONG, Asked, Finding, Question, answers
from tpustack.live.permissions import permissions

QUESTIONS: dict[str, Question] = {
    "project": project.project,
    "billing": project.billing,
    "APIs": project.apis,
    "permissions": permissions,
    "TPU type": offered.accelerator_type,
    "TPU software": offered.software,
    "TPU quota": quota.tpu,
    "machine type": offered.machine_type,
    "vCPU quota": quota.vcpus,
    "bucket": names.bucket,
    "service account": names.account,
    "network": names.network,
    "peering": peering.peering,
    "org policies": policies.policies,
}
_AT_ONCE = 4
_CAPACITY = Finding(
    "capacity",
    UNKNOWN,
    "Google tells nobody before a TPU is asked for",
    "tpu.queued waits for it",
)


def ask(asked: Asked) -> list[Finding]:
    """Return the findings in the questions' order."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = threads.map(lambda about: answers(about, QUESTIONS[about], asked), QUESTIONS)
        return [*(finding for each in found for finding in each), _CAPACITY]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if something is wrong, 3 if Google did not answer everything, else 0."""
    states = {finding.state for finding in findings if finding is not _CAPACITY}
    if WRONG in states:
        return 2
    return 3 if UNKNOWN in states else 0
