"""Whose pipeline may act as whom: what the program declares, at the local cloud's STS and IAM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from localcloud.admin import settings
from localcloud.app import LocalCloud
from localcloud.core import enablement, projects
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client, session
from tests.unit.bootstrap.conftest import Resources, of
from tests.unit.localcloud.sts.test_exchange import encoded, signed

PROJECT = projects.DEFAULT_PROJECT
IAM = f"iam.googleapis.com/v1/projects/{PROJECT}"
POOLS = f"{IAM}/locations/global/workloadIdentityPools"
POOL = f"projects/{projects.number(PROJECT)}/locations/global/workloadIdentityPools/pool"
AUDIENCE = f"//iam.googleapis.com/{POOL}/providers/forge"
APIS = ("iam.googleapis.com", "iamcredentials.googleapis.com", "sts.googleapis.com")
Claims = dict[str, str]
MAIN: Claims = {"repository": "me/mine", "ref": "refs/heads/main", "sub": "repo:me/mine:main"}
GITLAB: Claims = {"project_path": "me/mine", "ref": "main", "ref_type": "branch", "sub": "x"}


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Client]:
    local_cloud = LocalCloud(tmp_path / "cloud", clock=VirtualClock())
    local_cloud.start()
    enablement.enable(local_cloud.cloud, PROJECT, APIS)
    yield Client(local_cloud)
    local_cloud.stop()


@pytest.fixture(scope="module")
def issuer() -> RSAPrivateKey:
    return generate_private_key(65537, 2048)


@pytest.fixture
def becomes(owner: Client, issuer: RSAPrivateKey) -> Callable[[Resources, Claims], set[str]]:
    """Which of the accounts a token with some claims can be exchanged for."""

    def ask(resources: Resources, claims: Claims) -> set[str]:
        (provider,) = of(resources, "WorkloadIdentityPoolProvider").values()
        _declare(owner, resources, provider, issuer)
        clock = owner.local_cloud.cloud.clock
        token = {"iss": provider["oidc"]["issuerUri"], "aud": f"https:{AUDIENCE}", **claims}
        answer = session(owner.local_cloud, "").post(
            "https://sts.googleapis.com/v1/token",
            data={
                "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                "audience": AUDIENCE,
                "scope": "https://www.googleapis.com/auth/cloud-platform",
                "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "subject_token": signed(issuer, {**token, "exp": clock.now() + 300}),
                "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            },
            timeout=30,
        )
        federated = answer.json().get("access_token")
        return {name for name in ("deployer", "previewer") if _acts_as(owner, federated, name)}

    return ask


def _declare(
    owner: Client, resources: Resources, provider: dict[str, Any], issuer: RSAPrivateKey
) -> None:
    numbers = issuer.public_key().public_numbers()
    n, e = (encoded(i.to_bytes((i.bit_length() + 7) // 8, "big")) for i in (numbers.n, numbers.e))
    keys = {"keys": [{"kid": "1", "kty": "RSA", "n": n, "e": e}]}
    issuers = {provider["oidc"]["issuerUri"]: keys}
    settings.change(owner.local_cloud.cloud, "oidc-issuers", issuers)
    owner.post(POOLS, {}, workloadIdentityPoolId="pool")
    fields = ("oidc", "attributeMapping", "attributeCondition")
    body = {field: provider[field] for field in fields}
    owner.post(f"{POOLS}/pool/providers", body, workloadIdentityPoolProviderId="forge")
    for name in ("deployer", "previewer"):
        grant = of(resources, "IAMMember")[f"{name}-pipeline"]
        owner.post(f"{IAM}/serviceAccounts", {"accountId": f"ci-{name}"})
        # The mocks have names of their own for what Google names.
        member = grant["member"].replace("names/pool", POOL)
        policy = {"bindings": [{"role": grant["role"], "members": [member]}]}
        owner.post(f"{IAM}/serviceAccounts/{_email(name)}:setIamPolicy", {"policy": policy})


def _acts_as(owner: Client, token: str | None, name: str) -> bool:
    caller = session(owner.local_cloud, "")
    caller.headers["Authorization"] = f"Bearer {token}"
    url = f"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/{_email(name)}"
    scopes = {"scope": ["https://www.googleapis.com/auth/cloud-platform"]}
    return caller.post(f"{url}:generateAccessToken", json=scopes, timeout=30).ok


def _email(name: str) -> str:
    return f"ci-{name}@{PROJECT}.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("settings", "claims", "expected"),
    [
        ({}, MAIN, {"deployer", "previewer"}),
        ({}, {**MAIN, "ref": "refs/pull/7/merge"}, {"previewer"}),
        ({}, {**MAIN, "ref": "refs/heads/main2"}, {"previewer"}),
        ({}, {**MAIN, "repository": "you/yours"}, set()),
        ({"branch": "*"}, {**MAIN, "ref": "refs/pull/7/merge"}, {"deployer", "previewer"}),
        ({"forge": "gitlab"}, GITLAB, {"deployer", "previewer"}),
        # A tag that is called like the branch.
        ({"forge": "gitlab"}, {**GITLAB, "ref_type": "tag"}, {"previewer"}),
        ({"forge": "gitlab"}, {**GITLAB, "project_path": "you/yours"}, set()),
    ],
)
def test_a_pipeline_becomes_whom_its_repository_and_branch_allow(
    declared: Callable[..., Resources],
    becomes: Callable[[Resources, Claims], set[str]],
    settings: dict[str, Any],
    claims: Claims,
    expected: set[str],
) -> None:
    assert becomes(declared(**settings), claims) == expected
