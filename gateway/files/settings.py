"""Settings of files, and where they are kept. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import parse_qsl, unquote, urlsplit

from fairlane.gateway.settings.parts import BytesOrZero, Ms, SettingsPart, checked, split_url
from fairlane.gateway.settings.units import DAY_MS, MIB

DIRECTORY = "files"
"""In the data directory, if no storage is configured."""
PARAMETERS = ("endpoint", "region", "path_style")
"""Query parameters of a bucket's URL."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of this machine, or one that is mounted there."""

    path: Path


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket of an S3-compatible server."""

    name: str
    prefix: str
    """Before the names of all files; '' or with a slash at its end."""
    endpoint: str | None
    """None: Amazon's."""
    region: str | None
    path_style: bool
    """Whether the bucket is in the path, as most servers except Amazon's require."""


def parse_storage(storage: str | None, data_dir: Path) -> Directory | Bucket:
    """Where files are kept by these settings. Raises ValueError with a sentence."""
    if storage is None:
        return Directory((data_dir / DIRECTORY).absolute())
    try:
        parts = urlsplit(storage)
    except ValueError:
        raise ValueError("is not a valid URL") from None
    if parts.scheme == "":
        return Directory(Path(storage).absolute())
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc or parts.query or not path.strip("/"):
            raise ValueError("must name a directory, as file:///mnt/fairlane/files does, and nothing else")
        return Directory(Path(path))
    if parts.scheme != "s3":
        raise ValueError("must be a directory, or begin with s3:// or file:///")
    if "@" in parts.netloc or ":" in parts.netloc:
        raise ValueError("must not hold a key or password: set them in the environment (AWS_ACCESS_KEY_ID)")
    if not _BUCKET.fullmatch(parts.netloc):
        raise ValueError("must name a bucket, as s3://fairlane/files?endpoint=http://minio:9000 does")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(query.keys() - set(PARAMETERS)):
        raise ValueError(f"has a parameter {unknown[0]!r}; it may have {', '.join(PARAMETERS)}")
    endpoint, style = query.get("endpoint"), query.get("path_style")
    if endpoint is not None:
        named = split_url(endpoint, "http", "https")
        if named is None or "@" in named.netloc or named.query:
            raise ValueError("endpoint must be a URL such as http://minio:9000")
    if style not in (None, "true", "false"):
        raise ValueError("path_style must be true or false")
    prefix = unquote(parts.path).strip("/")
    return Bucket(
        parts.netloc,
        f"{prefix}/" if prefix else "",
        None if endpoint is None else endpoint.rstrip("/"),
        query.get("region"),
        endpoint is not None if style is None else style == "true",
    )


class FilesSettings(SettingsPart):
    """Files of clients (`/v1/files`), and those that Fairlane creates for them."""

    storage: Annotated[str, checked(lambda url: parse_storage(url, Path()))] | None = None
    """A directory, or a bucket of an S3-compatible server: `s3://bucket/prefix?endpoint=http://minio:9000&region=us-east-1`.
    Not set: the directory `files` in `data_dir`. A bucket needs the extra `s3` (`pip install '.[s3]'`), and its credentials
    are in the usual S3 environment variables. A directory can be a URL, `file:///mnt/fairlane/files`. Replicas must share it;
    a replica that misses another's files rejects requests.
    """

    max_bytes: BytesOrZero = 50 * 1024 * MIB
    """Size of all files together; more is rejected (507 `STORAGE_FULL`). 0: uploads and batches are rejected. Also 100,000
    files at most. One client can have half of what the others leave. Set it to the room of the directory: a disk with less
    than 512 MiB left is a 507, too. With 0 (404 `FILES_OFF`), existing files can be read, and expire.
    """

    ttl_ms: Ms | None = 30 * DAY_MS
    """Time that a file is kept; `expires_after` can only shorten it. `null`: until its client deletes it. The input of a
    batch stays until a day after the batch's window. 30 days, as OpenAI keeps files of batches.
    """
