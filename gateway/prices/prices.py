"""What tasks cost: the price of a model at an instant, and what a number of tokens cost by it. Pure, and in whole numbers
only."""

import functools
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

ANY_MODEL = "*"
"""The price of this name applies to models without a price of their own."""


MICRO = 1_000_000
"""Micro-credits of a credit."""
DECIMALS = 6
MAX_CREDITS = 1_000_000_000
"""Of one amount: a thousandth of what Redis's scripts can count with."""

_AMOUNT = re.compile(r"[+-]?\d{1,20}(\.\d{1,100})?", re.ASCII)


def read_credits(value: Any, least: int = 0, most: int = MAX_CREDITS) -> int:
    """Return micro-credits of a number, or of a decimal in quotes. Raise ValueError with a sentence that says what is wrong.

    `least`, `most`: credits.
    """
    wrong = ValueError('should be a number of credits, such as 12.5 or "12.5"')
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise wrong
    if isinstance(value, str) and not _AMOUNT.fullmatch(value.strip()):
        raise wrong
    amount = Decimal(repr(value) if isinstance(value, float) else value)
    if amount.is_nan():
        raise wrong
    if not least <= amount <= most:
        raise ValueError(f"should be from {least} to {most} credits")
    if round(amount, DECIMALS) != amount:
        raise ValueError(f"has more than {DECIMALS} decimals")
    return int(amount * MICRO)


def credits_of(micro: int) -> Decimal:
    """Return credits of micro-credits, exactly, as clients see them."""
    return Decimal(micro) / MICRO


def plain_credits(micro: int | None) -> float | None:
    """Return credits as a JSON number; exact for amounts that `read_credits` accepts."""
    if micro is None:
        return None
    whole, rest = divmod(micro, MICRO)
    return micro / MICRO if rest else whole


class Price(NamedTuple):
    """The price of a task, in micro-credits: per million tokens, and `request` per task. Made by `price`."""

    input: int
    cached: int
    output: int
    reasoning: int
    request: int
    id: str
    """Names it, and says all of it: `input/cached/output/reasoning/request`, in credits. No spaces."""
    packed: str
    """The five numbers, as a task's record has them."""

    def cost(self, input: int | None, output: int | None, cached: int | None, reasoning: int | None) -> int:
        """Return micro-credits of a task that used these tokens, rounded up once; None: unknown, and it costs nothing.

        Cached tokens are some of the input, reasoning some of the output. The same as in the scripts (credits.lua).
        """
        read, wrote = input or 0, output or 0
        from_cache, thought = min(cached or 0, read), min(reasoning or 0, wrote)
        tokens = (read - from_cache) * self.input + from_cache * self.cached
        tokens += (wrote - thought) * self.output + thought * self.reasoning
        return self.request + (tokens + MICRO - 1) // MICRO


def price(input: int, cached: int, output: int, reasoning: int, request: int) -> Price:
    """Return the price of these numbers."""
    numbers = (input, cached, output, reasoning, request)
    name = "/".join(f"{credits_of(number):f}" for number in numbers)
    return Price(*numbers, name, " ".join(map(str, numbers)))


@functools.lru_cache(1024)
def unpack(packed: str) -> Price:
    """Return the price in a task's record. Raise ValueError for an invalid text."""
    input, cached, output, reasoning, request = map(int, packed.split(" "))
    return price(input, cached, output, reasoning, request)


class Period(NamedTuple):
    """The price of a model from `since` (ms; None: always) until the model's next one begins."""

    model: str
    since: int | None
    price: Price


class PriceTable:
    """All prices. No two of a model begin at the same time."""

    def __init__(self, periods: Iterable[Period] = ()) -> None:
        self._of_model: dict[str, list[Period]] = {}
        for period in sorted(periods, key=lambda period: period.since or 0, reverse=True):
            self._of_model.setdefault(period.model, []).append(period)

    def __bool__(self) -> bool:
        return bool(self._of_model)

    def at(self, model: str, now_ms: float) -> Price | None:
        """Return the price of a model at an instant: its own, else that of `*`; None: it has none, and costs nothing."""
        return self.own(model, now_ms) or self.own(ANY_MODEL, now_ms)

    def own(self, name: str, now_ms: float) -> Price | None:
        """Return the price of exactly this name at an instant."""
        for period in self._of_model.get(name, ()):
            if (period.since or 0) <= now_ms:
                return period.price
        return None
