"""Every setting as it holds now, and where it comes from: the operators' call that tells it."""

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import Field, JsonValue

from fairlane.gateway.api.framing import TheOperator, answer, keyed_router
from fairlane.gateway.api.models.base import Answer, Ms
from fairlane.gateway.api.models.state import RefusedReload
from fairlane.gateway.api.queries import Filter

router = keyed_router("operators", exact=True)


class Came(Answer):
    """A value, and where it comes from."""

    value: JsonValue
    source: Literal["default", "file", "environment", "flag", "generated", "replica", "changed"] = Field(
        description="`generated`: the program made it. `replica`: another replica's configuration is newer and holds. `changed`: "
        "an operator changed it while running"
    )
    where: str = Field(
        description="the flag, the variable, the path of the file, the replica, the change; empty: none"
    )
    since: Ms | None = Field(
        description="when this replica began to have it, or when it was changed; of another replica's configuration when that "
        "was modified; null: not known"
    )
    by: str | None = Field(description="the key of the operator who changed it")
    audit: str | None = Field(description="the entry of the audit record that says so")


class Setting(Came):
    name: str
    default: JsonValue
    differs: bool = Field(description="from the default")
    follows: str | None = Field(description="the setting that it is as, where it is not set itself")
    reloads: bool = Field(description="SIGHUP takes a change of it over; else it waits for a restart")
    otherwise: Came | None = Field(
        description="what would hold without the change, or without the other replica"
    )
    after_restart: Came | None = Field(
        description="what the configuration says that was read last, where that waits for a restart"
    )


class File(Answer):
    path: str
    modified_at: Ms


class InForce(Answer):
    replica: str
    modified_at: Ms


class Configured(Answer):
    replica: str
    host: str | None
    version: str | None
    differs: list[Literal["keys", "routes", "others", "queues and models"]] = Field(
        description="in what it is configured otherwise than the replica that answers, as far as both tell"
    )


class Settings(Answer):
    now: Ms
    replica: str = Field(description="the one that answers: the settings are its")
    version: str
    started_at: Ms
    read_at: Ms = Field(description="when it read its configuration last")
    file: File | None
    reload_refused: RefusedReload | None = Field(
        description="a configuration that it read later and did not take over"
    )
    in_force: InForce | None = Field(description="whose configuration of queues and models holds everywhere")
    store_away: str | None = Field(
        description="why it is not known what was changed while running, and who else there is; null: it is"
    )
    replicas: list[Configured]
    settings: list[Setting]
    more: bool = Field(description="there are more than 10,000: ask for a part of their names")


@router.get("/api/admin/settings", response_model=Settings)
async def settings(
    operator: TheOperator, name: Filter = "", changed: Annotated[bool, Query()] = False
) -> Response:
    """Every setting of the replica that answers: its value, default, source, since when, and by whom it was changed.

    `name` is a part of their names, in small or large letters. With `changed` those alone that differ from their defaults, or
    were changed while running. Secrets are `(set)` or null; URLs come without user, password and query.
    """
    return answer(await operator.settings.read(name, changed=changed))
