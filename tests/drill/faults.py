"""What breaks in a drill, and which answers must come from where. Pure."""

from dataclasses import dataclass

from tests.drill.provider import Mode

PRIMARY, PAIR, TWINS, FALLBACK = "primary", "pair", "twins", "fallback"
"""Models. The workers of `primary` and of `fallback` have one provider; those of the others two, `left` and `right`, which have
names of their own as upstreams of `pair`, and one name as that of `twins`."""

BEHIND = {
    PRIMARY: ("main", "main"),
    PAIR: ("left", "right"),
    TWINS: ("left", "right"),
    FALLBACK: ("spare", "spare"),
}
"""Model -> the provider behind each of its workers; the first one is at the first gateway, the second at the second."""


@dataclass(frozen=True)
class Fault:
    """One way to break, and what callers ask for meanwhile."""

    name: str
    what: str
    mode: Mode
    model: str = PRIMARY
    breaks: str = "main"
    """The provider."""
    streams: bool = True
    """Half of the calls are streams."""
    schema: bool = False
    """Calls want JSON of a schema."""
    breaker: bool = True
    """It opens the breaker of its upstream: few attempts are made then."""


FAULTS = (
    Fault("gone", "dead: connections are refused", Mode.GONE),
    Fault("failing", "dead: 500", Mode.FAILING),
    Fault("slow", "no first token in time", Mode.SLOW),
    Fault("busy", "429, Retry-After", Mode.BUSY, breaker=False),
    Fault("cut", "cut in the first chunk", Mode.CUT),
    Fault("garbled", "no JSON", Mode.GARBLED, breaker=False),
    # (a stream shows what comes, so only whole answers can be another's)
    Fault(
        "talkative",
        "not the JSON that was asked for",
        Mode.TALKATIVE,
        streams=False,
        schema=True,
        breaker=False,
    ),
    Fault("half-gone", "one of two upstreams is dead", Mode.GONE, PAIR, "right"),
    Fault("half-failing", "one of two upstreams: 500", Mode.FAILING, PAIR, "right"),
    Fault("half-slow", "one of two upstreams: no first token", Mode.SLOW, PAIR, "right"),
    Fault("twin-gone", "one of two workers is dead", Mode.GONE, TWINS, "right", breaker=False),
    Fault("twin-failing", "one of two workers: 500", Mode.FAILING, TWINS, "right", breaker=False),
)
