"""Reads each source of settings into a tree that knows the place of every value, so that errors can name it.

The environment has two kinds of names. `FAIRLANE_…` is ours: an invalid or unknown one is an error, like an invalid line of
the file. The names without prefix (SEED_NAMES) can belong to other programs, so an invalid value there is only ignored, with
a warning.
"""

import difflib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import TypeAdapter, ValidationError

from fairlane.gateway.settings.model import Settings
from fairlane.gateway.settings.parts import part_of
from fairlane.gateway.settings.provenance import Loc
from fairlane.gateway.settings.units import WRITTEN, external_name

ENV_PREFIX = "FAIRLANE_"
DEFAULT_FILE = Path("fairlane.yaml")

OTHER_NAMES = frozenset(
    f"FAIRLANE_{name}" for name in ("GATEWAY", "KEY", "WORKER_TOKEN", "API_KEY", "CONFIG", "TRACEBACK")
)
"""Our variables that are not settings: the command line, workers and clients' programs read them."""


@dataclass(frozen=True, slots=True)
class SeedName:
    """A variable without prefix that sets `setting`; `unit`: that of its plain number."""

    variable: str
    setting: str
    unit: Literal["", "ms", "s"] = ""


SEED_NAMES = (
    SeedName("TASK_TIMEOUT_MS", "task_timeout_ms", "ms"),
    SeedName("MIN_TASK_TIMEOUT_MS", "min_task_timeout_ms", "ms"),
    SeedName("MAX_TASK_TIMEOUT_MS", "max_task_timeout_ms", "ms"),
    SeedName("MAX_QUEUE_LENGTH", "max_queue_length"),
    SeedName("QUEUE_MAX_SIZE", "max_queue_length"),
    SeedName("MAX_QUEUE_WAIT_MS", "max_queue_wait_ms", "ms"),
    SeedName("TASK_RESULT_TTL_MS", "task_result_ttl_ms", "ms"),
    SeedName("STREAM_TTL_SECONDS", "task_result_ttl_ms", "s"),
    SeedName("WORKER_TIMEOUT_MS", "worker_timeout_ms", "ms"),
    SeedName("CONCURRENCY_LOCK_TIMEOUT_MS", "lease_ms", "ms"),
    SeedName("STREAM_FLUSH_INTERVAL_MS", "stream_flush_interval_ms", "ms"),
    SeedName("STREAM_FLUSH_SIZE", "stream_flush_size"),
    SeedName("LLM_DEBUG", "llm_debug"),
    SeedName("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp_endpoint"),
)
"""If two set the same thing, the first one counts."""

NAMES: Mapping[str, str] = {external_name(name): name for name in Settings.model_fields}
"""The top-level settings: what code calls each, by the name in files."""
_GROUPS = {name: field for name, field in Settings.model_fields.items() if part_of(field)}
SINGLE = frozenset(name for name, field in _GROUPS.items() if part_of(field) is field.annotation)
"""Groups without names: there is one of each."""
NESTED = ("models", "queues", "upstreams")
"""Groups with names; a variable can set one value of one entry."""
FILE_ONLY = frozenset(_GROUPS) - SINGLE - frozenset(NESTED)
"""Groups that only the file sets."""
_TEXT_LISTS = ("cors_origins", "allowed_hosts", "fallbacks", "models", "task_types", "allow_private")

