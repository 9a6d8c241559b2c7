"""Bounds that several of OpenAI's calls have in common, as it has them."""

MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512
"""Of metadata: how many there may be, and the characters of each."""
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600
"""How long a file may be kept that is to expire."""
