"""Loads the settings: flags over environment over file over defaults; every mistake is named at its place."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from fairlane.gateway.settings.model import Settings, notes
from fairlane.gateway.settings.parts import part_of
from fairlane.gateway.settings.provenance import Loc, Origin, Origins
from fairlane.gateway.settings.sources import (
    DEFAULT_FILE,
    NAMES,
    SEED_NAMES,
    Problem,
    Source,
    dotted,
    read_file,
    read_own_names,
    read_seed_names,
    suggestion,
)
from fairlane.gateway.settings.units import WRITTEN, external_name, external_value

_SECRET = {"redis_url", "database_url", "stream_token_secret", "keys", "workers", "upstreams", "endpoints"}
"""Settings whose values messages do not repeat."""
_PLAIN_SECRETS = frozenset({"stream_token_secret", "signing_key", "set_headers"})
_PASSWORD = re.compile(r"://[^\s/@]*:[^\s/@]+@")
"""The password in a URL."""


class SettingsError(Exception):
    """The settings are invalid. `problems` holds every mistake."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class _Finding(NamedTuple):
    """A mistake in the merged settings: the fields that it concerns, the most useful first."""

    locs: list[Loc]
    message: str
    got: str = ""


def load_settings(
    config: Path | None, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Settings, list[str]]:
    """Return the settings, and a warning for each variable that is ignored or setting without effect.

    `config` is a YAML file that must exist; None reads `./fairlane.yaml` if there is one. `overrides` are
    flags by field name (None: not given). Reads nothing but its arguments, that file and the clock.
    Raises SettingsError with all mistakes; only values that are each valid are compared with one another.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    flags = Source(given, lambda loc: "--" + str(loc[0]).replace("_", "-"))
    file = read_file(config)
    own = read_own_names(environ, file)
    ignored: dict[str, str] = {}
    while True:  # without the variables without prefix that are at fault, until none is
        seeds = read_seed_names(environ, ignored)
        sources = [flags, own, seeds, file]
        settings, findings = _build(sources)
        at_fault = {
            seeds.place(loc): finding.message
            for finding in findings
            for loc in finding.locs
            if _source(loc, sources) is seeds
        }
        if not at_fault:
            break
        ignored |= at_fault

    problems = [*file.problems, *own.problems]
    problems += [Problem(_place(found.locs, sources), found.message + found.got) for found in findings]
    if settings is not None:
        problems += _missing_keys(settings, environ, sources)
    if problems or settings is None:
        raise SettingsError(problems)
    path = str(config or DEFAULT_FILE)
    origins = {NAMES[name]: Origin("file", path) for name in file.tree}
    origins |= {
        NAMES[name]: Origin("flag" if source is flags else "environment", source.place((name,)))
        for source in (seeds, own, flags)
        for name in source.tree
    }
    read = None if file.modified_ms is None else os.path.abspath(path)
    settings.set_origins(Origins(origins, read, file.modified_ms))
    warnings = [_warning(variable, environ[variable], why, settings) for variable, why in ignored.items()]
    return settings, [*warnings, *notes(settings), *_exposed_secrets(path, file.tree)]


def _exposed_secrets(path: str, tree: Mapping[str, Any]) -> list[str]:
    """Return a warning if every user of this machine can read the secrets of a file."""
    names = sorted(_secrets_in(tree))
    if not names or not Path(path).stat().st_mode & stat.S_IROTH:
        return []
    return [
        f"{path} has secrets ({', '.join(names)[:200]}), and every user of this machine can read it: run chmod 640 {path}, "
        "or set them in the environment"
    ]


def _secrets_in(value: Any, loc: Loc = ()) -> Iterator[str]:
    """Yield the names of the secrets that a part of a file has."""
    if (loc and loc[-1] in _PLAIN_SECRETS and value) or (isinstance(value, str) and _PASSWORD.search(value)):
        yield dotted(loc)
    elif isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _secrets_in(part, (*loc, name))


def _missing_keys(
    settings: Settings, environ: Mapping[str, str], sources: Sequence[Source]
) -> Iterator[Problem]:
    """Yield the keys of upstreams that are not in the environment."""
    for name, upstream in settings.upstreams.items():
        if (variable := upstream.api_key_env) and not environ.get(variable, "").strip():
            yield Problem(
                _place([("upstreams", name, "api_key_env")], sources),
                f"the environment variable {variable} is not set here (a running gateway has the variables of its start)",
            )


def _build(sources: Sequence[Source]) -> tuple[Settings | None, list[_Finding]]:
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged = _merge(merged, source.tree)
    try:
        return Settings.model_validate(merged, by_alias=True, by_name=False, context=WRITTEN), []
    except ValidationError as problem:
        return None, _findings(problem)


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `under` with `over` on top: mappings key by key, other values whole."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _findings(error: ValidationError) -> list[_Finding]:
    found: list[_Finding] = []
    for detail in error.errors(include_url=False):
        loc: Loc = tuple(part for part in detail["loc"] if part != "[key]")
        if detail["type"] == "contradiction":
            found += [_Finding(locs, message) for locs, message in detail["ctx"]["found"]]
        elif detail["type"] == "extra_forbidden":
            found.append(_Finding([loc], "unknown setting" + suggestion(str(loc[-1]), _known_beside(loc))))
        elif detail["type"] == "missing":
            found.append(_Finding([loc], "is required"))
        elif detail["type"] == "model_type":
            known = ", ".join(_known_beside((*loc, "")))
            found.append(_Finding([loc], f"Input should be settings by their names: {known}"))
        else:
            shown = loc[0] not in _SECRET and isinstance(detail["input"], str | int | float | bool | None)
            got = f"; got {repr(detail['input'])[:80]}" if shown else ""
            found.append(_Finding([loc], detail["msg"].removeprefix("Value error, "), got))
    return found


def _known_beside(loc: Loc) -> list[str]:
    model: type[BaseModel] = Settings
    for name in loc[:-1][:1] + loc[2:-1]:  # (the second names an entry)
        model = (part_of(model.model_fields[str(name)]) if str(name) in model.model_fields else None) or model
    return [external_name(name) for name in model.model_fields]


def _source(loc: Loc, sources: Sequence[Source]) -> Source | None:
    """Return the source that sets a field; of several, the first one that sets most of its place."""
    source = max(sources, key=lambda source: source.depth(loc))
    return source if source.depth(loc) else None


def _place(locs: Sequence[Loc], sources: Sequence[Source]) -> str:
    """Return where to correct a mistake: each place that sets one of its fields."""
    places = [source.place(loc) for loc in locs if (source := _source(loc, sources))]
    return ", ".join(places) or dotted(locs[0])


def _warning(variable: str, text: str, why: str, settings: Settings) -> str:
    setting = SEED_NAMES[variable]
    value = external_value(setting, getattr(settings, setting))
    shown = "not set" if value is None else value
    return f"{variable}={repr(text)[:80]} is ignored ({why}); {external_name(setting)} is {shown}"
