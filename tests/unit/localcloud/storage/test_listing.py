from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.services.storage import records
from localcloud.services.storage.objects import Listing, Position, compile_glob
from localcloud.services.storage.records import Version
from tests.examples import examples
from tests.unit.localcloud.storage.conftest import Bucket

names = st.text(alphabet="ab/é", min_size=1, max_size=6)
parts = st.text(alphabet="ab/é", max_size=3)


def model(wanted: Listing, objects: list[str]) -> set[tuple[str, int]]:
    """What the documentation of objects.list says, word for word and without any order."""
    found = set()
    for name in objects:
        if not name.startswith(wanted.prefix) or name < wanted.start_offset:
            continue
        if wanted.end_offset and name >= wanted.end_offset:
            continue
        rest = name[len(wanted.prefix) :]
        if not wanted.delimiter or wanted.delimiter not in rest:
            found.add((name, 1))
            continue
        folder = wanted.prefix + rest[: rest.index(wanted.delimiter)] + wanted.delimiter
        found.add((folder, 0))
    return found


def pages(wanted: Listing, keys: list[tuple[str, int]], size: int) -> list[Position]:
    """All entries, `size` at a time, each page begun behind the last one's end."""
    found: list[Position] = []
    while True:
        after = found[-1] if found else None
        page = [entry for entry, _ in zip(wanted.entries(keys, after), range(size), strict=False)]
        if not page:
            return found
        found += page


@settings(max_examples=examples(500))
@given(
    objects=st.sets(names, max_size=20),
    prefix=parts,
    delimiter=st.sampled_from(["", "/", "a", "//"]),
    start=parts,
    end=parts,
    size=st.integers(1, 7),
)
def test_pages_of_a_list_match_a_model_of_googles_documentation(
    objects: set[str],
    prefix: str,
    delimiter: str,
    start: str,
    end: str,
    size: int,
) -> None:
    wanted = Listing(prefix, delimiter, start, end)
    found = pages(wanted, [(name, 0) for name in sorted(objects)], size)
    assert found == sorted(found)
    assert len(found) == len(set(found))
    assert {(name, kind) for name, kind, _ in found} == model(wanted, sorted(objects))


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("foo*bar", ["foobar", "foo1bar"], ["foo/bar", "foobarx"]),
        ("foo**bar", ["foobar", "foo/x/bar"], ["fobar"]),
        ("fo?", ["foo"], ["fo", "fo/", "fooo"]),
        ("a.b+c", ["a.b+c"], ["axb+c", "a.bbc"]),
        ("**/", ["a/", "a/b/"], ["a"]),
        ("a,b", ["a,b"], ["a"]),
    ],
)
def test_a_glob_matches_as_google_documents(
    glob: str, matching: list[str], other: list[str]
) -> None:
    pattern = compile_glob(glob)
    assert [name for name in matching if not pattern.fullmatch(name)] == []
    assert [name for name in other if pattern.fullmatch(name)] == []


@pytest.mark.parametrize("glob", ["{a,b}", "[0-9]", r"a\*"])
def test_a_glob_with_more_than_stars_and_question_marks_is_refused(glob: str) -> None:
    with pytest.raises(ApiError, match="knows only"):
        compile_glob(glob)


def test_a_folder_is_listed_like_a_directory(bucket: Bucket) -> None:
    for name in ("a/b", "a/c", "d", "e", "e/f", "e/g/h"):
        bucket.put(name)
    top = bucket.api.get(f"{bucket.url}/o", delimiter="/")
    assert [item["name"] for item in top["items"]] == ["d", "e"]
    assert top["prefixes"] == ["a/", "e/"]
    below = bucket.api.get(f"{bucket.url}/o", delimiter="/", prefix="e/")
    assert [item["name"] for item in below["items"]] == ["e/f"]
    assert below["prefixes"] == ["e/g/"]
    assert bucket.names(matchGlob="*/?") == ["a/b", "a/c", "e/f"]


def test_pages_are_followed_by_token(bucket: Bucket) -> None:
    for index in range(5):
        bucket.put(f"shard-{index}")
    found: list[str] = []
    token = ""
    for _ in range(3):
        page = bucket.api.get(f"{bucket.url}/o", maxResults=2, pageToken=token)
        found += [item["name"] for item in page["items"]]
        token = page.get("nextPageToken", "")
    assert found == [f"shard-{index}" for index in range(5)]
    assert token == ""


@pytest.mark.parametrize("query", [{"pageToken": "x"}, {"maxResults": "-1"}, {"maxResults": "ten"}])
def test_a_bad_page_is_refused(bucket: Bucket, query: dict[str, str]) -> None:
    bucket.api.get(f"{bucket.url}/o", status=400, **query)


def test_an_empty_list_has_no_items(bucket: Bucket) -> None:
    assert bucket.api.get(f"{bucket.url}/o") == {"kind": "storage#objects"}


def test_fields_leave_out_what_is_not_asked_for(bucket: Bucket) -> None:
    bucket.put("x")
    page = bucket.api.get(f"{bucket.url}/o", fields="items(name,size),nextPageToken")
    assert page == {"items": [{"name": "x", "size": "4"}]}


def test_a_page_of_a_bucket_of_thousands_reads_each_of_its_objects_once_and_no_others(
    bucket: Bucket, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bucket.put("template")
    version = records.require(cloud, bucket.name, "template", int(made["generation"]))
    with cloud.store.locked():
        for index in range(5000):
            one = Version(**(vars(version) | {"name": f"data/{index:05d}"}))
            records.save(cloud, records.live_kind(bucket.name), one.name, one)
    read: list[str] = []
    load = records.load

    def noted(cloud: Cloud, kind: str, key: str) -> Version | None:
        read.append(key)
        return load(cloud, kind, key)

    monkeypatch.setattr(records, "load", noted)
    listed = bucket.names(prefix="data/04")
    assert len(listed) == 1000
    assert read == listed
