"""Durations in words for people. Pure."""


def duration(ms: int) -> str:
    """Return a duration in the notation of Go and OpenAI: 12ms, 1.5s, 6m0s, 24h0m0s."""
    if 0 < ms < 1000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}"
    return f"{minutes}m{seconds}" if minutes else seconds
