"""Which call a piece belongs to, and what a call looks like behind the entrance of the log."""

import json
from typing import Any

import pytest

from fairlane.streaming.tool_calls import MAX_CALLS, CallDeltas

TASK = "0191f0aa-1111-8222-8333-444455556666"
MADE = "call_0191f0aa111182228333444455556666"


def piece(index: Any, call_id: Any, name: Any = None, arguments: Any = None) -> dict[str, Any]:
    """A call delta without those of its members that are None."""
    function = {"name": name, "arguments": arguments}
    call = {
        "index": index,
        "id": call_id,
        "function": {key: value for key, value in function.items() if value is not None},
    }
    return {key: value for key, value in call.items() if value is not None}


def told(*pieces: Any) -> list[tuple[str, str, str]]:
    """Id, name and arguments of the calls that these pieces make up, each in a delta of its own; a client reads them by index."""
    deltas, calls = CallDeltas(TASK, 0), {}
    for listed in (*(deltas.normal(json.dumps([one]).encode()) for one in pieces), deltas.end()):
        for delta in json.loads(listed or b"[]"):
            index, function = delta["index"], delta["function"]
            if index not in calls:
                assert (index, delta["type"]) == (len(calls), "function")
                calls[index] = [delta["id"], function["name"], ""]
            else:
                assert not {"id", "type"} & delta.keys()
                assert function.keys() == {"arguments"}
            calls[index][2] += function["arguments"]
    return [tuple(call) for call in calls.values()]


NO = None


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        pytest.param(*case, id=name)
        for name, *case in [
            (
                "as OpenAI does",
                [(0, "a", "f", "{}"), (1, "b", "g", "{}")],
                [("a", "f", "{}"), ("b", "g", "{}")],
            ),
            (
                "one index for two ids, in turns",
                [(0, "a", "f", "{"), (0, "b", "f", "{"), (0, "a", NO, "}"), (0, "b", NO, "}")],
                [("a", "f", "{}"), ("b", "f", "{}")],
            ),
            (
                "indexes with gaps",
                [(1, "a", "f", "{"), (5, "b", "g", "{"), (1, NO, NO, "}"), (5, NO, NO, "}")],
                [("a", "f", "{}"), ("b", "g", "{}")],
            ),
            (
                "a tail with a foreign index",
                [(0, "a", "f", "{"), (7, NO, NO, "}"), (1, "b", "g", "{}")],
                [("a", "f", "{}"), ("b", "g", "{}")],
            ),
            (
                "ids alone",
                [(NO, "a", "f", "{"), (NO, "b", "g", "{"), (NO, "a", NO, "}"), (NO, "b", NO, "}")],
                [("a", "f", "{}"), ("b", "g", "{}")],
            ),
            (
                "indexes as strings",
                [("0", "a", "f", "{"), ("1", "b", "g", "{"), ("0", NO, NO, "}"), ("1", NO, NO, "}")],
                [("a", "f", "{}"), ("b", "g", "{}")],
            ),
            (
                "neither index nor id, arguments as objects",
                [(NO, NO, "f", {"a": 1}), (NO, NO, "f", {"a": 2}), (NO, NO, "g")],
                [(MADE + "0", "f", '{"a": 1}'), (MADE + "1", "f", '{"a": 2}'), (MADE + "2", "g", "")],
            ),
            (
                "empty ids and one index",
                [(0, "", "f", "{"), (0, "", "", "}"), (0, "", "f", "{}")],
                [(MADE + "0", "f", "{}"), (MADE + "1", "f", "{}")],
            ),
            (
                "id and name in each piece, and all once more",
                [(0, "a", "f", "{"), (0, "a", "f", "}"), (0, "a", "f", "{}")],
                [("a", "f", "{}")],
            ),
            (
                "one id for all",
                [(0, "a", "f", "{}"), (1, "a", "g", "{}"), (2, "a", "g", "{"), (2, NO, NO, "}")],
                [("a", "f", "{}"), (MADE + "1", "g", "{}"), (MADE + "2", "g", "{}")],
            ),
            ("a late name", [(0, "a", NO, ""), (0, NO, "f", ""), (0, NO, NO, "{}")], [("a", "f", "{}")]),
            (
                "another id in each piece",
                [(0, "a", "f", ""), (0, "b", NO, "{"), (0, "c", NO, "}"), (0, "d", "g", "{}")],
                [("a", "f", "{}"), ("d", "g", "{}")],
            ),
            (
                "a new id, and its name later",
                [(0, "a", "f", "{}"), (0, "b"), (0, "b", "g", "{}")],
                [("a", "f", "{}"), ("b", "g", "{}")],
            ),
            (
                "a name once more, without arguments",
                [(0, NO, "f", '{"a":1}'), (0, NO, "f", "")],
                [(MADE + "0", "f", '{"a":1}')],
            ),
            (
                "the same, and arguments of another call",
                [(NO, NO, "f", '{"a":1}'), (NO, NO, "f", ""), (NO, NO, NO, "{"), (NO, NO, NO, "}")],
                [(MADE + "0", "f", '{"a":1}'), (MADE + "1", "f", "{}")],
            ),
            (
                "an empty object first",
                [(0, "a", "f", "{}"), (1, "b", "g", "{}"), (0, "a", NO, '{"a'), (0, "a", NO, '":1}')],
                [("a", "f", '{"a":1}'), ("b", "g", "{}")],
            ),
            (
                "a name behind arguments",
                [(0, "a", NO, '{"a"'), (0, NO, NO, ":1"), (0, NO, "f", NO), (0, NO, NO, "}")],
                [("a", "f", '{"a":1}')],
            ),
            ("no name at all", [(NO, NO, NO, "{}")], [(MADE + "0", "", "{}")]),
            ("nothing", [(0, "a", "", ""), (NO, NO, NO)], []),
            ("an id that is a number", [(NO, 7, "f", "{}"), (NO, NO, NO, "x")], [("7", "f", "{}x")]),
        ]
    ],
)
def test_each_piece_goes_to_its_call(pieces: list[Any], calls: list[Any]) -> None:
    assert told(*(piece(*one) for one in pieces)) == calls


