"""The chain that is killed: what it is made of, what callers ask, and what its answer must be then."""

import json
import random
from dataclasses import dataclass
from typing import Any

NAME = "job"
STAGES: list[dict[str, Any]] = [
    {"name": "ocr", "when": "pages", "each": "pages", "model": "eyes", "messages": "{{ item }}"},
    {"name": "proof", "when": "strict", "model": "sums", "messages": "{{ topic }}"},
    {
        "name": "summary",
        "model": "sums",
        "messages": "{{ topic }} {{ stages.ocr.content }} {{ stages.proof.content }}",
    },
    {"name": "match", "model": "chat", "stream": True, "messages": "{{ stages.summary.json.title }}"},
]
CHAIN: dict[str, Any] = {
    "stages": [{**stage, "messages": [{"role": "user", "content": stage["messages"]}]} for stage in STAGES]
}
NAMES = [stage["name"] for stage in STAGES]
BROKEN = "broken"
"""A page that nobody can read."""


@dataclass(frozen=True)
class Order:
    """What a caller wants."""

    topic: str
    pages: tuple[str, ...] = ()
    strict: bool = False

    @property
    def variables(self) -> dict[str, Any]:
        """Of the request."""
        pages = {"pages": list(self.pages)} if self.pages else {}
        return {"topic": self.topic, **pages, **({"strict": True} if self.strict else {})}

    @property
    def skipped(self) -> set[str]:
        """The stages that it has no need of."""
        return ({"ocr"} if not self.pages else set()) | ({"proof"} if not self.strict else set())

    def parts(self, stage: str) -> int:
        """How many parts a stage has; one of one part runs in place."""
        return len(self.pages) if stage == "ocr" else 1

    @property
    def text(self) -> str:
        """What the last stage writes, if all goes well: it has passed through each stage and part."""
        read = "\n\n".join(map(seen, self.pages))
        return f"{self.topic} {read} {summed_up(self.topic) if self.strict else ''}"


def seen(page: str) -> str:
    """What the first stage makes of a page."""
    return f"[{page}]"


def summed_up(text: str) -> str:
    """What the stages in place make of a text."""
    return json.dumps({"title": text})


def order(number: int, dice: random.Random) -> Order:
    """Somebody's wish, unlike any other."""
    pages = [f"{number}.{page}" for page in range(dice.choice((0, 1, 2, 3, 5)))]
    if pages and number % 20 == 0:
        pages[dice.randrange(len(pages))] = BROKEN
    return Order(f"topic {number}", tuple(pages), dice.random() < 0.5)
