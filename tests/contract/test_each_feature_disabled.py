"""The contract suite with each feature disabled alone, and those that require it: everything else passes."""

import subprocess
import sys

import pytest
from tests.support.features import with_dependents

from fairlane.gateway.features import BY_NAME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", BY_NAME)
def test_everything_else_passes_its_contracts(pytestconfig: pytest.Config, name: str) -> None:
    disabled = ",".join(sorted(with_dependents([name])))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/contract"]
    run = subprocess.run(
        [*command, "--without", disabled],
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
