"""Files of a folder, beside readers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spark_sink.folders import Folder


def test_a_reader_sees_a_file_as_it_was_or_as_it_is(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    texts = ["a" * 100_000, "b" * 100_000]
    folder.write("deep/file.json", texts[0])
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(
            lambda: [folder.write("deep/file.json", texts[turn % 2]) for turn in range(200)]
        )
        reads = 0
        while not written.done() or not reads:
            assert folder.text("deep/file.json") in texts
            reads += 1
        written.result()
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["file.json"]
