"""What holds for all tests: snapshots live in tests/snapshots, laid out as the tests are; none is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension

TESTS = Path(__file__).parent

# Two busy cores make any example slow once: how long one takes is no property of the code.
settings.register_profile("plough", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("plough")


class _InOnePlace(AmberSnapshotExtension):
    @classmethod
    def dirname(cls, *, test_location: Any) -> str:
        folder = Path(test_location.filepath).parent.relative_to(TESTS)
        return str(TESTS / "snapshots" / folder)


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(_InOnePlace)
