"""What callers are told of a chain."""

import msgspec
import pytest

from fairlane.gateway.chains.fields import chain_fields, place_of_chain
from fairlane.gateway.chains.plan import Head, HeadStage, encode
from fairlane.gateway.chains.results import Outcome, room_for_values, text_of
from fairlane.gateway.prompts.errors import TemplateError
from fairlane.queues.chains import Chain, Stage
from fairlane.queues.tasks import Place, State, Used, WaitEstimate

HEAD = Head([HeadStage("a", "A", each=True), HeadStage("b", "B"), HeadStage("c", "C")], "name")


def chain(
    state: State, now: int, results: dict[tuple[int, int], bytes], parts: int = 0, done: int = 0
) -> Chain:
    used = dict.fromkeys(results, Used(1, 2))
    stage = Stage(now, HEAD.stages[now].name)
    return Chain(state, stage, 3, parts, parts, done, b"", encode(HEAD), results, used)


@pytest.mark.parametrize(
    ("known", "statuses"),
    [
        (chain(State.QUEUED, 0, {}), "queued waiting waiting"),
        (chain(State.QUEUED, 0, {(0, 1): b"1"}, parts=2, done=1), "executing waiting waiting"),
        (chain(State.EXECUTING, 1, {}), "skipped executing waiting"),
        (chain(State.QUEUED, 2, {(0, 0): b"1", (0, 1): b"2"}), "completed skipped queued"),
        (chain(State.COMPLETED, 1, {(1, -1): b"1"}), "skipped completed skipped"),
        (chain(State.FAILED, 1, {(0, -1): b"1"}), "completed failed skipped"),
        (chain(State.CANCELLED, 2, {(1, -1): b"1"}), "skipped completed cancelled"),
    ],
)
def test_each_stage_stands_so(known: Chain, statuses: str) -> None:
    told = chain_fields(known)
    assert " ".join(stage["status"] for stage in told["stages"]) == statuses


def test_the_end_has_results_by_name_and_the_usage_of_all() -> None:
    told = chain_fields(chain(State.COMPLETED, 1, {(0, -1): b'{"x":1}', (1, -1): b'"y"'}))
    assert msgspec.json.decode(told["results"]) == {"a": [{"x": 1}], "b": "y"}
    assert told["usage"] == {"inputTokens": 2, "outputTokens": 4}
    assert told["stageStatus"] == "COMPLETED"
    told = chain_fields(chain(State.FAILED, 1, {(0, -1): b"1"}))
    assert (told["failedStage"], told["stageStatus"]) == ("b", "FAILED")
    assert "results" not in chain_fields(chain(State.EXECUTING, 1, {}))


def test_the_estimate_is_until_the_last_stage_begins() -> None:
    place, looks = (
        Place(2, 1000, 500, 2000),
        [WaitEstimate(0, 4000), WaitEstimate(300, 2000), WaitEstimate(50, 9000)],
    )
    assert place_of_chain(place, 0, -1, looks) == Place(2, 1000 + 4000 + 300 + 2000 + 50, 3675, 14_700)
    assert place_of_chain(place, 1, -1, looks).wait_ms == 1000 + 2000 + 50
    assert place_of_chain(place, 2, -1, looks) == place
    assert place_of_chain(place, 1, 500, looks).wait_ms == 1500 + 50
    assert place_of_chain(place, 1, 9000, looks).wait_ms == 50
    assert place_of_chain(place, 0, -1, [WaitEstimate(0, -1), *looks[1:]]).estimating
    assert place_of_chain(Place(1, -1, -1, -1), 0, -1, looks).estimating


def test_texts_read_of_a_stage_what_it_came_to() -> None:
    one = Outcome("s", [b'{"choices":[{"message":{"content":"[1]"}}]}'], room_for_values())
    assert (one.content, one.json, one.skipped) == ("[1]", [1], False)
    several = Outcome("s", [b'"a"', b'{"content":"b"}'], room_for_values(), each=True)
    assert (several.content, several.result, len(several.parts)) == ("a\n\nb", ["a", {"content": "b"}], 2)
    none = Outcome("s", [], room_for_values())
    assert (none.content, none.json, none.skipped) == ("", None, True)
    with pytest.raises(TemplateError, match="more than 10 bytes"):
        _ = Outcome("s", [b'"' + b"x" * 100 + b'"'], room_for_values(10)).result
    assert text_of(b'{"x":1}') == '{"x":1}'
