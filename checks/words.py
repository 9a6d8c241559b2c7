"""Words and sentence openings that the project's prose avoids; `python -m checks.words` lists each use with its place, and fails
if there is one.

Read are docstrings, comments and texts of Python of the product and the benchmark, comments of Lua, comments and texts of
JavaScript and HTML, the pages of documentation without code, and files of deployments. A text in quotation marks or backticks
is a quotation and is not read.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PRODUCT = ("gateway", "queues", "streaming", "workers", "web")
CODE = (*PRODUCT, "bench")
PAGES = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    ".github",
    "Makefile",
    "compose.yaml",
    "docs",
    "workers",
    "deploy",
    "examples",
)

INSTEAD = {
    r"told|tells?|telling": "report, return, log, show",
    r"at once": "immediately, at the same time",
    r"so many": "N, this many",
    r"anew": "again",
    r"likewise": "also",
    r"beside": "next to, in addition to",
    r"mend(?:s|ed|ing)?": "fix",
    r"whom|whoever|whomever": "the noun",
    r"nobody|somebody|everybody": "no client, a worker, each user",
    r"thrice|amid|of late": "three times, during, recently",
    r"of which|of whom": "whose, with",
    r"goes on|go on|going on|went on": "continues",
    r"(?:is|are|was|were|be|been) away": "is unavailable",
    r"(?:take|takes|took|taken) back": "roll back",
    r"be it": "whether",
    r"for good": "permanently",
    r"again and again": "repeatedly",
    r"besides": "in addition to, also",
    r"in vain|for want of|lest": "without success, because there is no, so that … not",
    r"hears?": "receives",
    r"stands? still|stood still": "is stalled",
}
WORDS = [(re.compile(rf"\b(?:{words})\b", re.IGNORECASE), instead) for words, instead in INSTEAD.items()]

HEADLESS = re.compile(r"(?:^|[.:;!] +|\n\s*[-*#|]+ *)(?:Who|Whoever|Whose|Whom|Of wh\w+)\b(?![^.:;!\n]*\?)")
"""A statement that begins with a pronoun and no noun."""

QUOTED = re.compile(r"``[^`]*``|`[^`\n]*`|“[^”]*”|\"[^\"\n]*\"|«[^»]*»")
FENCE = re.compile(r"^```.*?^```|<!--.*?-->", re.MULTILINE | re.DOTALL)


class Finding(NamedTuple):
    path: str
    line: int
    found: str
    instead: str


def read(path: str, line: int, text: str) -> Iterator[Finding]:
    """Yield what a piece of prose that begins at `line` has of the list."""
    text = QUOTED.sub(lambda quote: re.sub(r"[^\n]", "_", quote[0]), text)
    for pattern, instead in [*WORDS, (HEADLESS, "name the actor")]:
        for match in pattern.finditer(text):
            yield Finding(path, line + text.count("\n", 0, match.start()), match[0].strip(), instead)


def python(path: str, text: str) -> Iterator[Finding]:
    """Read comments, docstrings, and each text of three words and more."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from read(path, token.start[0], token.string)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield from read(path, node.lineno, node.value)


def lua(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        if "--" in line:
            yield from read(path, number, line.partition("--")[2])


def script(path: str, text: str) -> Iterator[Finding]:
    """Read comments and texts with two spaces of JavaScript or HTML."""
    comments = r"/\*.*?\*/|(?<![:\"'])//[^\n]*|<!--.*?-->|>[^<>{}]+<"
    texts = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|`(?:[^`\\]|\\.)*`'
    for match in re.finditer(f"{comments}|{texts}", text, re.DOTALL):
        if match[0].count(" ") >= 2:
            yield from read(path, text.count("\n", 0, match.start()) + 1, match[0].strip("\"'`"))


def page(path: str, text: str) -> Iterator[Finding]:
    yield from read(path, 1, FENCE.sub(lambda block: "\n" * block[0].count("\n"), text))


READERS = {".py": python, ".lua": lua, ".js": script, ".html": script, ".ts": script, ".md": page}
OF_PAGES = {".md": page, ".yml": page, ".yaml": page, "": page}


def findings() -> Iterator[Finding]:
    """Yield each use in the product, its benchmark and its documents, by place."""
    for top in (*CODE, *PAGES):
        place = ROOT / top
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            wanted = (READERS if top in CODE else OF_PAGES).get(file.suffix)
            if wanted and file.is_file() and "vendor" not in file.parts and "node_modules" not in file.parts:
                yield from wanted(str(file.relative_to(ROOT)), file.read_text())


def main() -> int:
    folders = tuple(sys.argv[1:]) or ("",)
    found = sorted(finding for finding in set(findings()) if finding.path.startswith(folders))
    for finding in found:
        print(f"{finding.path}:{finding.line}: {finding.found!r}: {finding.instead}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
