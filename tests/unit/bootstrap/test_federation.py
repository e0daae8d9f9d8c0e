"""Whose pipeline may act as whom: what the program declares, at the local cloud's STS and IAM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from localcloud import faults
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client, session
from tests.unit.bootstrap.conftest import Resources, of
from tests.unit.localcloud.sts.test_exchange import encoded, signed

PROJECT = projects.DEFAULT_PROJECT
IAM = f"iam.googleapis.com/v1/projects/{PROJECT}"
POOLS = f"{IAM}/locations/global/workloadIdentityPools"
POOL = f"projects/{projects.number(PROJECT)}/locations/global/workloadIdentityPools/pool"
APIS = ("iam.googleapis.com", "iamcredentials.googleapis.com", "sts.googleapis.com")
PROVIDERS = ("deploy", "preview")
ACCOUNTS = [f"{name}-{does}" for name in ("dev", "prod", "requests") for does in PROVIDERS]
Claims = dict[str, str]
# Merged, and in a job without an environment. The subject has the form of repositories that are
# younger than 2026-07-15.
MAIN: Claims = {
    "sub": "repo:me@65/mine@74:ref:refs/heads/main",
    "run_id": "30433642",
    "repository": "me/mine",
    "repository_id": "74",
    "repository_owner_id": "65",
    "ref": "refs/heads/main",
    "event_name": "push",
}
REQUEST: Claims = {**MAIN, "ref": "refs/pull/7/merge", "event_name": "pull_request"}
GITLAB: Claims = {
    "sub": "project_path:me/mine:ref_type:branch:ref:main",
    "job_id": "302",
    "project_path": "me/mine",
    "project_id": "74",
    "namespace_id": "65",
    "ref": "main",
    "ref_type": "branch",
    "ref_protected": "true",
    "pipeline_source": "push",
}
BRANCH: Claims = {**GITLAB, "ref": "mine", "ref_protected": "false"}
# Names so long that Google does not take the whole `sub` as the subject (127 bytes).
LONG = "feature/" + "n" * 247
LONG_MAIN: Claims = {
    **MAIN,
    "sub": f"repo:{'m' * 39}@{9**9}/{'r' * 100}@{9**9}:environment:prod",
    "environment": "prod",
}
LONG_REQUEST: Claims = {**REQUEST, "sub": f"repo:me@65/mine@74:environment:{LONG}"}
LONG_BRANCH: Claims = {
    **BRANCH,
    "ref": LONG,
    "sub": f"project_path:me/mine:ref_type:branch:ref:{LONG}",
}
OPEN = {"dev-preview", "requests-preview"}
READS = {*OPEN, "prod-preview"}


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Client]:
    local_cloud = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    local_cloud.start()
    projects.enable_services(local_cloud.cloud, PROJECT, APIS)
    yield Client(local_cloud)
    local_cloud.stop()


@pytest.fixture(scope="module")
def issuer() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture
def become(
    owner: Client, issuer: RSAPrivateKey
) -> Callable[[Resources], Callable[[Claims], set[str]]]:
    """Makes what the program declares, and tells whom a token with some claims can become."""

    def make(resources: Resources) -> Callable[[Claims], set[str]]:
        _declare(owner, resources, issuer)

        def ask(claims: Claims) -> set[str]:
            federated = [_exchanged(owner, issuer, name, resources, claims) for name in PROVIDERS]
            tokens = [token for token in federated if token]
            return {name for name in ACCOUNTS for token in tokens if _acts_as(owner, token, name)}

        return ask

    return make


def _exchanged(
    owner: Client, issuer: RSAPrivateKey, name: str, resources: Resources, claims: Claims
) -> str | None:
    clock = owner.local_cloud.cloud.clock
    audience = f"//iam.googleapis.com/{POOL}/providers/{name}"
    provider = of(resources, "WorkloadIdentityPoolProvider")[name]
    token = {"iss": provider["oidc"]["issuerUri"], "aud": f"https:{audience}", **claims}
    answer = session(owner.local_cloud, "").post(
        "https://sts.googleapis.com/v1/token",
        data={
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "audience": audience,
            "scope": "https://www.googleapis.com/auth/cloud-platform",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "subject_token": signed(issuer, {**token, "exp": clock.now() + 300}),
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        },
        timeout=30,
    )
    given: str | None = answer.json().get("access_token")
    return given


def _declare(owner: Client, resources: Resources, issuer: RSAPrivateKey) -> None:
    numbers = issuer.public_key().public_numbers()
    n, e = (encoded(i.to_bytes((i.bit_length() + 7) // 8, "big")) for i in (numbers.n, numbers.e))
    keys = {"keys": [{"kid": "1", "kty": "RSA", "n": n, "e": e}]}
    owner.post(POOLS, {}, workloadIdentityPoolId="pool")
    for name, provider in of(resources, "WorkloadIdentityPoolProvider").items():
        issuers = {provider["oidc"]["issuerUri"]: keys}
        faults.change_setting(owner.local_cloud.cloud, "oidc-issuers", issuers)
        fields = ("oidc", "attributeMapping", "attributeCondition")
        body = {field: provider[field] for field in fields}
        owner.post(f"{POOLS}/pool/providers", body, workloadIdentityPoolProviderId=name)
    for name in ACCOUNTS:
        grant = of(resources, "IAMMember")[f"{name}-pipeline"]
        owner.post(f"{IAM}/serviceAccounts", {"accountId": f"ci-{name}"})
        # The mocks have names of their own for what Google names.
        member = grant["member"].replace("names/pool", POOL)
        policy = {"bindings": [{"role": grant["role"], "members": [member]}]}
        owner.post(f"{IAM}/serviceAccounts/{_email(name)}:setIamPolicy", {"policy": policy})


def _acts_as(owner: Client, token: str, name: str) -> bool:
    caller = session(owner.local_cloud, "")
    caller.headers["Authorization"] = f"Bearer {token}"
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{_email(name)}"
    scopes = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    return caller.post(f"{url}:generateAccessToken", json=scopes, timeout=30).ok


def _email(name: str) -> str:
    return f"ci-{name}@{PROJECT}.iam.gserviceaccount.com"


CASES_OF_GITHUB: list[tuple[Claims, set[str]]] = [
    (MAIN, READS),
    ({**MAIN, "environment": "dev"}, {"dev-deploy"}),
    ({**MAIN, "environment": "prod"}, {"prod-deploy"}),
    ({**MAIN, "environment": "nosuch"}, set()),
    (LONG_MAIN, {"prod-deploy"}),
    (REQUEST, OPEN),
    ({**LONG_REQUEST, "environment": LONG}, set()),
    ({**REQUEST, "environment": "requests"}, {"requests-deploy"}),
    # A request's own workflow may name any environment, and GitHub makes one that is missing.
    ({**REQUEST, "environment": "prod"}, set()),
    ({**REQUEST, "environment": "prod@refs/heads/main"}, set()),
    ({**MAIN, "ref": "refs/heads/main2", "environment": "dev"}, set()),
    ({**MAIN, "ref": "refs/tags/main", "environment": "dev"}, set()),
    ({**MAIN, "event_name": "pull_request_target", "environment": "prod"}, set()),
    # Somebody took over the name; or the repository went to somebody else.
    ({**MAIN, "repository_id": "75", "environment": "prod"}, set()),
    ({**MAIN, "repository_owner_id": "66", "environment": "prod"}, set()),
]
CASES_OF_GITLAB: list[tuple[Claims, set[str]]] = [
    (GITLAB, READS),
    ({**GITLAB, "environment": "prod"}, {"prod-deploy"}),
    ({**GITLAB, "environment": "dev", "pipeline_source": "web"}, {"dev-deploy"}),
    (BRANCH, OPEN),
    (LONG_BRANCH, OPEN),
    ({**BRANCH, "pipeline_source": "merge_request_event", "environment": "prod"}, set()),
    ({**BRANCH, "environment": "requests"}, {"requests-deploy"}),
    # A tag that is called like the branch; the branch, where nobody protects it.
    ({**GITLAB, "ref_type": "tag", "environment": "prod"}, set()),
    ({**GITLAB, "ref_protected": "false", "environment": "prod"}, set()),
    # Somebody outside started it, with a trigger's token.
    ({**GITLAB, "pipeline_source": "trigger", "environment": "prod"}, set()),
    ({**GITLAB, "project_id": "75", "environment": "prod"}, set()),
    ({**GITLAB, "namespace_id": "66", "environment": "prod"}, set()),
]


@pytest.mark.parametrize(
    ("forge", "cases"), [("github", CASES_OF_GITHUB), ("gitlab", CASES_OF_GITLAB)]
)
def test_a_pipeline_becomes_whom_its_environment_and_branch_allow(
    declared: Callable[..., Resources],
    become: Callable[[Resources], Callable[[Claims], set[str]]],
    forge: str,
    cases: list[tuple[Claims, set[str]]],
) -> None:
    becomes = become(declared(forge=forge))
    for claims, expected in cases:
        assert becomes(claims) == expected, claims
