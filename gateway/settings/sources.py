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
from typing import Any

import yaml

from fairlane.gateway.settings.model import Settings
from fairlane.gateway.settings.parts import part_of
from fairlane.gateway.settings.provenance import Loc
from fairlane.gateway.settings.units import external_name

ENV_PREFIX = "FAIRLANE_"
DEFAULT_FILE = Path("fairlane.yaml")

OTHER_NAMES = frozenset(
    f"FAIRLANE_{name}" for name in ("GATEWAY", "KEY", "WORKER_TOKEN", "API_KEY", "CONFIG", "TRACEBACK")
)
"""Our variables that are not settings: the command line, workers and clients' programs read them."""

SEED_NAMES = {
    "TASK_TIMEOUT_MS": "task_timeout_ms",
    "MIN_TASK_TIMEOUT_MS": "min_task_timeout_ms",
    "MAX_TASK_TIMEOUT_MS": "max_task_timeout_ms",
    "MAX_QUEUE_LENGTH": "max_queue_length",
    "QUEUE_MAX_SIZE": "max_queue_length",
    "MAX_QUEUE_WAIT_MS": "max_queue_wait_ms",
    "TASK_RESULT_TTL_MS": "task_result_ttl_ms",
    "STREAM_TTL_SECONDS": "task_result_ttl_ms",
    "WORKER_TIMEOUT_MS": "worker_timeout_ms",
    "CONCURRENCY_LOCK_TIMEOUT_MS": "lease_ms",
    "STREAM_FLUSH_INTERVAL_MS": "stream_flush_interval_ms",
    "STREAM_FLUSH_SIZE": "stream_flush_size",
    "LLM_DEBUG": "llm_debug",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint",
}
"""The settings of the variables without prefix. A plain number has the unit of the variable's name. If two set the same thing,
the first one counts."""

NAMES: Mapping[str, str] = {external_name(name): name for name in Settings.model_fields}
"""The top-level settings: what code calls each, by the name in files."""
_GROUPS = {name: field for name, field in Settings.model_fields.items() if part_of(field)}
SINGLE = frozenset(name for name, field in _GROUPS.items() if part_of(field) is field.annotation)
"""Groups without names: there is one of each."""
NESTED = ("models", "queues", "upstreams")
"""Groups with names; a variable can set one value of one entry. Only the file sets the other groups with names."""
_TEXT_LISTS = (
    *("cors_origins", "allowed_hosts", "disabled_features"),
    *("fallbacks", "models", "task_types", "allow_private"),
)

_KUBERNETES = re.compile(
    r"FAIRLANE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|FAIRLANE_(\w+_)?PORT=(tcp|udp|sctp)://.*"
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


def read_file(config: Path | None) -> Source:
    """The YAML file, which must exist when it is named; without a name, `./fairlane.yaml` if there is one."""
    path = config or DEFAULT_FILE
    tree, modified_ms, problem = None, None, ""
    try:
        modified_ms = path.stat().st_mtime_ns // 1_000_000
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except FileNotFoundError:
        problem = "there is no such file" if config else ""
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({error})"
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = f"{line}not valid YAML ({error.problem})"
    except (yaml.YAMLError, RecursionError, ValueError):  # (ValueError: a number of thousands of digits)
        problem = "not valid YAML"
    if not isinstance(tree, dict | None):
        problem = "must hold settings by name, such as `port: 8080`"
    if problem:
        return Source({}, dotted, [Problem(str(path), problem)])
    values = {str(name): value for name, value in (tree or {}).items()}
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
        if not variable.startswith(ENV_PREFIX) or not text or variable in OTHER_NAMES:
            continue
        if _KUBERNETES.fullmatch(f"{variable}={text}"):
            continue
        name, *inner = path = variable.removeprefix(ENV_PREFIX).lower().split("__")
        if name not in NAMES:
            hint = suggestion(name, NAMES, env_name)
            problems.append(Problem(variable, "unknown setting" + hint))
            continue
        levels = 2 if name in NESTED else 1 if name in SINGLE else 0
        if len(inner) != levels or "" in path or (name in _GROUPS and not levels):
            problems.append(Problem(variable, f"is not a variable; set {name} in the file"))
            continue
        if name in NESTED:
            entries = file.tree.get(name)
            named = entries if isinstance(entries, dict) else {}
            known = {re.sub(r"\W", "_", str(one)).lower(): str(one) for one in named}
            path[1] = known.get(path[1], path[1])
        variables[tuple(path)] = variable
        into = tree
        for part in path[:-1]:
            into = into.setdefault(part, {})
        into[path[-1]] = _value(path[-1], text)

    def place(loc: Loc) -> str:
        same = {path: [a == b for a, b in zip(path, loc, strict=False)] for path in variables}
        path = max(variables, key=lambda path: [*same[path], False].index(False))
        return variables[path] + ("" if path == loc[: len(path)] else f" ({dotted(loc)})")

    return Source(tree, place, problems)


def _value(name: str, text: str) -> Any:
    if name in _TEXT_LISTS:
        return [part.strip() for part in text.split(",")]
    return None if text.lower() in ("none", "null") else text


def env_name(setting: str) -> str:
    """Return the variable of a top-level setting, by its name in files or in code."""
    return ENV_PREFIX + external_name(setting).upper()


def read_seed_names(environ: Mapping[str, str], ignored: dict[str, str]) -> Source:
    """Return what the variables without prefix set, except those in `ignored`; add those to it that are no number, with the
    reason."""
    tree: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for variable, setting in SEED_NAMES.items():
        text, name = environ.get(variable, ""), external_name(setting)
        if not text or variable in ignored or name in tree:
            continue
        unit = {"MS": "ms", "SECONDS": "s"}.get(variable.rpartition("_")[2], "")
        if unit and not re.fullmatch("[0-9]{1,15}", text):
            ignored[variable] = "should be a whole number"
        else:
            tree[name], variables[name] = text + unit, variable
    return Source(tree, lambda loc: variables[str(loc[0])])
