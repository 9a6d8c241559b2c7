"""What operators see of the sentence with which a task failed, which its caller reads whole; and viewers of URLs. Pure.

What a worker or its upstream says may quote the request, and prompts stand in no log. So only what stands before the first colon,
equals sign, quotation mark, bracket or end of a line is shown, at most UNQUOTED_CHARS of it: `The upstream answered 401`.
"""

import functools
import re

from fairlane.queues.failures import FAILURES

OWN = frozenset(code for code, row in FAILURES.items() if not row.worker)
"""Failures that the gateway alone reports; no worker may."""
MAX_CHARS = 300
UNQUOTED_CHARS = 80
_QUOTE = re.compile(r"""[\n"`([{<«‘‚“„‹《「『＂（：＝]|[:=](?!/)|(?<!\w)'""")

_URL = re.compile(rb"""://(?:(?:[^\s"'\\/?#]*@)?+([^\s"'\\/?#@]*+)(?![^\s"'\\]*@))?+[^\s"'\\]*""")
"""The group is the host. There is none if `@` follows it: what precedes may then be the half of a password."""


def for_operators(code: str, sentence: str) -> str:
    """Return as much of a failure's sentence as operators may see."""
    return sentence[:MAX_CHARS] if code in OWN else unquoted(sentence)


def unquoted(sentence: str) -> str:
    """Return as much as operators may see of what a worker, its handler or its upstream says, whatever the code."""
    return _QUOTE.split(sentence, maxsplit=1)[0][:UNQUOTED_CHARS].rstrip(" ,")


@functools.lru_cache(maxsize=1)  # viewers of the same event share it
def without_paths(text: bytes) -> bytes:
    """Return a JSON text with only scheme and host of each URL: users, paths and queries are secrets at some services."""
    return _URL.sub(rb"://\1", text) if b"://" in text else text
