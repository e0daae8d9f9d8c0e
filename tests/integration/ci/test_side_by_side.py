"""How long previews of several stacks take."""

from __future__ import annotations

from tests.integration.ci.conftest import MakeCheckout

CHANGES = 3


def test_four_previews_take_at_most_one_and_a_half_times_the_slowest(
    checkout: MakeCheckout,
) -> None:
    clone = checkout("dev", "test", "staging", "prod", small=True)
    previewed = clone.ci(
        *("preview", "--stack", "dev", "--stack", "test", "--stack", "staging", "--stack", "prod")
    )
    assert previewed.code == CHANGES, previewed.said
    result = clone.result()
    seconds = [stack["seconds"] for stack in result["stacks"]]
    assert len(seconds) == 4
    assert result["seconds"] <= 1.5 * max(seconds)
