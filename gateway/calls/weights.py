"""How much of a payload is text, of which models have tokens: files are none. Pure."""

from fairlane.gateway.calls.bodies import Members
from fairlane.workers.tasktypes import FILES, MEDIA


def text_bytes(task_type: str, payload: bytes, fields: Members) -> int:
    """Bytes of a payload with these members that are not in files."""
    if task_type not in MEDIA:
        return len(payload)
    files = sum(len(memoryview(raw)) for name, raw in fields.items() if name in FILES)
    return max(len(payload) - files, 0)
