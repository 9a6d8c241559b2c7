"""Values with places to fill in: conditions, lists, and JSON whose texts are templates. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from fairlane.gateway.prompts.engine import Budget, Text
from fairlane.gateway.prompts.errors import TemplateError
from fairlane.gateway.prompts.templates import compiled, mapped, texts_in

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_-]+)*")
_FALSE = frozenset({"", "false", "0", "none", "no", "[]", "{}"})


class Expression:
    """A condition or a list: a name (`image`, `stages.ocr.content`), or a text with places to fill in."""

    def __init__(self, source: str) -> None:
        """Raise TemplateError."""
        self.path = tuple(source.strip().split(".")) if _PATH.fullmatch(source.strip()) else ()
        if not self.path and "{" not in source:
            raise TemplateError("it should be a variable's name, or an expression in {{ }}")
        self.text: Text = compiled(_braced(self.path) if self.path else source.strip())

    def value(self, variables: Mapping[str, Any], budget: Budget) -> Any:
        """Return the value; None for an unknown name. Raise TemplateError."""
        if self.path and self.path[0] not in variables:
            return None
        return self.text.value(variables, budget, part=False)

    def holds(self, variables: Mapping[str, Any], budget: Budget) -> bool:
        """Return whether it is true: a text is unless it is empty or says that it is not (`False`, `0`, `none`, `no`). Raise
        TemplateError."""
        value = self.value(variables, budget)
        return value.strip().lower() not in _FALSE if isinstance(value, str) else bool(value)

    def items(self, variables: Mapping[str, Any], budget: Budget) -> list[Any]:
        """Return the list that is its value; [] for no value and an empty text. Raise TemplateError."""
        value = self.value(variables, budget)
        if value is None or (isinstance(value, str) and not value.strip()):
            return []
        if not isinstance(value, list | tuple):
            raise TemplateError(f"it should come to a list, and comes to {str(value)[:40]!r}")
        return list(value)


class Values:
    """Lists and objects as in JSON, whose texts are templates. One that is nothing but a value in braces gives that value."""

    def __init__(self, value: Any) -> None:
        """Raise TemplateError."""
        self._compiled = compiled(value)
        self.texts = texts_in(self._compiled)

    def filled(self, variables: Mapping[str, Any], budget: Budget) -> Any:
        """Return the lists and objects with their places filled in. Raise TemplateError."""
        return mapped(self._compiled, Text, lambda text: text.value(variables, budget))


def _braced(path: tuple[str, ...]) -> str:
    """Return a name with dots as a template reads it: also one with dashes."""
    name, *parts = path
    within = "".join(f"['{part}']" for part in parts)
    return f"{{{{ {name}{within} }}}}"
