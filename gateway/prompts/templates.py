"""Templates of prompts: the messages of one, by locale, and the body that they make with a caller's variables. Pure."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from fairlane.gateway.prompts.engine import MAX_CHARS, Budget, Text
from fairlane.gateway.prompts.errors import TemplateError, VariablesError

KEPT_TEXTS = 512
"""Texts that stay compiled, which takes some 20 KB each."""
MAX_VALUES_BYTES = 262_144
"""JSON of all variables that are no texts, together: they become objects."""


class Prompt(NamedTuple):
    """A rendered template."""

    body: dict[str, Any]
    """Members of OpenAI's body but for `model`, in its words."""
    locale: str
    """The locale of the messages that were used; '' = those for every locale."""


def mapped(value: Any, leaf: type, make: Callable[[Any], Any]) -> Any:
    """Return the same lists and objects, with `make` applied to each value of the type `leaf`."""
    match value:
        case list():
            return [mapped(one, leaf, make) for one in value]
        case dict():
            return {name: mapped(one, leaf, make) for name, one in value.items()}
        case _:
            return make(value) if isinstance(value, leaf) else value


def compiled(value: Any) -> Any:
    """Return the same lists and objects, with a `Text` for each text. Raise TemplateError."""
    return mapped(value, str, _text)


@functools.lru_cache(KEPT_TEXTS)
def _text(source: str) -> Text:
    """Return a text, cached: each use of its chain or template would compile it again."""
    return Text(source)


def texts_in(value: Any) -> list[Text]:
    """Return the texts of what `compiled` returned."""
    match value:
        case Text():
            return [value]
        case list():
            return [text for one in value for text in texts_in(one)]
        case dict():
            return [text for one in value.values() for text in texts_in(one)]
        case _:
            return []


class Template:
    """A template. Raises TemplateError, with its place, if it is invalid."""

    def __init__(
        self,
        name: str,
        messages: Mapping[str, Sequence[tuple[str, Any]]],
        *,
        default_locale: str = "",
        optional: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
        json_schema: Mapping[str, Any] | None = None,
    ) -> None:
        """`messages`: role and content of each, by locale; those of '' are for every other one."""
        self.name = name
        self.default_locale = default_locale
        self.parameters = dict(parameters or {})
        self.json_schema = json_schema
        self._configured = {locale: list(listed) for locale, listed in messages.items()}
        self._messages: dict[str, list[dict[str, Any]]] = {}
        """By locale: with a `Text` for each text of their contents."""
        for locale, listed in messages.items():
            made = self._messages[locale] = []
            for number, (role, content) in enumerate(listed):
                try:
                    made.append({"role": role, "content": compiled(content)})
                except TemplateError as error:
                    where = f"of locale {locale}" if locale else ""
                    raise TemplateError(f"message {number + 1} {where}".strip() + f": {error}") from None
        self.optional = frozenset(optional)
        identity = (messages, sorted(self.optional), self.parameters, default_locale, json_schema)
        canonical = msgspec.json.encode(identity, order="deterministic")
        self.version = hashlib.sha256(canonical).hexdigest()[:12]
        """Names its content: the same for the same content, on every replica."""

    @property
    def locales(self) -> list[str]:
        """The locales with messages of their own."""
        return sorted(filter(None, self._messages))

    def variables(self, locale: str = "") -> list[str]:
        """Return the variables of the messages for a locale."""
        return _variables(self._messages[self._used(locale)])

    @property
    def texts(self) -> list[Text]:
        """The texts of all messages."""
        return texts_in(list(self._messages.values()))

    @property
    def all_variables(self) -> list[str]:
        """The variables of all messages."""
        return _variables(list(self._messages.values()))

    def holds_image(self, variables: Mapping[str, Any], locale: str = "") -> bool:
        """Return whether the messages show an image: a given variable's, or always."""
        contents = [message["content"] for message in self._messages[self._used(locale)]]
        parts = [part for content in contents if isinstance(content, list) for part in content]
        images = [texts_in(part) for part in parts if "image_url" in part]
        if any(variables.get(name) for texts in images for name in _variables(texts)):
            return True
        return any(texts and not _variables(texts) for texts in images)

    def _used(self, locale: str) -> str:
        """Return the locale whose messages are used for one: itself, its language, the one of all others, the default."""
        wanted = locale or self.default_locale
        choices = (wanted, wanted.replace("_", "-").partition("-")[0], "")
        return next((one for one in choices if one in self._messages), self.default_locale)

    def configured(self, locale: str = "") -> tuple[str, list[tuple[str, Any]]]:
        """Return the locale whose messages are used for a locale, and role and content of each, as they were configured."""
        used = self._used(locale)
        return used, self._configured[used]

    def render(
        self,
        variables: Mapping[str, Any],
        locale: str = "",
        most: int = MAX_CHARS,
        budget: Budget | None = None,
    ) -> Prompt:
        """Return the body that these variables make, with texts of at most `most` bytes, or within a shared `budget`. Raise
        VariablesError and TemplateError."""
        used = self._used(locale)
        known = self.variables(used)
        missing = [name for name in known if name not in variables and name not in self.optional]
        unknown = sorted(variables.keys() - set(known) - self.optional)
        if missing or unknown:
            raise VariablesError(missing, unknown, known)
        filled = {**dict.fromkeys(self.optional, ""), **variables}
        filled = {name: "" if value is None else value for name, value in filled.items()}
        budget = budget or Budget(most)
        made = mapped(self._messages[used], Text, lambda text: text.render(filled, budget))
        for message in made:
            if isinstance(message["content"], list):
                message["content"] = [part for part in message["content"] if not _is_no_image(part)]
        body: dict[str, Any] = {"messages": made, **self.parameters}
        if self.json_schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": _schema_name(self.name), "schema": self.json_schema},
            }
        return Prompt(body, used)


def _variables(compiled_value: Any) -> list[str]:
    return sorted({name for text in texts_in(compiled_value) for name in text.variables})


def _is_no_image(part: dict[str, Any]) -> bool:
    """Return whether a part of a message is an image without a URL."""
    if part.get("type") != "image_url":
        return False
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, dict) else image
    return not (isinstance(url, str) and url.strip())


def _schema_name(name: str) -> str:
    """Return a name that OpenAI accepts: letters, digits, underscores and dashes, at most 64."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)[:64]


def read_variables(members: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the variables of a request, whose JSON is known to be valid. Raise TemplateError for values other than texts that
    are too large together, and for numbers out of range, such as 1e999."""
    found: dict[str, Any] = {}
    size = 0
    for name, raw in members.items():
        text = memoryview(raw)
        if bytes(text[:1]) != b'"':
            size += len(text)
            if size > MAX_VALUES_BYTES:
                raise TemplateError(
                    f"the variables that are no texts may have {MAX_VALUES_BYTES} bytes of JSON together"
                )
        try:
            found[name] = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TemplateError(f"the variable {name[:64]} cannot be read: {error}") from None
    return found