def test_what_is_no_call_is_left_out() -> None:
    assert told(None, 3, "x", {}, []) == []


def test_a_whole_list_in_one_delta_reads_like_its_pieces() -> None:
    calls = [piece(None, None, "weather", {"city": city}) for city in ("Paris", "Rome")]
    listed = json.loads(CallDeltas(TASK, 1).normal(json.dumps(calls).encode()) or b"")
    assert [(call["index"], call["id"]) for call in listed] == [(0, MADE + "400"), (1, MADE + "401")]


def test_an_id_that_is_made_has_at_most_40_characters() -> None:
    made = json.loads(CallDeltas(TASK, 1023).normal(json.dumps([piece(None, None, "f")]).encode()) or b"")
    assert made[0]["id"] == "call_" + (MADE + "ffc00")[-35:]


def test_a_choice_has_at_most_1024_calls() -> None:
    assert len(told(*(piece(None, f"c{number}", "f", "{}") for number in range(MAX_CALLS + 9)))) == MAX_CALLS


def test_a_custom_call_and_members_that_are_not_known_pass_through() -> None:
    deltas = CallDeltas(TASK, 0)
    first = {
        "index": 0,
        "id": "a",
        "type": "custom",
        "custom": {"name": "sh", "input": "l"},
        "extra_content": {"google": 1},
    }
    assert json.loads(deltas.normal(json.dumps([first]).encode()) or b"") == [first]
    more = {"index": 0, "custom": {"input": "s"}}
    assert json.loads(deltas.normal(json.dumps([{**more, "id": "a", "type": "custom"}]).encode()) or b"") == [
        more
    ]
