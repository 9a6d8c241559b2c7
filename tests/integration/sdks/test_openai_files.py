"""Files, as openai-python and openai-node bring, list, read and delete them: both unmodified."""

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from .nodes import run_node
from .openais import Sdk
from .stage import PATIENT, Stage, staged

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
LINES = b'{"custom_id": "1"}\n' * 1000


@pytest.fixture
async def stage(redis_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A gateway for each test: they list all files that there are."""
    async with staged(redis_url, tmp_path, **PATIENT) as stage:
        yield stage


async def test_openai_python(stage: Stage, sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_bytes(LINES)
    bring: dict[str, Any] = {
        "a path": tmp_path / "lines.jsonl",
        "bytes": LINES,
        "an open file": io.BytesIO(LINES),
        "a name": ("mine.jsonl", LINES),
        "a name and a type": ("mine.jsonl", LINES, "application/jsonl"),
    }
    for what, file in bring.items():
        made = await sdk.call("files.create", file=file, purpose="batch")
        assert (made.bytes, made.purpose, made.object, made.status) == (
            len(LINES),
            "batch",
            "file",
            "processed",
        ), what
    expiry = {"anchor": "created_at", "seconds": 3600}
    last = await sdk.call(
        "files.create", file=("x.bin", b"\0\xff"), purpose="user_data", expires_after=expiry
    )
    assert last.expires_at == last.created_at + 3600
    assert await sdk.call("files.retrieve", file_id=last.id) == last
    content = await sdk.call("files.content", file_id=last.id)
    assert content.read() == b"\0\xff" if hasattr(content, "read") else content.content == b"\0\xff"
    waited = await sdk.call("files.wait_for_processing", id=last.id)
    assert waited.id == last.id
    page = await sdk.call("files.list", limit=2)
    assert page.data[0].id == last.id
    assert page.has_next_page()
    following = await sdk.next_page(page)
    assert len(following.data) == 2
    assert not {file.id for file in following.data} & {file.id for file in page.data}
    oldest = await sdk.call("files.list", purpose="batch", order="asc")
    assert oldest.data[0].filename == "lines.jsonl"
    assert len(oldest.data) == 5
    gone = await sdk.call("files.delete", file_id=last.id)
    assert (gone.id, gone.deleted) == (last.id, True)
    for call in ("files.retrieve", "files.content", "files.delete"):
        with pytest.raises(Exception, match="No such file") as refused:
            await sdk.call(call, file_id=last.id)
        assert type(refused.value).__name__ == "NotFoundError"
        assert getattr(refused.value, "code", None) == "FILE_NOT_FOUND"
    with pytest.raises(Exception, match="purpose must be one of") as refused:
        await sdk.call("files.create", file=b"x", purpose="mischief")
    assert type(refused.value).__name__ == "BadRequestError"


async def test_openai_node(stage: Stage, node_project: Path) -> None:
    told = await run_node(node_project, "files", stage.base_url)
    made, page, content = told["made"], told["page"], told["content"]
    assert [(file["bytes"], file["purpose"], file["filename"]) for file in made] == [
        (19, "batch", "stream.jsonl"),
        (19, "batch", "made.jsonl"),
        (19, "user_data", "blob.bin"),
    ]
    assert made[2]["expires_at"] == made[2]["created_at"] + 3600
    assert told["retrieved"] == made[0]
    assert told["waited"]["status"] == "processed"
    assert content == '{"custom_id": "1"}\n'
    assert page == [file["id"] for file in reversed(made)]
    assert told["deleted"] == {"id": made[0]["id"], "object": "file", "deleted": True}
    assert (told["missing"]["name"], told["missing"]["status"]) == ("NotFoundError", 404)
    assert told["missing"]["code"] == "FILE_NOT_FOUND"