_KUBERNETES = re.compile(
    r"FAIRLANE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""Kubernetes sets these in every pod of a namespace with a service whose name begins with `fairlane`."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: its place (flag, variable, or file and key) and the error."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Source:
    """The settings of one source, as a tree like the file's; `place` names the place of a setting in it."""

    tree: dict[str, Any]
    place: Callable[[Loc], str]
    problems: list[Problem] = field(default_factory=list)
    modified_ms: int | None = None
    """When its file was modified, ms since 1970."""

    def depth(self, loc: Loc) -> int:
        """Return how many leading parts of `loc` this source holds."""
        node: Any = self.tree
        for found, part in enumerate(loc):
            try:
                node = node[part]
            except (KeyError, IndexError, TypeError):
                return found
        return len(loc)


def dotted(loc: Loc) -> str:
    """`queues.paid_stream.weight`, `keys[0].tier`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.removeprefix(".")


def suggestion(name: str, known: Iterable[str], spelled: Callable[[str], str] = str) -> str:
    """Return `; did you mean …?` if a known name resembles `name`, otherwise ''."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {spelled(near[0])}?" if near else ""


def read_flags(overrides: Mapping[str, Any]) -> Source:
    """Return flags by field name; None is a flag that was not given."""
    given = {name: value for name, value in overrides.items() if value is not None}
    return Source(given, lambda loc: "--" + str(loc[0]).replace("_", "-"))


def read_file(config: Path | None) -> Source:
    """The YAML file, which must exist when it is named; without a name, `./fairlane.yaml` if there is one."""
    path = config or DEFAULT_FILE

    def rejected(message: str) -> Source:
        return Source({}, dotted, [Problem(str(path), message)])

    try:
        modified_ms = path.stat().st_mtime_ns // 1_000_000
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return rejected("there is no such file") if config else Source({}, dotted)
    except (OSError, UnicodeDecodeError) as problem:
        return rejected(f"cannot be read ({problem})")
    try:
        tree = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as problem:
        line = f"line {problem.problem_mark.line + 1}: " if problem.problem_mark else ""
        return rejected(f"{line}not valid YAML ({problem.problem})")
    except (yaml.YAMLError, RecursionError, ValueError):  # (ValueError: a number of thousands of digits)
        return rejected("not valid YAML")
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        return rejected("must hold settings by name, such as `port: 8080`")
    values = {str(name): value for name, value in tree.items()}
    return Source(values, lambda loc: f"{path}: {dotted(loc)}", modified_ms=modified_ms)


class _Loader(yaml.SafeLoader):
    """Rejects a key that is given twice; YAML itself would silently drop the first. An invalid date stays a text, which the
    setting rejects."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True) if key_node.tag != _MERGE else object()
            if isinstance(key, Hashable):
                if key in seen:
                    mark = key_node.start_mark
                    raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice", mark)
                seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_yaml_timestamp(self, node: yaml.ScalarNode) -> Any:
        try:
            return super().construct_yaml_timestamp(node)
        except ValueError:
            return node.value


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_yaml_timestamp)

_MERGE = "tag:yaml.org,2002:merge"


def read_own_names(environ: Mapping[str, str], file: Source) -> Source:
    """The variables `FAIRLANE_…`; an empty one counts as not set.

    A model or queue of the file is recognised by its name in variables' spelling (`DEEPSEEK_CHAT` is
    `deepseek-chat`).
    """
    tree: dict[str, Any] = {}
    variables: dict[Loc, str] = {}
    problems: list[Problem] = []
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENV_PREFIX) or not text or _is_not_a_setting(variable, text):
            continue
        path = variable.removeprefix(ENV_PREFIX).lower().split("__")
        name = path[0]
        if name not in NAMES:
            hint = suggestion(name, NAMES, env_name)
            problems.append(Problem(variable, "unknown setting" + hint))
        elif (
            len(path) != (3 if name in NESTED else 2 if name in SINGLE else 1)
            or name in FILE_ONLY
            or "" in path
        ):
            problems.append(Problem(variable, f"is not a variable; set {name} in the file"))
        else:
            if name in NESTED:
                path[1] = _spelled_as_in(file.tree.get(name), path[1])
            variables[tuple(path)] = variable
            _insert(tree, path, _decode(path, text))
    return Source(tree, lambda loc: _variable_of(loc, variables), problems)


def _is_not_a_setting(variable: str, text: str) -> bool:
    kubernetes_port = variable.endswith("PORT") and re.match(r"(tcp|udp|sctp)://", text)
    return variable in OTHER_NAMES or bool(kubernetes_port) or bool(_KUBERNETES.fullmatch(variable))


def _spelled_as_in(entries: Any, name: str) -> str:
    for known in entries if isinstance(entries, dict) else ():
        if re.sub(r"\W", "_", str(known)).lower() == name:
            return str(known)
    return name


def _decode(path: list[str], text: str) -> Any:
    if path[-1] in _TEXT_LISTS:
        return [part.strip() for part in text.split(",")]
    return None if text.lower() in ("none", "null") else text


def _insert(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def _variable_of(loc: Loc, variables: Mapping[Loc, str]) -> str:
    for end in range(len(loc), 0, -1):
        for path, variable in variables.items():
            if path[:end] == loc[:end]:
                return variable if path == loc[:end] else f"{variable} ({dotted(loc)})"
    return dotted(loc)


def env_name(setting: str) -> str:
    """Return the variable of a top-level setting, by its name in files or in code."""
    return ENV_PREFIX + external_name(setting).upper()


@dataclass(frozen=True, slots=True)
class Ignored:
    """A variable of SEED_NAMES whose value cannot be used."""

    seed: SeedName
    text: str
    why: str


def read_seed_names(environ: Mapping[str, str]) -> tuple[dict[str, SeedName], Source, list[Ignored]]:
    """The variables without prefix: which one sets a field, what they set, and what is ignored and why."""
    chosen: dict[str, SeedName] = {}
    tree: dict[str, Any] = {}
    ignored: list[Ignored] = []
    for seed in SEED_NAMES:
        text = environ.get(seed.variable, "")
        if not text or seed.setting in chosen:
            continue
        adapter = TypeAdapter[Any](Settings.model_fields[seed.setting].rebuild_annotation())
        try:
            value = f"{int(text)}{seed.unit}" if seed.unit else text
            adapter.validate_python(value, context=WRITTEN)
        except ValidationError as problem:
            ignored.append(Ignored(seed, text, problem.errors()[0]["msg"]))
        except ValueError:
            ignored.append(Ignored(seed, text, "Input should be a whole number"))
        else:
            chosen[seed.setting] = seed
            tree[external_name(seed.setting)] = value
    return chosen, Source(tree, lambda loc: chosen[NAMES[str(loc[0])]].variable), ignored
