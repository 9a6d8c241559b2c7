"""Which pool a model belongs to, and which one a task does."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence

MAX_CACHED = 20_000
"""Models whose pool is remembered; clients can ask for any name."""


class Placement:
    """Places models in pools: as configured, else by rendezvous hashing of the name, so that a new pool takes over few models.

    Models that tasks can move between (a fallback, the stages of a chain) are in one pool: that of the one that is configured,
    else of the one whose name sorts first.
    """

    def __init__(
        self,
        names: Sequence[str] = ("main",),
        configured: Mapping[str, str] | None = None,
        related: Iterable[Collection[str]] = (),
    ) -> None:
        """`configured`: model -> pool. `related`: sets of models that must be in one pool. Raise ValueError if that is
        impossible."""
        self.names = tuple(names)
        configured = configured or {}
        groups = grouped(related)
        self._pools = {model: names.index(pool) for model, pool in configured.items()}
        for group in groups:
            pools = {configured[model] for model in group if model in configured}
            if len(pools) > 1:
                listed = ", ".join(
                    f"{model} in {configured[model]}" for model in sorted(group) if model in configured
                )
                raise ValueError(f"tasks can move between these models, so they need one pool: {listed}")
            pool = names.index(pools.pop()) if pools else self._by_hash(min(group))
            self._pools |= dict.fromkeys(group, pool)
        self._hashed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def of_model(self, model: str) -> int:
        """Return the number of a model's pool."""
        if len(self.names) == 1:
            return 0
        pool = self._pools.get(model)
        if pool is None:
            pool = self._hashed.get(model)
        if pool is None:
            if len(self._hashed) >= MAX_CACHED:
                self._hashed.clear()
            pool = self._hashed[model] = self._by_hash(model)
        return pool

    def home(self, user: str) -> int:
        """Return the number of the pool that has what belongs to a user over all models."""
        return self.of_model(f"user:{user.partition('/')[0]}")

    def _by_hash(self, name: str) -> int:
        def weight(pool: int) -> bytes:
            return hashlib.blake2b(f"{self.names[pool]}\n{name}".encode(), digest_size=8).digest()

        return max(range(len(self.names)), key=weight)


def grouped(related: Iterable[Collection[str]]) -> list[set[str]]:
    """Return sets without common members: those of `related`, joined where they overlap."""
    groups: list[set[str]] = []
    for members in related:
        joined = set(members)
        apart = []
        for group in groups:
            if group & joined:
                joined |= group
            else:
                apart.append(group)
        groups = [*apart, joined] if joined else apart
    return groups
