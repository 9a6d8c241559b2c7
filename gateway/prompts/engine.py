"""The template engine: Jinja's sandbox, with bounds on what a text may come to and on how much it may do for it. Pure.

Templates are the operator's, variables are callers': a variable is data, and never read as a template. What a caller could make
large by filling a variable is bounded all the same: characters of the result, rounds of all loops together, and what single
operators and filters may build.

Callers' own templates (of a chain that stands in a request) are read more strictly: nothing in them builds a value of others but
filters, and each use of a filter or comparison is counted by the length of what it looks at (`strict`).
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from jinja2 import (
    StrictUndefined,
    TemplateSyntaxError,
    Undefined,
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
MOST_STRICT_TOKENS = 1000
"""Of a caller's own text, outside of what stands there as it is: to read so many takes some 30 ms."""
MOST_WORK = 16 << 20
"""Characters that filters and comparisons of callers' own texts look at, of all texts of one prompt together."""
LEAST_WORK = 64
"""What each of them counts at least, and what each part of a list or an object does."""
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
_BUILDS = (nodes.Concat, nodes.Assign, nodes.AssignBlock, nodes.FilterBlock, nodes.With)
"""What makes values of others that filters do not count, and so could double them again and again."""
_ROUND, _WALKED, _WRITTEN, _WORKED = "_round", "_walked", "_written", "_worked"


class Budget:
    """What is left for one prompt."""

    def __init__(self, size: int = MOST_CHARS, rounds: int = MOST_ROUNDS) -> None:
        """`size`: bytes of all texts together, in UTF-8."""
        self.size = self.most = size
        self.rounds = rounds
        self.json = MOST_JSON_CHARS
        self.work = MOST_WORK
        self._until = time.thread_time() + MOST_S
        self._sizes: dict[int, tuple[Any, int]] = {}
        """Bytes of JSON of each value that was put, by its identity; it is held so that this stays its own."""

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

    def look_at(self, value: Any) -> Any:
        """Count what a filter or a comparison of a caller's own text is about to look at. Raises TemplateError."""
        self.work -= _work(value, self.work)
        if self.work < 0:
            raise TemplateError(
                f"filters and comparisons may look at {MOST_WORK} characters in all texts of a prompt"
            )
        if time.thread_time() > self._until:
            raise TemplateError(f"its filters and comparisons take longer than {MOST_S} s")
        return value

    def take(self, text: str) -> str:
        """Count a text. Raises TemplateError."""
        self.size -= len(text)
        if self.size >= 0 and not text.isascii():
            self.size -= len(text.encode(errors="surrogatepass")) - len(text)
        if self.size < 0:
            raise TemplateError(f"the prompt would have more than {self.most} bytes")
        return text

    def put(self, value: Any) -> Any:
        """Count a value that becomes part of a request as it is, as often as it does. Raises TemplateError."""
        if isinstance(value, str):
            return self.take(value)
        _, size = self._sizes.get(id(value), (None, 0))
        if not size:
            try:
                size = len(msgspec.json.encode(value))
            except (TypeError, ValueError, RecursionError):
                raise TemplateError(
                    "a value is none of JSON's: of a stage there are content, result and json"
                ) from None
            self._sizes[id(value)] = value, size
        self.size -= size
        if self.size < 0:
            raise TemplateError(f"the prompt would have more than {self.most} bytes")
        return value


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


def _work(value: Any, most: int) -> int:
    """What it takes to walk over a value; counting ends behind `most`."""
    if isinstance(value, str):
        return LEAST_WORK + len(value)
    if not isinstance(value, dict | list | tuple):
        return LEAST_WORK
    total, parts = LEAST_WORK, list(value.items()) if isinstance(value, dict) else value
    for part in parts:
        if total > most:
            break
        total += _work(part, most - total)
    return total


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


class _CountWork(NodeTransformer):
    """Has what filters, tests, comparisons and slices look at counted."""

    def visit_Filter(self, node: nodes.Filter) -> nodes.Filter:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        if node.name == "tojson" and (node.args or node.kwargs):
            raise TemplateError(f"line {node.lineno}: tojson takes no arguments here")
        node.node = None if node.node is None else self._counted(node.node)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        if node.name not in _PLAIN_TESTS:
            raise TemplateError(f"line {node.lineno}: the test {node.name} is not for callers' own texts")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        node.expr = self._counted(node.expr)
        for operand in node.ops:
            operand.expr = self._counted(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:  # noqa: N802 - Jinja's name
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = self._counted(node.node)
        return node

    @staticmethod
    def _counted(node: nodes.Expr) -> nodes.Expr:
        return nodes.Call(nodes.Name(_WORKED, "load"), [node], [], None, None)


_PLAIN_TESTS = frozenset(
    {"defined", "undefined", "none", "string", "number", "boolean", "mapping", "sequence", "true", "false"}
)
"""Tests that look at no more than what kind of value there is."""


class _StrictSandbox(_Sandbox):
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})


