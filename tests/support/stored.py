"""What the store holds of a task or a model, for tests that set it."""

from typing import Any

from msgspec import Raw, msgpack

from fairlane.gateway.runtime import Gateway


async def kept_ms(gateway: Gateway, task_id: str) -> int:
    """Return for how long an ended task is kept from now on."""
    record = await gateway.scheduler.position(task_id)
    assert record is not None
    return record.number("expires_at") - record.now_ms


async def set_in_record(gateway: Gateway, task_id: str, **values: Any) -> None:
    """Set fields in the part of a record that scripts write."""
    await _set(gateway, gateway.keys("task", id=task_id), "run", values)


async def set_in_model(gateway: Gateway, model: str, **values: Any) -> None:
    """Set fields in a model's state."""
    await _set(gateway, gateway.keys("model", model=model), "state", values)


async def _set(gateway: Gateway, key: str, field: str, values: dict[str, Any]) -> None:
    packed = await gateway.link.command("HGET", key, field)
    fields = msgpack.decode(packed, type=dict[str, Raw])
    await gateway.link.command("HSET", key, field, msgpack.encode(fields | values))


async def forget(gateway: Gateway, task_id: str) -> None:
    """Have the store forget a task that has ended, as when its time is over; what its idempotency key names stays."""
    names = [gateway.keys(name, id=task_id) for name in ("task", "log", "request")]
    await gateway.link.command("UNLINK", *names)
