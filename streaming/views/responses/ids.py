"""Ids of responses and of their items, which are made of their task's. Pure."""

RESPONSE = "resp_"


def response_id(task_id: str) -> str:
    """The id of the response that a task makes."""
    return RESPONSE + task_id


def task_of_response(told: str) -> str | None:
    """The task of a response by its id; None for what is no such id."""
    return told.removeprefix(RESPONSE) if told.startswith(RESPONSE) else None


def task_of_item(told: str) -> str | None:
    """The task that made an output item by its id, `KIND_TASK_INDEX`; None for what is no such id."""
    parts = told.split("_")
    return parts[1] if len(parts) == 3 and parts[0].isalpha() and parts[2].isdigit() else None
