"""The template engine: Jinja's sandbox, with a size and a time limit. Pure.

Templates are the operator's, and trusted. Variables are callers': a variable is data, and never read as a template. A caller can
fill a place with a large value all the same, so the size of the texts of a prompt and the time of each text are limited.
"""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairlane.gateway.prompts.errors import TemplateError

MAX_CHARS = 16 << 20
"""Of all texts of one prompt together, if there is no other limit."""
MAX_SECONDS = 0.15
"""Of the processor, until the last part of a text is written: the event loop waits meanwhile."""
MAX_TEMPLATE_CHARS = 262_144
_FILTERS = (
    *("capitalize", "count", "default", "d", "dictsort", "first", "float", "int", "items", "join"),
    *("last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse"),
    *("round", "select", "selectattr", "sort", "string", "sum", "tojson", "trim", "truncate"),
    *("unique", "upper"),
)
"""Filters whose work grows no faster than the value that they are given."""
_NOT_HERE = (
    *(nodes.Call, nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends),
    *(nodes.Block, nodes.Macro, nodes.CallBlock),
)
"""A call of a text method with a variable's length could make gigabytes of a word."""


class Budget:
    """The bytes that the texts of one prompt, or something else, may still have."""

    def __init__(self, size: int = MAX_CHARS, what: str = "the prompt") -> None:
        """`size`: bytes of all texts together, in UTF-8."""
        self.size = self.most = size
        self._what = what

    def take(self, text: str) -> str:
        """Count a text. Raise TemplateError."""
        self.count(len(text) if text.isascii() else len(text.encode(errors="surrogatepass")))
        return text

    def put(self, value: Any) -> Any:
        """Count a value that becomes part of a request as it is. Raise TemplateError."""
        if isinstance(value, str):
            return self.take(value)
        try:
            size = len(msgspec.json.encode(value))
        except (TypeError, ValueError, RecursionError):
            raise TemplateError(
                "a value cannot be written as JSON: a stage has content, result and json"
            ) from None
        self.count(size)
        return value

    def count(self, size: int) -> None:
        """Count bytes. Raise TemplateError."""
        self.size -= size
        if self.size < 0:
            raise TemplateError(f"{self._what} would have more than {self.most} bytes")


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
        self.filters = {name: self.filters[name] for name in _FILTERS}
        self.globals = {}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Calculate. A variable must not multiply a text or make a number of any length."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if not numbers or operator == "**" or max(abs(left), abs(right)) > 2**53:
            raise TemplateError(f"{operator} is for numbers of moderate size here")
        return super().call_binop(context, operator, left, right)


_sandbox = _Sandbox()


class Text:
    """One text with places to fill in. `variables`: those that it names anywhere. `reads`: the parts that it reads of them, where
    these are constant: `("stages", "ocr", "content")`."""

    __slots__ = ("_path", "_plain", "_template", "reads", "variables")

    def __init__(self, source: str) -> None:
        """Raise TemplateError."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(f"the text has more than {MAX_TEMPLATE_CHARS} characters")
        self.variables: frozenset[str] = frozenset()
        self.reads: frozenset[tuple[str, ...]] = frozenset()
        has_places = any(mark in source for mark in ("{{", "{%", "{#"))
        self._plain = None if has_places else source
        self._path: tuple[str, ...] | None = None
        if self._plain is not None:
            return
        try:
            tree = _sandbox.parse(source)
            self.variables = frozenset(meta.find_undeclared_variables(tree))
        except TemplateSyntaxError as error:
            raise TemplateError(f"line {error.lineno}: {error.message}") from None
        except RecursionError:
            raise TemplateError("it is nested too deeply") from None
        for node in tree.find_all(_NOT_HERE):
            raise TemplateError(
                f"line {node.lineno}: calls, include, import, extends, block and macro are not for prompts; use filters"
            )
        read = map(_path_of, tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)))
        self.reads = frozenset(filter(None, read))
        match tree.body:
            case [nodes.Output(nodes=[node])]:
                self._path = _path_of(node)
        for loop in tree.find_all(nodes.For):  # so that `render` compares the time in each round
            loop.body.insert(0, nodes.Output([nodes.TemplateData("")]))
        try:
            self._template = _sandbox.from_string(tree)
        except (JinjaError, RecursionError, SyntaxError) as error:
            raise TemplateError(str(error)) from None

    def value(self, variables: Mapping[str, Any], budget: Budget, *, part: bool = True) -> Any:
        """Return the value of a text that is only one place, also a list or an object; of any other text as `render`. `part`: it
        becomes a part of a prompt, so it must be JSON, and counts. Raise TemplateError."""
        if self._path is None:
            return self.render(variables, budget)
        return budget.put(self._found(variables)) if part else self._found(variables)

    def _found(self, variables: Mapping[str, Any]) -> Any:
        assert self._path is not None
        name, *parts = self._path
        if name not in variables:
            raise TemplateError(f"{name!r} is undefined")
        value = variables[name]
        for part in parts:
            value = _sandbox.getattr(value, part)
            if isinstance(value, Undefined):
                raise TemplateError(f"{'.'.join(self._path)} is undefined")
        return value

    def render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        """Return the text with its places filled in. Raise TemplateError."""
        if self._plain is not None:
            return budget.take(self._plain)
        until, parts = time.thread_time() + MAX_SECONDS, []
        try:
            for part in self._template.generate(variables):
                parts.append(budget.take(part))
                if time.thread_time() > until:
                    raise TemplateError(f"the text takes longer than {MAX_SECONDS} s")
        except TemplateError:
            raise
        except JinjaError as error:
            raise TemplateError(str(error)) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # a filter or an operator cannot use a variable of this type
            reason = f"a variable has another form than it expects ({type(error).__name__}: {error}"
            raise TemplateError(f"{reason[:300]})") from None
        return "".join(parts)


def _path_of(node: nodes.Node) -> tuple[str, ...] | None:
    """`a.b['c']` as its parts; None for anything else."""
    match node:
        case nodes.Name():
            return (node.name,)
        case nodes.Getattr():
            before, part = _path_of(node.node), node.attr
        case nodes.Getitem(arg=nodes.Const(value=str() as part)):
            before = _path_of(node.node)
        case _:
            return None
    return None if before is None else (*before, part)
