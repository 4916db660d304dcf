"""What holds for all tests: snapshots live in tests/snapshots, laid out as the tests are; none is timed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension

from plough.contract import Env

TESTS = Path(__file__).parent

# Two busy cores make any example slow once: how long one takes is no property of the code.
settings.register_profile("plough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("plough")


@pytest.fixture(autouse=True, scope="session")
def _nothing_was_tuned_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `plough tune` found on the machine that runs the tests is no part of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(Env.XDG_CONFIG_HOME, str(tmp_path_factory.mktemp("config")))
        yield


class _InOnePlace(AmberSnapshotExtension):
    @classmethod
    def dirname(cls, *, test_location: Any) -> str:
        folder = Path(test_location.filepath).parent.relative_to(TESTS)
        return str(TESTS / "snapshots" / folder)


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(_InOnePlace)
