"""The directory for metrics of handlers: private, removed when its host is gone, and never another's."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import pytest

from pgworkers.master import orphan_processes
from pgworkers.master.metrics_directory import (
    create_metrics_directory,
    has_metric_files,
    remove_metrics_directory,
)


def test_it_is_private_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    directory = create_metrics_directory("a")
    assert Path(directory).stat().st_mode & 0o777 == 0o700
    assert not has_metric_files(directory)
    Path(directory, "counter_1.db").touch()
    assert has_metric_files(directory)
    remove_metrics_directory(directory)
    assert list(tmp_path.iterdir()) == []
    assert not has_metric_files(directory)


def test_only_directories_of_dead_masters_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    own = orphan_processes.origin_value("living")
    dead = own.split("/")
    dead[2] = "1"  # another process had this pid when the machine was younger
    texts = {"living": own, "dead": "/".join(dead), "foreign": "not ours", "long": "x" * 5000}
    for name, text in texts.items():
        (tmp_path / f"pgworkers-metrics-{name}").mkdir()
        (tmp_path / f"pgworkers-metrics-{name}" / "owner").write_text(text)
    (tmp_path / "pgworkers-metrics-link").symlink_to(victim)
    new = Path(create_metrics_directory("b")).name
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {
        "victim",
        new,
        *(f"pgworkers-metrics-{name}" for name in ("living", "foreign", "long", "link")),
    }


def test_a_machine_without_one_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/1/nowhere")
    with caplog.at_level(logging.WARNING):
        assert create_metrics_directory("a") == ""
    assert "no directory for metrics of handlers" in caplog.text
