"""Names of files, and where they are kept: pure decisions."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.files.rows import MAX_CHARS, disposition, is_file_id, new_file_id, plain_name
from fairlane.gateway.files.settings import Bucket, Directory, FilesSettings, parse_storage


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
        ("ä" * 300, "ä" * MAX_CHARS),
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
