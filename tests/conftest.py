"""Snapshots of all tests live in tests/snapshots, laid out as the tests are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension

TESTS = Path(__file__).parent


class _InOnePlace(AmberSnapshotExtension):
    @classmethod
    def dirname(cls, *, test_location: Any) -> str:
        folder = Path(test_location.filepath).parent.relative_to(TESTS)
        return str(TESTS / "snapshots" / folder)


@pytest.fixture
def snapshot(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(_InOnePlace)
