"""What operators see of the sentence with which a task failed: its caller reads it whole. Pure; the scripts have the same words.

What a worker or its upstream says may quote the request, and prompts stand in no log. So of their sentences is shown what stands
before the first colon, equals sign, quotation mark, bracket or end of a line, at most UNQUOTED_CHARS of it; behind a colon or a
bracket go on the words that errors are made of, up to the first other one:
`The upstream answered 401: Incorrect API key provided`.
"""

import re

from fairlane.queues.failures import FAILURES

OWN = frozenset(code for code, row in FAILURES.items() if not row.worker)
"""Failures that the gateway alone tells; no worker may."""
MAX_CHARS = 300
UNQUOTED_CHARS = 80
_WORDS = """
a an the of in on to for by with without at from or and not no is are was were be been has had have does do can cannot could may
while too all any other its this that end most name known again later

error errors exception failed fails failure failures fault fatal invalid incorrect wrong bad unknown unexpected unsupported
unavailable available missing required provided expired revoked denied refused rejected disabled exceeded reached insufficient
exhausted empty full large long many internal temporary temporarily currently overloaded busy down dead unhealthy

api key keys token tokens access authentication authorization authenticate unauthorized forbidden permission credentials account
billing balance credit credits quota limit limits rate plan payment
400 401 402 403 404 405 408 409 413 422 429 500 501 502 503 504 520 529

server service gateway upstream backend endpoint engine worker process runner instance host proxy model models version v1
request requests response input output prompt template context length size slot slots queue capacity

connection connections connect connecting attempt attempts reset closed peer disconnected sending send receive read write
timeout timed out time deadline aborted broken pipe complete incomplete chunked message body header headers network unreachable
address resolution resolve dns ssl tls certificate verify self signed eof protocol
connecterror connecttimeout readerror readtimeout writeerror writetimeout pooltimeout remoteprotocolerror localprotocolerror

memory cuda gpu device vram ram oom allocate allocation tried kernel driver illegal terminated crashed killed exited exit code
status signal segmentation load loading loaded start starting started stopped running found exist exists processing
file directory disk space left import module library shared runtime assertion enginedeaderror
"""
WORDS = frozenset(_WORDS.split())
"""What errors are made of, in small letters. None of them tells what a request was about."""
MARKS = '\n"`([{<\u00ab\u2018\u201a\u201c\u201e\u2039\u300a\u300c\u300e\uff02\uff08\uff1a\uff1d'
_QUOTE = re.compile(rf"""[{re.escape(MARKS)}]|[:=](?!/)|(?<!\w)'""")
_WORD = re.compile(r"[ :;,.()/_-]*([A-Za-z0-9]+)")
_CLOSE = re.compile(r"[).]*")


def for_operators(code: str, sentence: str) -> str:
    """As much of a failure's sentence as operators may see."""
    return sentence[:MAX_CHARS] if code in OWN else unquoted(sentence)


def unquoted(sentence: str) -> str:
    """As much as they may see of what a stranger says: a worker, its handler or its upstream, whatever the code."""
    quote = _QUOTE.search(sentence)
    if quote is None or quote.start() > UNQUOTED_CHARS:
        return sentence[:UNQUOTED_CHARS].rstrip(" ,")
    begin = end = quote.start()
    while (word := _WORD.match(sentence, end)) and word.end() <= MAX_CHARS and word[1].lower() in WORDS:
        end = word.end()
    if end > begin and (close := _CLOSE.match(sentence, end)):
        end = close.end()
    return sentence[:end].rstrip(" ,")


def sentences_in_lua() -> str:
    """The same codes, words and numbers for the scripts."""

    def table(values: frozenset[str]) -> str:
        return ", ".join(f"['{value}'] = true" for value in sorted(values))

    quotes = ", ".join("'" + "".join(f"\\{byte}" for byte in mark.encode()) + "'" for mark in MARKS)
    return "\n".join(
        [
            f"local OWN_SENTENCE = {{ {table(OWN)} }}",
            f"local MAX_CHARS, UNQUOTED_CHARS = {MAX_CHARS}, {UNQUOTED_CHARS}",
            f"local QUOTES = {{ {quotes} }}",
            f"local WORDS_OF_ERRORS = {{ {table(WORDS)} }}",
            "",
        ]
    )
