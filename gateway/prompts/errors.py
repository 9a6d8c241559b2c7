"""What may be wrong with a template, and with what is to be filled in."""

from collections.abc import Sequence


class TemplateError(ValueError):
    """A template, or what was to be filled in, cannot be used; the sentence says why."""


class VariablesError(Exception):
    """Variables do not fit their template: some are missing, or unknown."""

    def __init__(self, missing: Sequence[str], unknown: Sequence[str], known: Sequence[str]) -> None:
        parts = []
        if missing:
            parts.append(f"missing: {', '.join(missing)}")
        if unknown:
            parts.append(f"unknown: {', '.join(name[:64] for name in unknown[:10])}")
        super().__init__(f"{'; '.join(parts)}. It takes {', '.join(known) or 'none'}")
