"""The contract suite: what must not change while the inside does. Its tests name no internal module.

`store/` calls the public methods of the store on a real Redis, through one façade; `http/` speaks HTTP with a gateway;
`protocol/` speaks the worker protocol in both versions; `seeds/` holds the acceptance criteria of the seeds. A test that needs a
feature is marked with it (`feature("limits")`); a test without a mark is of the core. `--without limits,credits` leaves out the
tests of these features, and the gateway runs without them.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.gateway import Gateway, running_gateway
from tests.contract.store.store import DISABLED
from tests.support.features import with_dependents
from tests.support.servers import running_server

from fairlane.gateway.features import BY_NAME

ALWAYS_ON = {"prompts", "repair", "routes", "structured_output", "upstreams"}
"""Names of marks that `disabled_features` does not take."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without",
        default="",
        help="features, comma-separated, whose contract tests are left out (all: every feature)",
    )


def disabled_by(config: pytest.Config) -> frozenset[str]:
    """The features that the command line disables, with those that require them."""
    named = config.getoption("--without")
    return with_dependents(BY_NAME if named == "all" else filter(None, named.split(",")))


def pytest_configure(config: pytest.Config) -> None:
    """Load the store's library without the disabled features."""
    DISABLED.update(disabled_by(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a disabled feature."""
    disabled, left_out = disabled_by(config), []
    for item in items:
        needed = {name for mark in item.iter_markers("feature") for name in mark.args}
        if unknown := needed - BY_NAME.keys() - ALWAYS_ON:
            raise pytest.UsageError(f"{item.nodeid} is marked with an unknown feature: {unknown}")
        if needed & disabled:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway process on a Redis of its own, for all tests of the session."""
    settings: dict[str, Any] = {}
    if disabled := disabled_by(request.config):
        settings["disabled_features"] = sorted(disabled)
        settings |= {} if "endpoints" not in disabled else {"endpoints": {}}
    with (
        running_server() as redis,
        running_gateway(tmp_path_factory.mktemp("gateway"), redis.url, **settings) as gateway,
    ):
        yield gateway


@pytest.fixture(autouse=True)
def calm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave nothing to the next test that uses the gateway: no task and no worker."""
    yield
    if "gateway" in request.fixturenames:
        shared: Gateway = request.getfixturevalue("gateway")
        shared.calm()
