"""What a signed token fixes of a task: applied where its holder says nothing, refused where they say something else. Pure."""

from typing import Any

import msgspec
from msgspec import Raw

from fairlane.gateway.accounts.signing import Claims, TokenForbids
from fairlane.gateway.calls.bodies import Members, value_of
from fairlane.streaming.jsontext import kind_of

BOUNDS = (
    *("max_completion_tokens", "max_tokens", "max_output_tokens"),
    *("max_new_tokens", "n_predict", "num_predict"),
)
"""Members of a body that bound its output; the last are those of servers with names of their own."""
CHOICES = ("n", "best_of")
"""Members that say how often a body is answered."""
MAX_CHOICES = 128


def fixed(name: str, said: Any, claimed: Any) -> Any:
    """What holds of something that the token may fix. Raises TokenForbids."""
    if claimed is None or said is None:
        return claimed if said is None else said
    if said != claimed:
        raise TokenForbids(f"The token fixes {name}: it is {claimed}", name)
    return said


def at_most(name: str, said: Any, most: int | None) -> Any:
    """What holds of something that the token may bound. What is no number is told elsewhere. Raises TokenForbids."""
    if most is None or said is None:
        return most if said is None else said
    if isinstance(said, int | float) and said > most:
        raise TokenForbids(f"The token allows {name} {most} at most", name)
    return said


def hold_output(claims: Claims, fields: Members) -> None:
    """Let the members of a body bound its output as the token does, under the name that the token gives: all choices together
    have no more. Raises TokenForbids."""
    bound = claims.most_output
    if bound is None:
        return
    name, most = bound
    for member in fields:
        folded = member.casefold()
        if member != folded and folded in (*BOUNDS, *CHOICES):  # some servers take a name in any case
            raise TokenForbids(f"With this token {folded} must be written so, not {member!r}", folded)
    choices = 1
    for member in CHOICES:
        value = value_of(fields, member)
        if value is not None:
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or not 1 <= value <= min(MAX_CHOICES, most)
            ):
                raise TokenForbids(
                    f"With this token {member} must be a number from 1 to {min(MAX_CHOICES, most)}", member
                )
            choices = max(choices, value)
    choices *= _prompts(fields)
    if choices > most:
        raise TokenForbids(
            f"The token allows {most} tokens of output: fewer than there are answers", "prompt"
        )
    least = each = most // choices
    for member in BOUNDS:
        value = value_of(fields, member)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= each:
                raise TokenForbids(
                    f"The token allows {most} tokens of output: {member} may be {each} at most", member
                )
            least = min(least, value)
        fields.pop(member, None)
    fields[name] = Raw(b"%d" % least)


def _prompts(fields: Members) -> int:
    """How many there are in `prompt`, which is one text, many, one of tokens' numbers, or many of these."""
    raw = fields.get("prompt")
    if raw is None or kind_of(raw) != "[":
        return 1
    prompts = value_of(fields, "prompt")
    if not isinstance(prompts, list):
        raise TokenForbids("With this token a long prompt must be a text, not a list", "prompt")
    return 1 if all(type(one) is int for one in prompts) else len(prompts)


def object_of(fields: Members, without: tuple[str, ...] = ()) -> bytes:
    """The members as a JSON object, but for some: values byte for byte, and each name once."""
    pairs = (
        b"%b:%b" % (msgspec.json.encode(name), bytes(value))
        for name, value in fields.items()
        if name not in without
    )
    return b"{" + b",".join(pairs) + b"}"
