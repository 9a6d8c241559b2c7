"""The contract suite: what must not change while the inside does. Its tests name no internal module.

`store/` calls the public methods of the store on a real Redis, through one façade; `http/` speaks HTTP with a gateway;
`protocol/` speaks the worker protocol in both versions. A test that needs a feature is marked with it (`feature("limits")`); a
test without a mark is of the core. `--without limits,credits` leaves out the tests of these features.
"""

import pytest

FEATURES = frozenset(
    {
        *(
            "archive",
            "batches",
            "breakers",
            "chains",
            "credits",
            "endpoints",
            "fallbacks",
            "files",
            "idempotency",
            "limits",
        ),
        *(
            "media",
            "messages",
            "overrides",
            "pacing",
            "permits",
            "prompts",
            "repair",
            "responses",
            "routes",
            "signed_tokens",
        ),
        *("structured_output", "upstreams", "webhooks"),
    }
)
"""Names that marks may use."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without",
        default="",
        help="features, comma-separated, whose contract tests are left out (all: every feature)",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a disabled feature."""
    said = config.getoption("--without")
    disabled = FEATURES if said == "all" else frozenset(filter(None, said.split(",")))
    left_out = []
    for item in items:
        needed = {name for mark in item.iter_markers("feature") for name in mark.args}
        if needed - FEATURES:
            raise pytest.UsageError(f"{item.nodeid} is marked with an unknown feature: {needed - FEATURES}")
        if needed & disabled:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
