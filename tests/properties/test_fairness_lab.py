"""The laboratory itself: its workloads are the paper's, its plain policies do as they say, its document shows what it finds."""

import hashlib
import struct
from pathlib import Path

import pytest
from bench.fairness import report
from bench.fairness.comparison import PLAIN, Row
from bench.fairness.measures import jain, percentile, service_difference
from bench.fairness.policies import Fcfs, Lcf, RoundRobin, Vtc
from bench.fairness.simulator import SECOND, Policy, Request, simulate
from bench.fairness.workloads import WORKLOADS

from fairlane.gateway.accounts.callers import Callers
from fairlane.gateway.settings import CallerKey, Settings

DOCUMENT = (Path(__file__).resolve().parents[2] / "bench" / "fairness" / "RESULTS.md").read_text()

FINGERPRINTS = {
    "overload": "9e1af45268f3937a",
    "overload-multi": "9e963426fa054277",
    "on_off_overload": "4502c8063cc3c5ec",
    "short_long": "271c13a79ab28b01",
    "short_long_2": "fb0ff89cb0f4be9c",
    "weighted": "0f03fd50d5b6e448",
    "proportional": "71f90772e2551e35",
    "on_off_less": "2e0db0775748d64f",
    "increase": "178504a0d929340b",
    "dist_shift": "acb75dcdddf0c093",
}
"""Of the artifact's requests: time in microseconds, client, tokens in and out, in the order of time."""


def fingerprint(requests: tuple[Request, ...]) -> str:
    packed = b"".join(
        struct.pack("<qiii", r.at_us, int(r.client.split()[1]) - 1, r.input, r.output) for r in requests
    )
    return hashlib.sha256(packed).hexdigest()[:16]


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_a_workload_is_the_artifacts_request_by_request(name: str) -> None:
    assert fingerprint(WORKLOADS[name]().requests) == FINGERPRINTS[name]


def test_the_document_lists_the_workloads() -> None:
    workloads = [make() for make in WORKLOADS.values()]
    assert [workload.name for workload in workloads] == list(WORKLOADS)
    assert report.block(DOCUMENT, "workloads") == report.workload_table(workloads)


def test_the_document_shows_what_the_plain_policies_do() -> None:
    """Every figure can be had again, anywhere: two rows here, the others with `make fairness`."""
    for name in ("overload", "proportional"):
        workload = WORKLOADS[name]()
        row = Row.of(workload, [simulate(make(), workload.requests) for make in PLAIN])
        line = next(line for line in report.block(DOCUMENT, "rows").splitlines() if f"`{name}`" in line)
        cells = dict(zip(report.SIMULATED, [cell.strip() for cell in line.split("|")[4:-1]], strict=True))
        assert {name: report.cell(row.differences[name]) for name in row.runs} == {
            name: cells[name] for name in row.runs
        }


def test_the_document_shows_no_failed_check() -> None:
    assert "FAIL" not in report.block(DOCUMENT, "gates")


def order(policy: Policy, requests: list[Request]) -> list[str]:
    return [task.client for task in simulate(policy, requests, slots=1).granted()]


def test_plain_policies_serve_in_their_order() -> None:
    """One slot. a sends a long task and two short ones, then b and c come with short ones."""
    requests = [Request(0, "a", 0, 100), Request(1, "a", 0, 10), Request(2, "a", 0, 10)]
    requests += [Request(3, "b", 0, 10), Request(4, "b", 0, 10), Request(5, "c", 0, 10)]
    assert order(Fcfs(), requests) == ["a", "a", "a", "b", "b", "c"]
    assert order(RoundRobin(), requests) == ["a", "a", "b", "c", "a", "b"]
    assert order(Lcf(), requests) == ["a", "b", "c", "b", "a", "a"]


def test_vtc_lifts_a_client_that_returns() -> None:
    """b comes when a has had 30 tasks: LCF serves b alone until it has as much, VTC both in turn."""
    requests = [Request(0, "a", 0, 10) for _ in range(60)]
    requests += [Request(30 * 10 * 45_000 - 1, "b", 0, 10) for _ in range(20)]
    assert order(Lcf(), requests)[30:50] == ["b"] * 20
    served = order(Vtc(), requests)[30:50]
    assert abs(served.count("b") - 10) <= 1


def test_service_difference_by_hand() -> None:
    """One slot, one token a second. Each client asks for 2 tokens of service every second; FCFS serves only the first to come."""
    requests = [Request(0, "first", 0, 600, token_us=SECOND)]
    requests += [Request(n * SECOND, "second", 0, 1, token_us=SECOND) for n in range(600)]
    found = service_difference(simulate(Fcfs(), requests, slots=1), 600)
    assert found.most == pytest.approx(2, abs=0.1)
    assert found.mean == pytest.approx(2, abs=0.1)
    assert service_difference(simulate(Fcfs(), requests, slots=1), 600, {"first": 2.0}).most == pytest.approx(
        1, abs=0.1
    )


def test_small_measures() -> None:
    assert jain([1, 1, 1, 1]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert percentile([4, 1, 3, 2], 0.5) == 2
    assert percentile([4, 1, 3, 2], 0.99) == 4


def test_invented_names_are_one_user_unless_the_key_vouches_for_them() -> None:
    """So a key that is not delegating competes as one user, whatever names it sends."""
    secret = "s" * 32
    digest = hashlib.sha256(secret.encode()).hexdigest()

    def users(*, delegating: bool) -> set[str]:
        callers = Callers(Settings(keys=[CallerKey(id="acme", delegating=delegating, sha256=digest)]))
        heads = [{b"authorization": f"Bearer {secret}", b"x-fairlane-user": f"user {n}"} for n in range(20)]
        return {callers.authenticate(head.get).user for head in heads}

    assert users(delegating=False) == {"acme"}
    assert len(users(delegating=True)) == 20
