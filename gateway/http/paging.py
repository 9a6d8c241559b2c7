"""Parameters of pages of lists. Pure."""

from fairlane.gateway.errors import bad_request


def read_limit(text: str | None, most: int, usual: int) -> int:
    """Return the requested page size; `usual` if there is none. Raise ApiError(400)."""
    if not text:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise bad_request(f"limit must be a whole number from 1 to {most}", "limit")
    return int(text)


def read_newest_first(text: str | None) -> bool:
    """Return whether `order` is desc, the default, and not asc. Raise ApiError(400)."""
    if text not in (None, "asc", "desc"):
        raise bad_request("order must be asc or desc", "order")
    return text != "asc"


def read_place(after: str, *, dots: int = 0) -> tuple[int, str]:
    """Return the time (ms) and the rest of the `next` of a page, `<time>.<rest>`; `dots`: how many the rest has at least.
    Raise ApiError(400)."""
    at, _, rest = after.partition(".")
    if not (at.isascii() and at.isdigit() and len(at) <= 15 and rest and rest.count(".") >= dots):
        raise bad_request("after must be the `next` of a page before", "after")
    return int(at), rest
