"""Settings of webhooks. Pure."""

from pydantic import Field

from fairlane.gateway.settings.parts import Networks, SettingsPart


class WebhookSettings(SettingsPart):
    """Requests that report the ends of tasks to clients."""

    allow_private: Networks = Field(default=[])
    """Private networks (`10.1.0.0/16`) that receivers can be in; their URLs can begin with `http://`. Every client can then
    have requests sent there, readable on their way, but still signed. None: a private, local or metadata address is rejected
    at each request.
    """
