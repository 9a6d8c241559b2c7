"""Credits, whose unit the operator defines: whole micro-credits inside, decimals of at most six digits outside. Pure.

Never floats: what JSON and YAML have read as one is the decimal that was written, because an amount has no more than 15 digits.
"""

import re
from decimal import Decimal
from typing import Any

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