_sandbox, _strict_sandbox = _Sandbox(), _StrictSandbox()


_NOTHING: frozenset[Any] = frozenset()


class Text:
    """One text with places to fill in. `variables`: those that it names anywhere. `reads`: what it reads of them, as far as that
    is written out: `("stages", "ocr", "content")`."""

    __slots__ = ("_path", "_plain", "_template", "reads", "variables")

    def __init__(self, source: str, *, strict: bool = False) -> None:
        """`strict`: it is a caller's own. Raises TemplateError."""
        sandbox = _strict_sandbox if strict else _sandbox
        if len(source) > MOST_TEMPLATE_CHARS:
            raise TemplateError(f"the text has more than {MOST_TEMPLATE_CHARS} characters")
        self.variables: frozenset[str] = _NOTHING
        self.reads: frozenset[tuple[str, ...]] = _NOTHING
        self._plain: str | None = source
        self._path: tuple[str, ...] | None = None
        if not has_places(source):
            return
        if strict:
            _check_length(source)
        try:
            tree = sandbox.parse(source)
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
            if name.name in (_ROUND, _WALKED, _WRITTEN, _WORKED):
                raise TemplateError(f"{name.name} is not a name for a variable")
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise TemplateError(f"line {loop.lineno}: a loop cannot be recursive here")
        if strict:
            _check_strictly(tree)
        self.reads = frozenset(_reads(tree))
        self._plain = source if not self.variables and _is_plain(tree) else None
        self._path = _only_path(tree)
        tree = _WatchLoops().visit(tree)
        if strict:
            tree = _CountWork().visit(tree)
        tree.set_environment(sandbox)
        try:
            self._template = sandbox.from_string(tree)
        except (JinjaError, RecursionError, SyntaxError) as error:
            raise TemplateError(str(error)) from None

    def value(self, variables: Mapping[str, Any], budget: Budget) -> Any:
        """What a text comes to that is nothing but one value in braces: that value itself, also a list or an object. Of any
        other text what `render` makes. Raises TemplateError."""
        return self.render(variables, budget) if self._path is None else budget.put(self._found(variables))

    def looked_at(self, variables: Mapping[str, Any], budget: Budget) -> Any:
        """The same of a text whose value becomes no part of a prompt, and may be none of JSON's. Raises TemplateError."""
        return self.render(variables, budget) if self._path is None else self._found(variables)

    def _found(self, variables: Mapping[str, Any]) -> Any:
        """The value of a text that is nothing but one in braces. Raises TemplateError."""
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
        """The text with its places filled in. Raises TemplateError."""
        if self._plain is not None:
            return budget.take(self._plain)
        counted: dict[str, Any] = {
            **variables,
            _ROUND: budget.round,
            _WALKED: _walked,
            _WRITTEN: budget.write,
            _WORKED: budget.look_at,
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


def has_places(source: str) -> bool:
    """Whether a text may have places to fill in; without any it stands for itself."""
    return "{{" in source or "{%" in source or "{#" in source


def count_tokens(source: str, most: int) -> int:
    """How many words and signs there are to read in a text, outside of what stands there as it is; counting ends behind `most`.
    One that cannot be read has none."""
    number = 0
    try:
        for token in _strict_sandbox.lex(source):
            number += token[1] != "data"
            if number > most:
                break
    except TemplateSyntaxError:
        pass  # whoever compiles it says so
    return number


def _check_length(source: str) -> None:
    """Raise TemplateError where there is more to read than a caller's own text may have."""
    if count_tokens(source, MOST_STRICT_TOKENS) > MOST_STRICT_TOKENS:
        raise TemplateError(f"its places to fill in have more than {MOST_STRICT_TOKENS} words and signs")


def _check_strictly(tree: nodes.Template) -> None:
    """Raise TemplateError for what a caller's own text may not hold."""
    for node in tree.find_all(_BUILDS):
        raise TemplateError(
            f"line {node.lineno}: set, with, filter blocks and ~ are not for callers' own texts"
        )
    for loop in tree.find_all(nodes.For):
        if loop.test is not None:
            raise TemplateError(
                f"line {loop.lineno}: a loop cannot have a condition here: put an `if` into it"
            )


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


def _reads(tree: nodes.Template) -> Iterator[tuple[str, ...]]:
    """What it reads of variables, each with all that is before it."""
    for node in tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)):
        if (path := _path_of(node)) is not None:
            yield path


def _only_path(tree: nodes.Template) -> tuple[str, ...] | None:
    """The one value in braces that the text is, if it is nothing else."""
    match tree.body:
        case [nodes.Output(nodes=[node])]:
            return _path_of(node)
        case _:
            return None


def _is_plain(tree: nodes.Template) -> bool:
    return all(
        isinstance(node, nodes.Output) and all(isinstance(part, nodes.TemplateData) for part in node.nodes)
        for node in tree.body
    )
