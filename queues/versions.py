"""Which configuration holds for queues and models when replicas were given different files: the newest one, on all of them.

A replica brings its configuration with the time of its file each time that it connects to Redis. What is older never replaces
what is newer while a replica lives that runs it; of files of the same time the one that was read later counts. So a replica of
before a rollout changes nothing when it connects again, and a rollout that is rolled back ends with its replicas.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple


class Version(NamedTuple):
    """When a configuration was modified and read, ms since 1970."""

    modified_ms: int = 0
    read_ms: int = 0


class Configuration(NamedTuple):
    """A version of the configuration as the store knows it. `hash` names what it says. `replica` brought it, where known; in the
    `ConfigStatus` of one that is overruled it is one that lives and runs it.
    """

    modified_ms: int
    read_ms: int
    hash: str
    replica: str = ""


class ConfigStatus(NamedTuple):
    """What became of a replica's configuration."""

    outcome: str
    """set, same (nothing to do), or older: another one stays while a replica lives that has it."""
    effective: Configuration
    born: str = ""
    """Names the data of the store: another one than before means that it was emptied meanwhile."""


def hash_of(settings: Mapping[str, Mapping[str, object]]) -> str:
    """Return a name of what a configuration says: by queue and model, settings and their values, in any order."""
    said = {place: {name: str(value) for name, value in values.items()} for place, values in settings.items()}
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def read_configuration(packed: bytes) -> Configuration:
    """A version as the store keeps it (keys.py: `versions`; POOL, version)."""
    modified, read, name, *replica = packed.decode().split(" ")
    return Configuration(int(modified), int(read), name, *replica)
