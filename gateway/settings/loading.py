"""Loads the settings: flags over environment over file over defaults; every mistake is named at its place."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fairlane.gateway.settings.model import Settings, Times, notes
from fairlane.gateway.settings.parts import part_of
from fairlane.gateway.settings.provenance import Loc, Origin, Origins
from fairlane.gateway.settings.sources import (
    DEFAULT_FILE,
    NAMES,
    Ignored,
    Problem,
    Source,
    dotted,
    read_file,
    read_flags,
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


@dataclass(frozen=True, slots=True)
class _Finding:
    """A mistake in the merged settings: the fields that it concerns, the most useful first."""

    locs: list[Loc]
    message: str


def load_settings(
    config: Path | None, overrides: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[Settings, list[str]]:
    """Return the settings, and a warning for each variable that is ignored or setting without effect.

    `config` is a YAML file that must exist; None reads `./fairlane.yaml` if there is one. `overrides` are
    flags by field name (None: not given). Reads nothing but its arguments, that file and the clock; `times` are
    those of the file, or now without one. Raises SettingsError with all mistakes; only values that are
    each valid are compared with one another.
    """
    flags, file = read_flags(overrides), read_file(config)
    own = read_own_names(environ, file)
    chosen, seeds, ignored = read_seed_names(environ)

    settings, findings = _build([flags, own, seeds, file])
    at_fault = _seeds_at_fault(findings, [flags, own], seeds)
    if at_fault:  # a variable that contradicts another setting is treated like one that is no number
        ignored += [
            Ignored(chosen[name], environ[chosen[name].variable], why) for name, why in at_fault.items()
        ]
        seeds = replace(seeds, tree={k: v for k, v in seeds.tree.items() if NAMES[k] not in at_fault})
        settings, findings = _build([flags, own, seeds, file])

    problems = [*file.problems, *own.problems]
    problems += [Problem(_place(finding, [flags, own, seeds, file]), finding.message) for finding in findings]
    if settings is not None:
        sources = [flags, own, seeds, file]
        problems += [Problem(_place(lack, sources), lack.message) for lack in _lacking(settings, environ)]
    if problems or settings is None:
        raise SettingsError(problems)
    times, path = settings.times, str(config or DEFAULT_FILE)
    if file.modified_ms is not None:
        times = Times(min(file.modified_ms, times.read_ms), times.read_ms)
    origins = {NAMES[name]: Origin("file", path) for name in file.tree}
    origins |= {
        NAMES[name]: Origin("environment", source.place((name,)))
        for source in (seeds, own)
        for name in source.tree
    }
    origins |= {NAMES[name]: Origin("flag", flags.place((name,))) for name in flags.tree}
    settings.set_source(times, Origins(origins, None if file.modified_ms is None else os.path.abspath(path)))
    warnings = [_warning(entry, settings) for entry in ignored]
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
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            if name in _PLAIN_SECRETS and part:
                yield dotted((*loc, name))
            else:
                yield from _secrets_in(part, (*loc, name))
    elif isinstance(value, str) and _PASSWORD.search(value):
        yield dotted(loc)


def _lacking(settings: Settings, environ: Mapping[str, str]) -> list[_Finding]:
    """Return the keys of upstreams that are not in the environment."""
    return [
        _Finding(
            [("upstreams", name, "api_key_env")],
            f"the environment variable {upstream.api_key_env} is not set here (a running gateway has the variables of its start)",
        )
        for name, upstream in settings.upstreams.items()
        if upstream.api_key_env and not environ.get(upstream.api_key_env, "").strip()
    ]


def _build(sources: list[Source]) -> tuple[Settings | None, list[_Finding]]:
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
            message = detail["msg"].removeprefix("Value error, ")
            found.append(_Finding([loc], message + _got(loc, detail["input"])))
    return found


def _known_beside(loc: Loc) -> list[str]:
    model: type[BaseModel] = Settings
    for name in loc[:-1][:1] + loc[2:-1]:  # (the second names an entry)
        model = (part_of(model.model_fields[str(name)]) if str(name) in model.model_fields else None) or model
    return [external_name(name) for name in model.model_fields]


def _got(loc: Loc, value: Any) -> str:
    if loc[0] in _SECRET or not isinstance(value, str | int | float | bool | None):
        return ""
    return f"; got {repr(value)[:80]}"


def _place(finding: _Finding, sources: list[Source]) -> str:
    """Where to correct it: each place that sets one of its fields; sources in descending order."""
    places = []
    for loc in finding.locs:
        source = max(sources, key=lambda source: source.depth(loc))
        if source.depth(loc):
            places.append(source.place(loc))
    return ", ".join(places) or dotted(finding.locs[0])


def _seeds_at_fault(findings: list[_Finding], above: list[Source], seeds: Source) -> dict[str, str]:
    """Return the fields of contradictions that a variable without prefix set, and no source above it."""
    return {
        NAMES[str(loc[0])]: finding.message
        for finding in findings
        for loc in finding.locs
        if seeds.depth(loc) and not any(source.depth(loc) for source in above)
    }


def _warning(entry: Ignored, settings: Settings) -> str:
    setting = entry.seed.setting
    value = external_value(setting, getattr(settings, setting))
    shown = "not set" if value is None else value
    name = external_name(setting)
    return f"{entry.seed.variable}={repr(entry.text)[:80]} is ignored ({entry.why}); {name} is {shown}"
