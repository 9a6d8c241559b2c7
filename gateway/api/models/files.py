"""Files of callers, as OpenAI has them."""

from typing import Literal

from pydantic import BaseModel, Field


class FileObject(BaseModel):
    """A file that is whole."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None = Field(description="null: it is kept until it is deleted")
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None


class FileList(BaseModel):
    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(BaseModel):
    id: str
    object: Literal["file"]
    deleted: Literal[True]
