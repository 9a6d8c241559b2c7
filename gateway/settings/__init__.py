"""The gateway's settings: one frozen model, loaded once at start and again on SIGHUP."""

from fairlane.gateway.settings.docs import describe, settings_table
from fairlane.gateway.settings.loading import SettingsError, load_settings
from fairlane.gateway.settings.model import (
    DEFAULT_QUEUES,
    MODES,
    CallerKey,
    Mode,
    ModelSettings,
    QueueSettings,
    Scope,
    Settings,
    WorkerKey,
    hide_password,
    is_loopback,
    unusable,
)
from fairlane.gateway.settings.sources import Problem, suggestion

__all__ = [
    "DEFAULT_QUEUES",
    "MODES",
    "CallerKey",
    "Mode",
    "ModelSettings",
    "Problem",
    "QueueSettings",
    "Scope",
    "Settings",
    "SettingsError",
    "WorkerKey",
    "describe",
    "hide_password",
    "is_loopback",
    "load_settings",
    "settings_table",
    "suggestion",
    "unusable",
]
