"""Names of files, where they are kept, and who has room: pure decisions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.errors import ApiError
from fairlane.gateway.files.limits import Held, Most, check_room
from fairlane.gateway.files.names import MOST_CHARS, disposition, is_file_id, plain_name
from fairlane.gateway.files.rows import new_file_id
from fairlane.gateway.settings import Bucket, Directory, FilesSettings, parse_storage


@pytest.mark.parametrize(
    ("given_name", "plain"),
    [
        ("a.jsonl", "a.jsonl"),
        ("../../etc/passwd", "passwd"),
        ("C:\\files\\a.txt", "a.txt"),
        ("a\r\nSet-Cookie: b\0", "aSet-Cookie: b"),
        ("", "file"),
        ("///", "file"),
        (" \u202e ", "file"),
        ("ä" * 300, "ä" * MOST_CHARS),
    ],
)
def test_a_name_is_plain(given_name: str, plain: str) -> None:
    assert plain_name(given_name) == plain


@given(st.text(max_size=300))
def test_any_name_fits_a_header(name: str) -> None:
    header = disposition(plain_name(name))
    assert header.startswith(b'attachment; filename="')
    assert header.isascii()
    assert not set(header) & {*range(32), 127}
    assert header.count(b'"') == 2


def test_ids_sort_by_time_and_are_known_again() -> None:
    ids = [new_file_id(now) for now in (1, 2, 1_800_000_000_000, 1_800_000_000_001)]
    assert ids == sorted(ids)
    assert all(map(is_file_id, ids))
    assert not any(map(is_file_id, ("", "file-", ids[0].upper(), ids[0] + "0", ids[0] + "\n", f" {ids[0]}")))


def test_where_files_are_kept() -> None:
    here = Path("/var/lib/fairlane")
    assert parse_storage(None, here) == Directory(here / "files")
    assert parse_storage("/mnt/files", here) == Directory(Path("/mnt/files"))
    assert parse_storage("file:///mnt/my%20files", here) == Directory(Path("/mnt/my files"))
    assert parse_storage("s3://bucket", here) == Bucket("bucket", "", None, None, path_style=False)
    assert parse_storage("s3://my.bucket/a/b/?endpoint=https://s3.example:9000/&region=eu", here) == Bucket(
        "my.bucket", "a/b/", "https://s3.example:9000", "eu", path_style=True
    )
    assert parse_storage("s3://bucket?endpoint=http://x&path_style=false", here) == Bucket(
        "bucket", "", "http://x", None, path_style=False
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "ftp://x/y",
        "file://host/x",
        "file:///",
        "s3://",
        "s3://key:secret@bucket",
        "s3://bucket:9000",
        "s3://b",
        "s3://bucket?endpoint=minio:9000",
        "s3://bucket?endpoint=http://key:secret@minio",
        "s3://bucket?path_style=yes",
        "s3://bucket?regions=x",
        "http://[",
    ],
)
def test_a_wrong_storage_is_refused_without_its_text(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"must|has a parameter|is not a valid") as refused:
        FilesSettings(storage=wrong)
    assert "secret" not in str(refused.value).partition("[type=")[0]


MOST = Most(files=10, bytes=1000, all_files=100, all_bytes=10_000)


def refusal(held: Held, files: int = 1, size: int = 1) -> int | None:
    try:
        check_room(held, MOST, files=files, size=size)
    except ApiError as error:
        return error.status
    return None


def test_who_has_room() -> None:
    assert refusal(Held(9, 999, 9, 999)) is None
    assert refusal(Held(10, 0, 10, 0)) == 429
    assert refusal(Held(0, 1000, 0, 1000)) == 429
    assert refusal(Held(10, 0, 10, 0), files=0) is None
    assert refusal(Held(0, 0, 98, 0)) is None
    assert refusal(Held(0, 0, 99, 0)) == 507
    assert refusal(Held(0, 0, 0, 9998)) is None
    assert refusal(Held(0, 0, 0, 9999)) == 507


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 700)), max_size=60))
def test_whoever_comes_last_finds_half_of_what_is_left(brought: list[tuple[int, int]]) -> None:
    """Whatever some bring, it never comes to more than there may be; and another one finds room."""
    most = Most(1000, 10**9, 1000, 1000)
    held = dict.fromkeys(range(6), 0)
    count = dict.fromkeys(range(6), 0)
    for who, size in [*brought, (5, 1)]:
        now = Held(count[who], held[who], sum(count.values()), sum(held.values()))
        try:
            check_room(now, most, files=1, size=size)
        except ApiError:
            continue
        held[who] += size
        count[who] += 1
    assert sum(held.values()) <= 1000
    assert held[5] == 1
