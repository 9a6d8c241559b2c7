"""What a signed token fixes of a task: applied where its holder says nothing, refused where they say something else. Pure."""

from typing import Any

import msgspec
from msgspec import Raw

from fairlane.gateway.accounts.signing import Claims, TokenForbids
from fairlane.gateway.calls.bodies import OVERSIZED, Members, value_of
from fairlane.gateway.calls.outputs import BOUNDS, MAX_CHOICES, prompts_in, said_of_output
from fairlane.streaming.jsontext import kind_of


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
    said = [*said_of_output(fields)]
    for one in said:
        if one.name != one.folded and not one.inside:  # some servers take a name in any case
            raise TokenForbids(
                f"With this token {one.folded} must be written so, not {one.name!r}", one.folded
            )
    choices = 1
    for one in said:
        if one.says == "choices":
            if one.number is None or one.number > min(MAX_CHOICES, most):
                raise TokenForbids(
                    f"With this token {one.name} must be a number from 1 to {min(MAX_CHOICES, most)}",
                    one.name,
                )
            choices = max(choices, one.number)
    if "prompt" in fields and value_of(fields, "prompt") is OVERSIZED and kind_of(fields["prompt"]) == "[":
        raise TokenForbids("With this token a long prompt must be a text, not a list", "prompt")
    choices *= prompts_in(fields) or 1
    if choices > most:
        raise TokenForbids(
            f"The token allows {most} tokens of output: fewer than there are answers", "prompt"
        )
    least = each = most // choices
    for one in said:
        if one.says != "choices":
            if one.number is None or one.number > each:
                raise TokenForbids(
                    f"The token allows {most} tokens of output: {one.name} may be {each} at most", one.name
                )
            if one.says == "bound":
                least = min(least, one.number)
    for member in BOUNDS:
        fields.pop(member, None)
    fields[name] = Raw(b"%d" % least)


def object_of(fields: Members, without: tuple[str, ...] = ()) -> bytes:
    """The members as a JSON object, but for some: values byte for byte, and each name once."""
    parts: list[bytes | memoryview] = []
    for name, value in fields.items():
        if name not in without:
            parts += (b",", msgspec.json.encode(name), b":", memoryview(value))
    parts[:1] = (b"{",)
    parts.append(b"}")
    return b"".join(parts)  # copied once: they may be long
