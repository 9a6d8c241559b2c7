"""Every code that the gateway returns is in the table that explains it, with the status of its rejections."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from fairlane.gateway.error_codes import ERROR_CODES, GROUPS
from fairlane.queues.failures import FAILURES

GATEWAY = Path(__file__).parents[3] / "gateway"
CONFLICT = 409


def rejected(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each status and code that stand next to each other in a call or a tuple."""
    for node in ast.walk(tree):
        parts = getattr(node, "args", None) if isinstance(node, ast.Call) else getattr(node, "elts", None)
        if not isinstance(parts, list):
            continue
        values = [part.value if isinstance(part, ast.Constant) else None for part in parts]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_conflict":
            values = [CONFLICT, *values]
        for status, code in itertools.pairwise(values):
            if isinstance(status, int) and 400 <= status < 600 and re.fullmatch("[A-Z_]+", str(code)):
                yield status, str(code)


def test_the_table_has_every_code_with_its_status() -> None:
    found = {
        pair
        for file in GATEWAY.rglob("*.py")
        if file.name != "error_codes.py"
        for pair in rejected(ast.parse(file.read_text()))
    }
    assert len(found) > 60
    assert {pair for pair in found if ERROR_CODES[pair[1]].rejects != pair[0]} == set()
    assert set(FAILURES) <= set(ERROR_CODES)


def test_each_code_has_a_group_and_can_be_returned() -> None:
    for row in ERROR_CODES.values():
        assert row.group in GROUPS
        assert row.rejects or row.code in FAILURES, row.code


def test_statuses_are_those_of_each_api() -> None:
    busy, worker, prompt = ERROR_CODES["QUEUE_FULL"], ERROR_CODES["NO_WORKER"], ERROR_CODES["CONTEXT_LENGTH"]
    assert [busy.statuses(api) for api in ("native", "openai", "anthropic")] == [[503], [503], [529]]
    assert worker.statuses("native") == [503, 500]
    assert (prompt.statuses("native"), prompt.statuses("openai")) == ([500], [400])
    assert prompt.v1_code == "context_length_exceeded"
