"""Sizes that may not grow without an edit of `checks/ratchet.txt`; `python -m checks.ratchet --write` rewrites it.

Each line of the file is a number and what it counts. `make check` fails when the tree has more of something than the file says;
a change that needs more edits the file, where the reviewer sees it. Vendored files do not count. Lines are written in full
hundreds, so that not every change edits the file.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from checks.words import PRODUCT, ROOT

FILE = Path(__file__).parent / "ratchet.txt"
COUNTED = (".py", ".lua", ".js", ".css", ".html", ".ts")
MAX_METHODS = 30
MAX_FUNCTION_LINES = 60


def sources(top: str) -> Iterator[Path]:
    for file in sorted((ROOT / top).rglob("*")):
        if file.suffix in COUNTED and not {"vendor", "node_modules", "__pycache__"} & set(file.parts):
            yield file


def count() -> Counter[str]:
    """Count each measure in the work tree."""
    found: Counter[str] = Counter()
    for top in (*PRODUCT, "tests"):
        for file in sources(top):
            text = file.read_text()
            found[f"lines of {top}"] += text.count("\n")
            if file.suffix == ".py" and top != "tests":
                _shapes(ast.parse(text), found)
    found["record fields shorter than three letters"] = len(short_fields())
    return found


def _shapes(tree: ast.Module, found: Counter[str]) -> None:
    for statement in tree.body:
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        found["module constants"] += sum(isinstance(name, ast.Name) and name.id.isupper() for name in targets)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = sum(isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) for member in node.body)
            found[f"classes above {MAX_METHODS} methods"] += methods > MAX_METHODS
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            found[f"functions above {MAX_FUNCTION_LINES} lines"] += lines > MAX_FUNCTION_LINES


def short_fields() -> list[str]:
    """Return names of fields in the tables of `queues/keys.py` whose letters number fewer than three."""
    tables = [
        statement.value
        for statement in ast.parse((ROOT / "queues" / "keys.py").read_text()).body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict)
    ]
    names = [str(key.value) for table in tables for key in table.keys if isinstance(key, ast.Constant)]
    letters = {name: re.sub(r"\{.*?\}|[^a-z]", "", name, flags=re.IGNORECASE) for name in names}
    return [name for name, left in letters.items() if len(left) < 3 and left != "id"]


def main() -> int:
    found = count()
    if "--write" in sys.argv:
        for name in found:
            if name.startswith("lines of"):
                found[name] += -found[name] % 100
        FILE.write_text("".join(f"{number:7} {name}\n" for name, number in sorted(found.items())))
        return 0
    allowed = {
        name: int(number)
        for number, _, name in (line.strip().partition(" ") for line in FILE.read_text().splitlines())
    }
    grown = [
        f"{name}: {number}, allowed are {allowed.get(name, 0)}"
        for name, number in found.items()
        if number > allowed.get(name, 0)
    ]
    for line in sorted(grown):
        print(line)
    if grown:
        print("Make it smaller, or edit checks/ratchet.txt and say why.")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
