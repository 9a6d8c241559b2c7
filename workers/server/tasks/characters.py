"""Halves of characters in output text, kept until they meet. Pure."""


class SplitCharacters:
    """Joins the halves of characters that were split between deltas of the same choice and kind."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, str], str] = {}

    def join(self, index: int, kind: str, text: str) -> str:
        """`text` behind the half that waited for it; a first half at its end is kept back. Whole characters only."""
        text = self._held.pop((index, kind), "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[index, kind] = text[-1]
            text = text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def rest(self) -> list[tuple[int, str]]:
        """Choice and kind of the halves that still wait; they are forgotten: each stands for one U+FFFD."""
        held, self._held = list(self._held), {}
        return held
