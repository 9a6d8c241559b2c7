"""Files, as OpenAI has them."""

from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from fastapi.responses import StreamingResponse

from fairlane.gateway.access import Access
from fairlane.gateway.api import files
from fairlane.gateway.api.framing import HotRoute, refusals
from fairlane.gateway.api.hot.describing import Text, with_limits
from fairlane.gateway.api.models.base import Left
from fairlane.gateway.api.models.files import FileDeleted, FileList, FileObject
from fairlane.gateway.calls.bounds import LEAST_EXPIRY_S, MOST_EXPIRY_S

FILE_ID = {"file_id": Annotated[str, Path()]}
FILE_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"enum": [*files.PURPOSES]},
                        "expires_after[anchor]": {"const": "created_at"},
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": LEAST_EXPIRY_S,
                            "maximum": MOST_EXPIRY_S,
                        },
                    },
                }
            }
        },
    }
}
FILE_PAGE = {
    "limit": Annotated[int | Left, Query(ge=1, le=files.MOST_OF_PAGE, description="files in a page")],
    "after": Annotated[Text, Query(description="the id behind which the page begins")],
    "order": Annotated[Literal["asc", "desc"] | Left, Query(description="by time; the newest first")],
    "purpose": Annotated[Text, Query(description="only those")],
}


def _file(
    method: str,
    path: str,
    call: Any,
    whole: Any,
    says: str,
    *more: int,
    answers: Any = None,
    **described: Any,
) -> HotRoute:
    return HotRoute(
        *(method, path, call, Access.CALLER),
        description=says,
        response_model=whole,
        responses=with_limits(
            refusals(401, 403, 404, 429, 503, *more, openai=True, files=True) | (answers or {})
        ),
        tags=["openai"],
        **described,
    )


ROUTES = (
    _file(
        *("POST", "/v1/files", files.create, FileObject),
        "Brings a file, as a form: `file`, `purpose` and, if it is to expire sooner than by the settings, `expires_after`. It is "
        "written to the storage as it comes, and there when the answer is.",
        *(400, 408, 413, 415, 507),
        openapi_extra=FILE_FORM,
    ),
    _file(
        *("GET", "/v1/files", files.listed, FileList, "The caller's files, by time.", 400),
        parameters=FILE_PAGE,
    ),
    _file(
        *("GET", "/v1/files/{file_id}", files.retrieve, FileObject, "One of the caller's files."),
        parameters=FILE_ID,
    ),
    _file(
        *("GET", "/v1/files/{file_id}/content", files.content, None),
        "What is in a file: all of it, or with `Range` a part.",
        416,
        parameters=FILE_ID | {"range": Annotated[Text, Header(alias="Range", description="bytes=FROM-TO")]},
        response_class=StreamingResponse,
        answers={
            status: {
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
            }
            for status in (200, 206)
        },
    ),
    _file(
        *("DELETE", "/v1/files/{file_id}", files.delete, FileDeleted, "Deletes a file."), parameters=FILE_ID
    ),
)
