"""Requests made from the OpenAPI document: each answer must be one that the document names, with its headers and schema."""

import warnings
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisException
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.contract.gateway import Gateway

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = "/api/admin/events"


def is_tried(operation: Any) -> bool:
    """Whether a call neither streams without end nor changes the gateway for the tests that follow."""
    path: str = operation.path
    return path != ENDLESS and (operation.method.upper() == "GET" or not path.startswith("/api/admin/"))


def faults(operation: Any, mode: schemathesis.GenerationMode, number: int, url: str) -> list[str]:
    """Send requests of one call. Return what was not answered as the document says."""

    @seed(1)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        answer = case.call(base_url=url, timeout=15, allow_redirects=False)
        case.validate_response(answer, checks=CHECKS)

    try:
        send()
    except FailureGroup as group:
        return [f"{operation.label}: {failure}" for failure in group.exceptions]
    except HypothesisException:  # a call without parameters has nothing that can be wrong
        assert mode is schemathesis.GenerationMode.NEGATIVE, operation.label
    return []


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_one_that_the_document_names(
    gateway: Gateway, mode: schemathesis.GenerationMode, request: pytest.FixtureRequest
) -> None:
    number = 10 if request.config.getoption("--nightly") else 1
    document = httpx2.get(f"{gateway.url}/openapi.json", trust_env=False).json()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calls = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
        wrong = [
            fault for call in calls if is_tried(call) for fault in faults(call, mode, number, gateway.url)
        ]
    assert not wrong, "\n".join(wrong)
    assert len(calls) > (40 if request.config.getoption("--without") else 80)
