"""Current tables with files and groups of few rows."""

import pytest

from spark_sink.tables import key_ranges, merge_task, parquet_parts, staged_changes


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and groups of few rows."""
    monkeypatch.setattr(key_ranges, "FILE_BYTES", 16_000)
    monkeypatch.setattr(merge_task, "FILE_BYTES", 16_000)
    monkeypatch.setattr(key_ranges, "_MERGE_BYTES", 12_000)
    monkeypatch.setattr(parquet_parts, "_GROUP_BYTES", 8_000)
    monkeypatch.setattr(staged_changes, "_ROWS_PER_GROUP", 13)
    monkeypatch.setattr(staged_changes, "_SORTED_BYTES", 20_000)
