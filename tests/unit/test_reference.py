"""The generated pages of the reference are what the program says."""

import pytest
from checks.reference import PAGES
from checks.words import ROOT


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_the_generated_one(name: str) -> None:
    page = (ROOT / "docs" / name).read_text()
    assert PAGES[name](page) == page, "run: python -m checks.reference"
