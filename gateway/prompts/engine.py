"""The template engine: Jinja's sandbox, with bounds on what a text may come to and on how much it may do for it. Pure.

Templates are the operator's, variables are callers': a variable is data, and never read as a template. What a caller could make
large by filling a variable is bounded all the same: characters of the result, rounds of all loops together, and what single
operators and filters may build.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import (
    StrictUndefined,
    TemplateSyntaxError,
    UndefinedError,
    meta,
    nodes,
    pass_context,
    pass_environment,
)
from jinja2.exceptions import SecurityError
from jinja2.exceptions import TemplateError as JinjaError
from jinja2.filters import do_round, do_sum, do_tojson
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from fairlane.gateway.prompts.errors import TemplateError

MOST_CHARS = 16 << 20
"""Of all texts of one prompt together, where nobody says another number, and of a text that a filter makes."""
MOST_ROUNDS = 20_000
"""Of all loops of one prompt together: some 20 ms, where little is done in each."""
MOST_S = 0.15
"""Seconds of the processor after which no further round begins: others wait for the event loop meanwhile."""
MOST_JSON_CHARS = 2 << 20
"""Of all texts of one prompt that `tojson` writes: less than 0.1 s, where each character takes six."""
MOST_TEMPLATE_CHARS = 262_144
MOST_DIGITS = 20
MOST_INDENT = 16
_OF_LISTS = frozenset(
    {
        *(
            "dictsort",
            "first",
            "items",
            "last",
            "list",
            "map",
            "max",
            "min",
            "reject",
            "rejectattr",
            "reverse",
        ),
        *("select", "selectattr", "sort", "unique"),
    }
)
"""Filters that walk over what they are given, which may be a text of millions of characters."""
_FILTERS = frozenset(
    {
        *("capitalize", "count", "default", "d", "float", "int", "length", "lower", "string"),
        *("trim", "truncate", "upper"),
    }
)
_NOT_HERE = (
    *(nodes.Call, nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends),
    *(nodes.Block, nodes.Macro, nodes.CallBlock),
)
"""A call would let a template, or a text method with a variable's length, make gigabytes of a word."""
_ROUND, _WALKED, _WRITTEN = "_round", "_walked", "_written"


class Budget:
    """What is left for one prompt."""

    def __init__(self, size: int = MOST_CHARS, rounds: int = MOST_ROUNDS) -> None:
        """`size`: bytes of all texts together, in UTF-8."""
        self.size = self.most = size
        self.rounds = rounds
        self.json = MOST_JSON_CHARS
        self._until = time.thread_time() + MOST_S

    def round(self) -> str:
        """Count one round of a loop. Raises TemplateError."""
        self.rounds -= 1
        if self.rounds < 0:
            raise TemplateError(f"the template's loops take more than {MOST_ROUNDS} rounds")
        if time.thread_time() > self._until:
            raise TemplateError(f"the template's loops take longer than {MOST_S} s")
        return ""

    def write(self, value: Any) -> None:
        """Count what becomes JSON. Raises TemplateError."""
        self.json -= _chars(value)
        if self.json < 0:
            raise TemplateError(f"tojson writes at most {MOST_JSON_CHARS} characters of texts in one prompt")

    def take(self, text: str) -> str:
        """Count a text. Raises TemplateError."""
        self.size -= len(text)
        if self.size >= 0 and not text.isascii():
            self.size -= len(text.encode(errors="surrogatepass")) - len(text)
        if self.size < 0:
            raise TemplateError(f"the prompt would have more than {self.most} bytes")
        return text


def _chars(value: Any) -> int:
    """Characters of the texts in a value."""
    match value:
        case str():
            return len(value)
        case dict():
            return sum(_chars(name) + _chars(one) for name, one in value.items())
        case list() | tuple():
            return sum(map(_chars, value))
        case _:
            return 0


