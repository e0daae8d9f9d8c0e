import pytest
from toolchain.pins import engine_suits, parse_version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("v3.259.0\n", (3, 259, 0)),
        ("v3.150.0-alpha.x1", (3, 150, 0)),
        ("go1.26.8", (1, 26, 8)),
        ("go1.25", (1, 25, 0)),
        ("unknown command", None),
    ],
)
def test_a_version_is_read_from_what_a_program_says(
    said: str, version: tuple[int, int, int] | None
) -> None:
    assert parse_version(said) == version


@pytest.mark.parametrize("version", [(3, 219, 0), (3, 259, 0), (3, 999, 1)])
def test_an_engine_with_error_hooks_suits(version: tuple[int, int, int]) -> None:
    assert engine_suits(version)


@pytest.mark.parametrize("version", [(3, 218, 9), (2, 25, 0), (4, 0, 0), None])
def test_an_older_or_next_generation_or_unknown_engine_does_not_suit(
    version: tuple[int, int, int] | None,
) -> None:
    assert not engine_suits(version)
