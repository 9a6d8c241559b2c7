"""Bounds that several of OpenAI's calls have in common, as it has them."""

MOST_PAIRS, MOST_KEY, MOST_VALUE = 16, 64, 512
"""Of metadata: how many there may be, and the characters of each."""
LEAST_EXPIRY_S, MOST_EXPIRY_S = 3600, 30 * 24 * 3600
"""How long a file may be kept that is to expire."""
