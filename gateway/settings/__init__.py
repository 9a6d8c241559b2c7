"""The gateway's settings: one frozen model, loaded once at start and again on SIGHUP."""

from fairlane.gateway.settings.chains import ChainSettings, StageSettings
from fairlane.gateway.settings.docs import settings_table, without_secrets
from fairlane.gateway.settings.endpoints import MAX_ENDPOINTS, EndpointSettings
from fairlane.gateway.settings.files import Bucket, Directory, FilesSettings, parse_storage
from fairlane.gateway.settings.loading import SettingsError, load_settings
from fairlane.gateway.settings.model import (
    DEFAULT_QUEUES,
    Settings,
    Unpriced,
    hide_password,
    notes,
    unusable_endpoint,
    unusable_key,
    unusable_routes,
)
from fairlane.gateway.settings.parts import (
    MODES,
    CallerKey,
    KeyLimits,
    KeyQuota,
    Mode,
    ModelSettings,
    PriceSettings,
    QueueSettings,
    Scope,
    TuningSettings,
    UpstreamSettings,
    WebhookSettings,
    WorkerKey,
    part_of,
)
from fairlane.gateway.settings.routing import (
    RouteRule,
    RouteSettings,
    RouteVariant,
    TemplateMessage,
    TemplateSettings,
)
from fairlane.gateway.settings.sources import Problem, suggestion
from fairlane.gateway.settings.units import external, external_name, external_value

__all__ = [
    "DEFAULT_QUEUES",
    "MAX_ENDPOINTS",
    "MODES",
    "Bucket",
    "CallerKey",
    "ChainSettings",
    "Directory",
    "EndpointSettings",
    "FilesSettings",
    "KeyLimits",
    "KeyQuota",
    "Mode",
    "ModelSettings",
    "PriceSettings",
    "Problem",
    "QueueSettings",
    "RouteRule",
    "RouteSettings",
    "RouteVariant",
    "Scope",
    "Settings",
    "SettingsError",
    "StageSettings",
    "TemplateMessage",
    "TemplateSettings",
    "TuningSettings",
    "Unpriced",
    "UpstreamSettings",
    "WebhookSettings",
    "WorkerKey",
    "external",
    "external_name",
    "external_value",
    "hide_password",
    "load_settings",
    "notes",
    "parse_storage",
    "part_of",
    "settings_table",
    "suggestion",
    "unusable_endpoint",
    "unusable_key",
    "unusable_routes",
    "without_secrets",
]
