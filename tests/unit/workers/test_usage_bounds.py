"""Which usage a task can have: what is too much or too little is corrected, and honest usage passes."""

import pytest

from fairlane.streaming.views.usage import Counts
from fairlane.workers.server.tasks.usage import HIDDEN_INPUT, HIDDEN_OUTPUT, Request

CHAT = b'{"messages":[{"role":"user","content":"hi"}]}'
SHORT = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":10}'
PICTURE = b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a/b"}}]}]}'
LIE = 10**9


def corrected(payload: bytes, task_type: str, counts: Counts, said: int, seen: int | None = None) -> Counts:
    request = Request(task_type, len(payload), payload)
    return request.without_gifts(request.limited(counts, said if seen is None else seen), said)


@pytest.mark.parametrize(
    ("payload", "task_type", "counts", "said"),
    [
        (CHAT, "openaiLike", Counts(9, 1), 2),
        (CHAT, "openaiLike", Counts(30_000, 200), 900),  # documents that the server retrieves
        (CHAT, "openaiLike", Counts(20_000, 1, 19_000), 2),  # of a cache
        (CHAT, "openaiLike", Counts(9, 100_000, None, 99_990), 40),  # reasoning that is not shown
        (CHAT, "openaiLike", Counts(9, 100_000), 40),  # the same, not reported as such
        (CHAT, "openaiLike", Counts(9, 25, None, 3000), 12_000),  # reasoning that the output does not count
        (CHAT, "openaiLike", Counts(9, 400), 401),  # a token for each byte
        (CHAT, "openaiLike", Counts(9, 100), 3200),  # many blanks
        (SHORT, "openaiLike", Counts(9, 10), 45),
        (SHORT, "openaiLike", Counts(9, 3000), 12_000),  # the server ignores the maximum
        (SHORT[:-1] + b',"n":4}', "openaiLike", Counts(9, 40), 2),
        (CHAT[:-1] + b',"max_output_tokens":1}', "openaiLike", Counts(9, 900), 40),  # of another API
        (CHAT[:-1] + b',"max_tokens":1e5}', "openaiLike", Counts(9, 900), 40),
        (CHAT[:-1] + b',"metadata":{"max_tokens":1}}', "openaiLike", Counts(9, 900), 40),
        (PICTURE, "openaiLike", Counts(16_000, 20), 80),
        (CHAT, "openaiEmbedding", Counts(9, 0), 0),
        (CHAT, "openaiLike", Counts(0, 0), 0),  # a failure without output
        (CHAT, "mine", Counts(500_000, 0), 4000),
        (CHAT, "openaiLike", Counts(), 50),
    ],
)
def test_honest_usage_passes(payload: bytes, task_type: str, counts: Counts, said: int) -> None:
    assert corrected(payload, task_type, counts, said) == counts


@pytest.mark.parametrize(
    ("payload", "task_type", "counts", "said", "left"),
    [
        (SHORT, "openaiLike", Counts(LIE, LIE), 2, Counts(len(SHORT) + HIDDEN_INPUT, 26)),
        (CHAT, "openaiLike", Counts(9, LIE), 2, Counts(9, 2 + HIDDEN_OUTPUT)),
        (CHAT, "openaiLike", Counts(9, 1, LIE, LIE), 2, Counts(9, 1, len(CHAT) + HIDDEN_INPUT, 2 + HIDDEN_OUTPUT)),
        (CHAT, "openaiLike", Counts(0, 0), 400, Counts(None, None)),
        (CHAT, "openaiLike", Counts(0, 0), 2, Counts(None, None)),
        (CHAT, "openaiLike", Counts(9, 1), 4000, Counts(9, None)),
        (CHAT, "openaiCompletion", Counts(9, 0), 400, Counts(9, None)),
        (CHAT, "image", Counts(LIE, 1), 0, Counts(len(CHAT) + 1_000_000, 1)),
    ],
)  # fmt: skip
def test_usage_that_a_task_cannot_have_is_corrected(
    payload: bytes, task_type: str, counts: Counts, said: int, left: Counts
) -> None:
    assert corrected(payload, task_type, counts, said) == left
