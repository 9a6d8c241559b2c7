"""The configuration of a gateway that applies now."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from fairlane.gateway.accounts.callers import Caller, Callers, StoredKeys
from fairlane.gateway.accounts.upstreams import UpstreamTokens
from fairlane.gateway.endpoints.endpoints import Endpoints
from fairlane.gateway.endpoints.settings import EndpointSettings
from fairlane.gateway.overrides.overlay import Overlay, overlay
from fairlane.gateway.routing.plans import Plan, Plans
from fairlane.gateway.settings import Settings, external_name, unpriced
from fairlane.gateway.settings.parts import NEEDS_RESTART
from fairlane.queues.inspect.inspector import ReloadError
from fairlane.queues.overrides import Override

log = structlog.get_logger("fairlane.gateway")

MAX_SIMPLE = 1000
"""Plans that are remembered: callers may name any model."""

RELOADED = tuple(name for name, field in Settings.model_fields.items() if NEEDS_RESTART not in field.metadata)
"""Settings that a reload applies without a restart."""
_LOGGED_AS = {"workers": "tokens"}
"""The log's names of settings with named entries, where they are not the settings' own."""
_ROUTES = {"routes": True, "templates": True, "chains": True, "endpoints": True}
_NOT_HASHED = {
    *(
        *_ROUTES,
        "models",
        "queues",
        "keys",
        "workers",
        "stream_token_secret",
    ),  # they have hashes of their own
    *("host", "port", "redis_url", "data_dir", "processes", "log_format", "log_level"),
    *("http_worker_slots", "tuning"),
}
"""Settings that may differ between replicas, or that other hashes cover."""
_UNPRICED = "a key has a quota, but no price holds now for some models: its tasks cost nothing there"


def _hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


class ActiveConfig:
    """The settings and keys that apply. A reload of the configuration replaces both as a whole; a change of the database's keys
    replaces the keys.

    A gateway that has required keys once continues to require them, even if the database has none later: an operator may restore
    a backup from before the first key.
    """

    def __init__(self, settings: Settings, own: UpstreamTokens | None = None) -> None:
        self._configured = settings
        self._added: Mapping[str, EndpointSettings] = {}
        self.endpoints_ms = 0
        """Time of the last change of endpoints at run time, ms."""
        self.settings, self.endpoints = with_endpoints(settings, {})
        """The settings, including those of the endpoints' models; and the endpoints."""
        self.read = settings
        """The configuration that was read last; parts of it may wait for a restart."""
        self.began_ms = settings.origins.read_ms
        self.since: dict[str, int] = {}
        """Time of the last reload that changed a top-level setting, ms, by the setting's name."""
        self._own = own
        self._overrides: tuple[Override, ...] = ()
        self._logged: dict[str, Mapping[Any, Mapping[str, str]]] = {}
        """The findings that the log has, by its line."""
        self._read(self.settings)
        self.callers = Callers(settings, own=own)
        self._stored: StoredKeys | None = None
        """None: the database has not been read."""
        self._logged[_UNPRICED] = self._unpriced(settings.origins.read_ms)  # loading logs those of the file
        self.reload_error: ReloadError | None = None
        """The error of the last reload, unless a later one succeeded."""

    def replace(self, settings: Settings) -> dict[str, list[str]]:
        """Apply the RELOADED settings; others need a restart and stay as they are. Return the `changes`."""
        before = self._configured
        self.reload_error = None
        taken = {name: getattr(settings, name) for name in RELOADED}
        taken["files"] = settings.files.model_copy(update={"storage": before.files.storage})
        self._configured = before.model_copy(update=taken)
        of = {name: one for name, one in before.origins.of.items() if name not in RELOADED}
        of |= {name: one for name, one in settings.origins.of.items() if name in RELOADED}
        self._configured.set_origins(replace(settings.origins, of=of))
        changed = [name for name in RELOADED if getattr(before, name) != getattr(self._configured, name)]
        self.since |= dict.fromkeys(changed, settings.origins.read_ms)
        self.read = settings
        self.settings, self.endpoints = with_endpoints(self._configured, self._added)
        self._read(self.settings)
        self._take(self._stored or StoredKeys())
        return changes(before, settings)

    def _read(self, settings: Settings) -> None:
        self.plans = Plans(settings)
        fallbacks = {"__all__": {"fallbacks", "fallback_after_ms"}}
        values = settings.model_dump(mode="json", include={**_ROUTES, "models": fallbacks})
        values["models"] = {name: model for name, model in values["models"].items() if any(model.values())}
        self.routes_hash = _hash(values)
        """Hash of routes, templates, chains, endpoints and fallbacks."""
        self.settings_hash = _hash(settings.model_dump(mode="json", exclude=_NOT_HASHED))
        """Hash of the settings that should be equal on all replicas and have no hash of their own."""
        self._lay_over()

    @property
    def configured_endpoints(self) -> Mapping[str, EndpointSettings]:
        """Return the endpoints of the configuration; they have priority over added ones of the same name."""
        return self._configured.endpoints

    def take_endpoints(self, added: Mapping[str, EndpointSettings], changed_ms: int) -> None:
        """Apply the endpoints that were added at run time, and the time of their last change."""
        if not self._configured.has("pacing"):
            paced = {name: {"endpoint": name} for name, one in added.items() if one.windows}
            self._log_new(
                "an endpoint has windows and is not applied, as the feature pacing is disabled", paced
            )
            added = {name: one for name, one in added.items() if name not in paced}
        self._added, self.endpoints_ms = added, changed_ms
        self.settings, self.endpoints = with_endpoints(self._configured, added)
        self._lay_over()

    def take_overrides(self, overrides: Iterable[Override]) -> None:
        """Apply these overrides to this configuration and to later ones."""
        self._overrides = tuple(overrides)
        self._lay_over()

    def _lay_over(self) -> None:
        self.overlay: Overlay = overlay(self.settings, self.plans, self._overrides)
        """The settings and plans with the overrides on top."""
        self._simple: dict[tuple[str, str], Plan] = {}
        """Plans of models without a route and a price, by name and tier: they are the same for all."""
        invalid = {name: {"override": name, "reason": why} for name, why in self.overlay.invalid.items()}
        self._log_new("an override does not fit the configuration, and is not applied", invalid)

    def _log_new(self, event: str, found: Mapping[Any, Mapping[str, str]]) -> None:
        """Log each of these findings, unless it was one the last time."""
        before = self._logged.get(event, {})
        for name in sorted(found):
            if before.get(name) != found[name]:
                log.warning(event, **found[name])
        self._logged[event] = found

    def plan(self, caller: Caller, name: str, has_image: Callable[[], bool], subject: str = "") -> Plan:
        """Return the plan of this caller's request for this name now. `has_image` is called only if it matters. `subject`: as
        `Overlay.plans_of` takes it."""
        plan = self._simple.get((name, caller.tier)) if caller.quota is None else None
        if plan is None:
            plan = self.plans_of(name, subject).plan(caller, name, time.time() * 1000, has_image)
            simple = plan.rule is None and caller.quota is None and not self.plans.prices
            if simple and name not in self.overlay.shares:
                if len(self._simple) >= MAX_SIMPLE:
                    self._simple.clear()
                self._simple[name, caller.tier] = plan
        return plan

    def plans_of(self, name: str, subject: str = "") -> Plans:
        """Return the plans of a task that names this route or model."""
        return self.overlay.plans_of(name, subject)

    def take_keys(self, stored: StoredKeys) -> None:
        """Take over what the database says of keys."""
        before, self._stored = self._stored, stored
        self._take(stored, at_start=before is None)
        if before is not None and before.exist and not stored.exist:
            log.warning(
                "the database has no keys any more, as before the first one: the gateway stays closed until it is started again; "
                "bring back a newer backup, or configure a key"
            )

    def _take(self, stored: StoredKeys, *, at_start: bool = False) -> None:
        was_open = self.callers.open
        if not was_open:
            stored = replace(stored, exist=True)
        self.callers = callers = Callers(self.settings, stored, own=self._own)
        if was_open and not callers.open and not at_start:
            log.warning("API keys are required now")
        why = dict.fromkeys(callers.replaced, "the configuration has one of the same id")
        why |= callers.unusable
        not_applied = {key_id: {"key_id": key_id, "reason": reason} for key_id, reason in why.items()}
        self._log_new("a key of the database is not applied", not_applied)
        self._log_new(_UNPRICED, self._unpriced(time.time() * 1000))

    def _unpriced(self, now_ms: float) -> dict[tuple[str, str], dict[str, str]]:
        """Return the keys with a quota that pay nothing for some models, with these models."""
        keys = [(key.id, key.models) for key in self.settings.keys if key.quota]
        if self._stored is not None:
            of_database = (credential.principal for credential in self._stored.callers.values())
            keys += [(who.key_id, [*who.models]) for who in of_database if who.quota]
        found = [(key, unpriced(self.settings, models, now_ms)) for key, models in keys]
        return {(key, models): {"key_id": key, "models": models} for key, models in found if models}


