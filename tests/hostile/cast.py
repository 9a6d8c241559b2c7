"""Who takes part: keys, tokens, models, and the settings of the gateway that they meet."""

from hashlib import sha256
from typing import Any

GOOD, OTHER_GOOD = "alice", "carol"
"""Well-behaved callers."""
HOSTILE = ("mallory", "site", "ops")
"""Keys that attackers use: an ordinary, a delegating and an admin one."""
VICTIM = "bob"
"""Whose tasks attackers try to read."""
CANARY = b"canary-"
"""Begins what the well-behaved and the victim write. Who else reads it has read what is not theirs."""

GOOD_WORKER, PLAIN_WORKER, ANY_WORKER, ROGUE_WORKER = "good", "plain-worker", "any", "rogue"
"""Worker tokens: for models that must work, for that of version 1, for all models, for those that attackers spoil."""

STREAMING, SLOW, PLAIN, RAW, ROGUE, LAB, ROUTE = "echo", "sim", "plain", "raw", "rogue", "lab", "route"
CHAIN = "steps"
"""Models: of the echo and simulate workers, of a version 1 and a raw version 2 worker, of attackers, and one without workers."""
WORKING = (STREAMING, SLOW, PLAIN, RAW)
LAB_QUEUES = ("lab_stream", "lab_batch", "lab_vision")
"""Queues that nobody uses, so that an attacker with an admin's key may change them."""

NOBODYS = "01a1fc1b-0232-8009-84a9-bfa34c29bda8"
NOBODYS_FILE = "file-01a1fc1b02328009a4a9bfa34c29bda8"
NO_BATCH = f"batch_{'0' * 32}"
"""Valid ids of a task, a file and a batch that do not exist."""

RESULT_TTL_MS = 10_000
"""Long enough for a slow machine to read a result, short enough to see it go."""
LONGEST_MS = 10_000
"""No task takes longer."""


def secret(name: str) -> str:
    """The key or token of somebody."""
    return f"hostile-run-{name}-0123456789abcdef"


def settings(**changes: Any) -> dict[str, Any]:
    """The gateway's settings: the defaults, but for what would make the end of a run take long, and for `changes`."""

    def key(name: str, **more: Any) -> dict[str, Any]:
        return {"id": name, "sha256": sha256(secret(name).encode()).hexdigest(), **more}

    queues = {name: {"tier": "lab", "mode": name.partition("_")[2]} for name in LAB_QUEUES}
    return {
        "keys": [
            key(GOOD, tier="paid"),
            key(OTHER_GOOD, tier="paid"),
            key("mallory"),
            key("bob"),
            key("site", delegating=True),
            key("ops", scopes=["admin"]),
            key("watch", scopes=["admin"]),
        ],
        "workers": [
            key(GOOD_WORKER, models=[STREAMING, SLOW, RAW]),
            key(PLAIN_WORKER, models=[PLAIN]),
            key(ANY_WORKER),
            key(ROGUE_WORKER, models=[ROGUE]),
        ],
        "models": {LAB: {}, ROGUE: {"fallbacks": [STREAMING]}},
        "routes": {ROUTE: {"model": STREAMING, "max_output_tokens": 50, "vision": {"model": RAW}}},
        "templates": {
            ROUTE: {
                "messages": [
                    {"role": "user", "content": "{{ text }}{% for one in list %}{{ one }}{% endfor %}"}
                ]
            }
        },
        "chains": {
            CHAIN: {
                "stages": [
                    {
                        "name": "each",
                        "each": "list",
                        "model": STREAMING,
                        "messages": [{"role": "user", "content": "{{ item }}"}],
                    },
                    {
                        "name": "last",
                        "model": STREAMING,
                        "messages": [{"role": "user", "content": "{{ text }}{{ stages.each.content }}"}],
                    },
                ]
            }
        },
        "queues": queues,
        "task_result_ttl_ms": RESULT_TTL_MS,
        "max_result_ttl_ms": RESULT_TTL_MS,
        "idempotency_ttl_ms": RESULT_TTL_MS,
        "min_task_timeout_ms": 1000,
        "task_timeout_ms": LONGEST_MS,
        "max_task_timeout_ms": LONGEST_MS,
        "pending_ttl_ms": LONGEST_MS,
        "linger_ms": 3000,
        "drain_ms": 0,
        **changes,
    }