def _for_lists(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses texts."""

    subject = 1 if hasattr(call, "jinja_pass_arg") else 0  # behind what Jinja passes

    @functools.wraps(call)
    def refuses(*args: Any, **options: Any) -> Any:
        if isinstance(args[subject], str):
            raise TemplateError(f"{name} is for lists, and was given a text")
        return call(*args, **options)

    return refuses


def _bounded_join(value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        raise TemplateError("join takes a separator, and nothing else")
    if isinstance(value, str):
        raise TemplateError("join is for lists, and was given a text")
    parts = [str(part) for part in value]
    if sum(map(len, parts)) + len(d) * len(parts) > MOST_CHARS:
        raise TemplateError(f"join would make more than {MOST_CHARS} characters")
    return d.join(parts)


@pass_environment
def _bounded_sum(environment: Any, iterable: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """Of lists, each addition would copy all before it."""
    if not isinstance(start, int | float) or isinstance(iterable, str):
        raise TemplateError("sum is for lists of numbers")
    return do_sum(environment, iterable, attribute, start)


def _bounded_round(value: Any, precision: Any = 0, method: Any = "common") -> Any:
    if not isinstance(precision, int) or abs(precision) > MOST_DIGITS:
        raise TemplateError(f"round takes a number of digits, at most {MOST_DIGITS}")
    return do_round(value, precision, method)


@pass_context
def _bounded_tojson(context: Any, value: Any, indent: Any = None) -> Any:
    context[_WRITTEN](value)
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MOST_INDENT):
        raise TemplateError(f"tojson takes an indent of at most {MOST_INDENT}")
    return do_tojson(context.eval_ctx, value, indent)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
        lists = {name: _for_lists(name, self.filters[name]) for name in _OF_LISTS}
        bounded = {
            "join": _bounded_join,
            "round": _bounded_round,
            "sum": _bounded_sum,
            "tojson": _bounded_tojson,
        }
        self.filters = {**{name: self.filters[name] for name in _FILTERS}, **lists, **bounded}
        self.globals = {}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if not numbers or operator == "**" or max(abs(left), abs(right)) > 2**53:
            raise TemplateError(f"{operator} is for numbers of moderate size here")
        return super().call_binop(context, operator, left, right)


def _walked(value: Any, name: str) -> Any:
    """What a loop goes through: no text, which it would take letter by letter; an empty one may stand for nothing. Raises
    TemplateError."""
    if isinstance(value, str) and value:
        raise TemplateError(f"{name or 'what a loop goes through'} must be a list, and is a text")
    return value


class _WatchLoops(NodeTransformer):
    """Has each round of a loop counted, and looks at what it goes through."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        name = nodes.Const(node.iter.name if isinstance(node.iter, nodes.Name) else "")
        node.iter = nodes.Call(nodes.Name(_WALKED, "load"), [node.iter, name], [], None, None)
        call = nodes.Call(nodes.Name(_ROUND, "load"), [], [], None, None)
        node.body = [nodes.ExprStmt(call), *node.body]
        return node


_sandbox = _Sandbox()


class Text:
    """One text with places to fill in. `variables`: those that it names anywhere."""

    def __init__(self, source: str) -> None:
        """Raises TemplateError."""
        if len(source) > MOST_TEMPLATE_CHARS:
            raise TemplateError(f"the text has more than {MOST_TEMPLATE_CHARS} characters")
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
        for name in tree.find_all(nodes.Name):
            if name.name in (_ROUND, _WALKED, _WRITTEN):
                raise TemplateError(f"{name.name} is not a name for a variable")
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise TemplateError(f"line {loop.lineno}: a loop cannot be recursive here")
        self._plain = source if not self.variables and _is_plain(tree) else None
        tree = _WatchLoops().visit(tree)
        tree.set_environment(_sandbox)
        try:
            self._template = _sandbox.from_string(tree)
        except (JinjaError, RecursionError, SyntaxError) as error:
            raise TemplateError(str(error)) from None

    def render(self, variables: Mapping[str, Any], budget: Budget) -> str:
        """The text with its places filled in. Raises TemplateError."""
        if self._plain is not None:
            return budget.take(self._plain)
        counted: dict[str, Any] = {
            **variables,
            _ROUND: budget.round,
            _WALKED: _walked,
            _WRITTEN: budget.write,
        }
        try:
            return "".join(budget.take(part) for part in self._template.generate(counted))
        except TemplateError:
            raise
        except (UndefinedError, SecurityError) as error:
            raise TemplateError(str(error)) from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            # whatever a variable of an unexpected form makes a filter or an operator say
            told = f"a variable has another form than it expects ({type(error).__name__}: {error}"
            raise TemplateError(f"{told[:300]})") from None
        except JinjaError as error:
            raise TemplateError(str(error)) from None


def _is_plain(tree: nodes.Template) -> bool:
    return all(
        isinstance(node, nodes.Output) and all(isinstance(part, nodes.TemplateData) for part in node.nodes)
        for node in tree.body
    )