def with_endpoints(configured: Settings, added: Mapping[str, EndpointSettings]) -> tuple[Settings, Endpoints]:
    """Return the settings with models for configured and added endpoints, and these endpoints. Pure."""
    all_of_them = {
        **configured.endpoints,
        **{name: one for name, one in added.items() if name not in configured.endpoints},
    }
    endpoints = {name: (one.made(name), one.of_model) for name, one in all_of_them.items()}
    models = {endpoint.model: model for endpoint, model in endpoints.values()}
    settings = configured.model_copy(update={"models": configured.models | models}) if models else configured
    return settings, Endpoints(endpoint for endpoint, _ in endpoints.values())


def changes(before: Settings, after: Settings) -> dict[str, list[str]]:
    """Return the names of added, removed and changed entries by the log's field, and of settings that need a restart. Pure."""
    differ = [name for name in Settings.model_fields if getattr(before, name) != getattr(after, name)]
    found: dict[str, list[str]] = {"settings_changed": [], "needs_restart": []}
    for setting in differ:
        was, now = _by_name(getattr(before, setting)), _by_name(getattr(after, setting))
        if setting not in RELOADED:
            found["needs_restart"].append(external_name(setting))
        elif was is None or now is None:
            found["settings_changed"].append(external_name(setting))
        else:
            name = _LOGGED_AS.get(setting, setting)
            both = was.keys() & now.keys()
            found |= {
                f"{name}_removed": sorted(was.keys() - both),
                f"{name}_added": sorted(now.keys() - both),
                f"{name}_changed": sorted(entry for entry in both if was[entry] != now[entry]),
            }
    if before.files.storage != after.files.storage:
        found["needs_restart"].append("files.storage")
    return {what: names for what, names in found.items() if names}


def _by_name(entries: Any) -> Mapping[str, Any] | None:
    """Return settings by name; None for others, as those of a list without ids."""
    if isinstance(entries, list) and all(hasattr(entry, "id") for entry in entries):
        return {entry.id: entry for entry in entries}
    return entries if isinstance(entries, dict) else None
