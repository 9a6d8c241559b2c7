"""Ids of batches, and those that follow from them: of lines' tasks, and of the files that are written. Pure.

A line's task has the same id whoever submits it, so the store takes it once: whoever leads the batch after another one died
submits again what may be submitted already, and is told how it stands.
"""

import hashlib
import re

from fairlane.queues.ids import new_task_id
from fairlane.queues.randomness import random_bytes

PREFIX = "batch_"
_ID = re.compile(r"batch_[0-9a-f]{32}")


def new_batch_id(now_ms: int) -> str:
    """A new id; ids sort by time, and nobody can guess one."""
    return f"{PREFIX}{now_ms & 0xFFFF_FFFF_FFFF:012x}{random_bytes(10).hex()}"


def could_be(text: str) -> bool:
    """Whether a gateway may have made such an id."""
    return _ID.fullmatch(text) is not None


def line_task(batch_id: str, created_ms: int, line: int) -> str:
    """The id of the task of a line, from 1."""
    digest = hashlib.sha256(f"{batch_id} {line}".encode()).digest()
    return new_task_id(created_ms, random_bytes=lambda count: digest[:count])


def file_of(batch_id: str, created_ms: int, kind: str, epoch: int, number: int) -> str:
    """The id of a file that the leader of this epoch writes, in its try of this number."""
    digest = hashlib.sha256(f"{batch_id} {kind} {epoch} {number}".encode()).hexdigest()
    return f"file-{created_ms & 0xFFFF_FFFF_FFFF:012x}{digest[:20]}"
