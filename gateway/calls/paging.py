"""How OpenAI's and Anthropic's clients ask for a page of a list. Pure."""

from fairlane.gateway.errors import bad_request


def read_limit(text: str | None, most: int, usual: int) -> int:
    """How many are asked for; `usual` where nothing is said. Raises ApiError(400)."""
    if not text:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most):
        raise bad_request(f"limit must be a whole number from 1 to {most}", "limit")
    return int(text)


def read_newest_first(text: str | None) -> bool:
    """What `order` says: desc, as where nothing is said, or asc. Raises ApiError(400)."""
    if text not in (None, "asc", "desc"):
        raise bad_request("order must be asc or desc", "order")
    return text != "asc"
