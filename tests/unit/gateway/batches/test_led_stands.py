"""How a batch stands, as who leads it writes it down."""

from typing import Any, cast

import msgspec

from fairlane.gateway.batches.batch import Batch, Status, whys_json
from fairlane.gateway.batches.led import Led, Tools
from fairlane.gateway.batches.work import Work
from fairlane.queues.clock import now_ms

NOBODY = cast(Tools, None)
"""Nothing is asked for anything."""


def a_batch(**values: Any) -> Batch:
    created = now_ms() - 3_600_000
    what = "batch_1", "acme", "acme", "free", "/v1/embeddings", "file-1", "24h"
    usual = {"model": "m", "status": Status.IN_PROGRESS, "total": 9, "began": 1, "leader": "a", "epoch": 1}
    return Batch(*what, created, created + 86_400_000, **{**usual, **values})


def test_who_leads_next_does_not_say_that_it_stood_still_from_then_on_only() -> None:
    since, waits = now_ms() - 600_000, {"NO_WORKER": ["m"]}
    led = Led(NOBODY, a_batch(epoch=2, still=since, whys=whys_json(waits)), lambda: True)
    assert led.stands == {"waiting": 0, "running": 0, "still": since, "whys": whys_json(waits)}
    led.still({"MODEL_UNAVAILABLE": ["m"]})
    assert led.stands["still"] == since
    assert msgspec.json.decode(led.stands["whys"]) == {"MODEL_UNAVAILABLE": ["m"]}
    led.moves(running=1)
    assert led.stands == {"waiting": 0, "running": 1, "still": 0, "whys": ""}
    led.still(waits)
    assert led.stands["still"] >= since + 600_000


def test_never_fewer_than_no_lines_wait() -> None:
    led = Led(NOBODY, a_batch(), lambda: True)
    work = Work(led, cast(Any, None), cast(Any, None), set())
    work.running = 2  # as of a look that the store cut short, behind which both have ended
    assert (len(work), work.waiting) == (0, 0)
