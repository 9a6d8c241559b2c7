"""The payload of a task that waits for a permit: all that whoever gives it out must know. Pure."""

import msgspec

from fairlane.gateway.endpoints.endpoints import Endpoint


class Wanted(msgspec.Struct, rename="camel", frozen=True):
    """What a permit is for. It holds as it was when the task was submitted, whatever becomes of the endpoint since.

    `unused_ms`: how long it may be used; `used_ms`: how long a used one takes its place at most.
    """

    endpoint: str
    url: str
    unused_ms: int
    used_ms: int


def permit_payload(endpoint: Endpoint, url: str = "") -> bytes:
    """The payload of a task of type `permit`. `url`: what the caller wants to call; '' = anything of the endpoint.

    A call holds its place until a proxy reports its end; where none does, for as long as a call may take, not for as long as the
    mean one does: else others would be let in while it goes on.
    """
    wanted = Wanted(endpoint.name, url or endpoint.pattern.text, endpoint.permit_ms, endpoint.timeout_ms)
    return msgspec.json.encode(wanted)


read_wanted = msgspec.json.Decoder(Wanted).decode
"""The same read back. Raises msgspec.MsgspecError."""


def permit_result(*, reported: bool) -> bytes:
    """The result of a task whose permit was used. `reported`: somebody said that the call has ended; else its time was over."""
    return b'{"used":true,"reported":%b}' % (b"true" if reported else b"false")
