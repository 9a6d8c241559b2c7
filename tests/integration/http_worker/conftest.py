"""Fixtures: an adapter whose connections stay from call to call, and certificates."""

import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.http_worker.targets import Certificates

from fairlane.workers.adapters.endpoints.http import HttpAdapter


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., HttpAdapter]]:
    """Makes adapters whose connections end with the test."""
    made: list[HttpAdapter] = []

    def one(**options: Any) -> HttpAdapter:
        made.append(HttpAdapter(**options))
        return made[-1]

    yield one
    for adapter in made:
        await adapter.aclose()


@pytest.fixture
def adapter(make: Callable[..., HttpAdapter]) -> HttpAdapter:
    """One that knows the system's names and authorities."""
    return make()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """For a.example and 127.0.0.1."""
    folder: Path = tmp_path_factory.mktemp("certificates")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    names = "subjectAltName=DNS:a.example,IP:127.0.0.1"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    )
    subprocess.run(
        [*command.split(), "-addext", names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    return Certificates(server, lambda: ssl.create_default_context(cafile=str(certificate)))
