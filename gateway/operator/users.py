"""Who takes the most: tasks that wait and run now, tokens of those that ended in the last minutes."""

from typing import Any

from fairlane.queues.survey.users import User, UserReader
from fairlane.web.history.history import History


async def top_users(reader: UserReader, history: History, limit: int) -> dict[str, Any]:
    """The answer of GET /api/admin/users. Raises StoreError."""
    found = await reader.read()
    tokens = await history.tokens_by_user()
    total = sum(tokens.values())
    users = found.users | {name: User(name) for name in tokens.keys() - found.users.keys()}

    def row(user: User) -> dict[str, Any]:
        used = tokens.get(user.user, 0)
        return {
            "user": user.user,
            "waiting": user.waiting,
            "running": user.running,
            "tokens": used,
            "share": used / total if total else None,
            "model": max(user.by_model, key=user.by_model.__getitem__, default=None),
        }

    rows = [row(user) for user in users.values()]
    rows.sort(key=lambda row: (-row["waiting"], -row["running"], -row["tokens"], row["user"]))
    return {"now": found.now_ms, "users": rows[:limit], "number": len(rows), "complete": found.complete}
