"""Names of idempotency keys, and failure codes that release a key."""

from fairlane.queues.failures import FAILURES
from fairlane.queues.idempotency import RELEASES_KEY, idempotency_name


def test_each_user_and_each_api_key_has_keys_of_its_own() -> None:
    owners = (("k", "u", "x"), ("k", "u2", "x"), ("k2", "u", "x"), ("ku", "", "x"))
    assert len({idempotency_name(*owner) for owner in owners}) == len(owners)
    assert idempotency_name("a", "bc", "d") != idempotency_name("ab", "c", "d")


def test_all_time_outs_release_a_key_and_no_fault_of_a_request_does() -> None:
    assert {code for code in FAILURES if code.endswith("_TIMEOUT")} | {"STREAM_STALLED"} <= RELEASES_KEY
    assert {"NO_WORKER", "MODEL_TOO_BUSY", "WORKER_LOST", "STORE_LOST", "GATEWAY_STOPPING"} <= RELEASES_KEY
    final = {
        "BAD_REQUEST",
        "CONTEXT_LENGTH",
        "CONTENT_FILTERED",
        "CANCELLED",
        "WORKER_ERROR",
        "OUTPUT_TOO_LARGE",
    }
    assert not final & RELEASES_KEY
