"""The checks of the documentation: links of the site, words and readability."""

from checks.pages import measure
from checks.site import staged


def test_links_lead_to_pages_of_the_site_or_to_the_repository() -> None:
    source = "https://github.com/fairlane/fairlane"
    page = staged(
        "docs/workers.md",
        "[a](models.md#b) [c](../workers/PROTOCOL.md#d) [e](../bench/README.md) [f](https://x.y)",
    )
    assert (
        page
        == f"[a](models.md#b) [c](protocol.md#d) [e]({source}/blob/main/bench/README.md) [f](https://x.y)"
    )
    assert staged("workers/PROTOCOL.md", "[a](../docs/errors.md#B)") == "[a](errors.md#B)"
    assert staged("docs/index.md", '<img src="images/a.png">') == '<img src="images/a.png">'


def test_marks_for_the_tests_of_blocks_do_not_reach_the_site() -> None:
    assert (
        staged("docs/index.md", "<!-- test: not run, it needs a GPU -->\n```sh\nx\n```\n")
        == "```sh\nx\n```\n"
    )


def test_only_prose_is_measured() -> None:
    page = measure(
        "# Head\n\nThe cat sat. The dog ran.\n\n| a | b |\n|---|---|\n\n```sh\nmake incomprehensibilities\n```\n"
    )
    assert (page.prose, page.words) == (6, 12)
    assert page.ease > 100


def test_long_words_and_sentences_lower_the_figure() -> None:
    plain = measure("The gateway keeps the order. It sends one request at a time.")
    dense = measure(" ".join(["Comprehensive organisational considerations necessitate"] * 8) + ".")
    assert dense.ease < 0 < 50 < plain.ease
    assert len(dense.long_sentences) == 1
