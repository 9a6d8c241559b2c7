"""What operators see of a failure's sentence, in the log and in the store's memory of it."""

import pytest
from tests.support.direct import World, drive
from tests.support.pool import Pool

from fairlane.queues.failures import FAILURES
from fairlane.queues.logs.sentences import MAX_CHARS, OWN, UNQUOTED_CHARS, WORDS, for_operators
from fairlane.queues.tasks import Fragment, State
from fairlane.streaming.events import fragment_error
from fairlane.workers.protocol import FAILURE_CODES

ANSWERED = "The upstream answered"
SENTENCES = [
    (f"{ANSWERED} 500: template failed on input Ann Beck has", f"{ANSWERED} 500: template failed on input"),
    (f"{ANSWERED} 401: Ann Beck has", f"{ANSWERED} 401"),
    (f"{ANSWERED} 500: out of memory", f"{ANSWERED} 500: out of memory"),
    (f"{ANSWERED} 401: 401 Unauthorized: invalid api key", f"{ANSWERED} 401: 401 Unauthorized: invalid api key"),
    (f"{ANSWERED} 401: Incorrect API key provided: sk-abc.", f"{ANSWERED} 401: Incorrect API key provided"),
    (f"{ANSWERED} 500: invalid 'Ann Beck'", f"{ANSWERED} 500: invalid"),
    (f'{ANSWERED} 500: {{"error": "Ann Beck"}}', f"{ANSWERED} 500"),
    (f"{ANSWERED} 500: out of\nmemory", f"{ANSWERED} 500: out of"),
    (f"{ANSWERED} 500: CUDA out of memory. Tried 2 GB", f"{ANSWERED} 500: CUDA out of memory. Tried"),
    ("The upstream cannot be reached (ConnectError: All connection attempts failed).",) * 2,
    ("The base URL may be wrong (most end with /v1): http://a", "The base URL may be wrong (most end with /v1)"),
    ("Unexpected token 'M', \"My secret\"... is not valid JSON", "Unexpected token"),
    ('No tool is named "My secret"', "No tool is named"),
    ("No tool is named 'My secret'", "No tool is named"),
    ("'My secret' is no tool", ""),
    ("Cannot read\nMy: secret", "Cannot read"),
    ("Cannot read:\nMy secret", "Cannot read"),
    ("No such city (My secret)", "No such city"),
    ("[My secret] is no list", ""),
    ("No such city «My secret»", "No such city"),
    ("Refused:My secret", "Refused"),
    ("Refused: input=My secret", "Refused: input"),
    ("Cannot parse input=My secret", "Cannot parse input"),
    ("请求被拒绝：我的秘密", "请求被拒绝"),
    ("Invalid value „My secret“", "Invalid value"),
    ("Nothing answers at http://10.0.0.1/v1", "Nothing answers at http://10.0.0.1/v1"),
    ("It ends here:", "It ends here"),
    ("It doesn't do images", "It doesn't do images"),
    ("My secret " * 100, ("My secret " * 8).rstrip()),
    ("x" * 80 + ": out of memory", "x" * 80 + ": out of memory"),
    ("x" * 81 + ": out of memory", "x" * 80),
    ("down", "down"),
    ("", ""),
    ("Failed: " + "out of memory " * 40, ("Failed: " + "out of memory " * 40)[:294]),
]  # fmt: skip


@pytest.mark.parametrize(("sentence", "shown"), SENTENCES)
def test_what_a_worker_says_is_shown_up_to_where_it_may_quote(sentence: str, shown: str) -> None:
    for code in FAILURE_CODES:
        assert for_operators(code, sentence) == shown


def test_the_store_remembers_just_that(world: World) -> None:
    pool = Pool(world)
    for number, (sentence, shown) in enumerate(SENTENCES):
        for code in ("UPSTREAM_ERROR", "WORKER_LOST"):
            task_id = f"{code}-{number}"
            pool.submit(task_id)
            end = Fragment(fragment_error(sentence, code, False), code)
            drive(pool.scheduler.cancel(task_id, state=State.FAILED, kind="error", end=end, why="admin"))
            remembered = pool.world.call("HGET", pool.world.keys("failure", id=task_id), "er")
            assert remembered.decode() == (shown if code == "UPSTREAM_ERROR" else sentence[:MAX_CHARS])


def test_each_failure_is_told_by_the_gateway_alone_or_cut() -> None:
    assert FAILURES.keys() - FAILURE_CODES.keys() == OWN


def test_the_words_are_found_as_they_are_looked_for() -> None:
    assert all(word.isalnum() and word.isascii() and word == word.lower() for word in WORDS)
    assert UNQUOTED_CHARS < MAX_CHARS
