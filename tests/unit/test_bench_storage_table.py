"""The table of `scripts/bench store`: which cells there are, and what their ratios are of."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import storage_table
from bench.measurement import ResultFile


@pytest.mark.parametrize("is_quick", [True, False], ids=["quick", "full"])
def test_every_cell_has_a_free_one_to_compare_with(is_quick: bool) -> None:
    names = [measure.name for measure in storage_table.measures(is_quick=is_quick)]
    assert len(names) == len(set(names))
    assert {f"free {name.partition(' ')[2]}" for name in names} <= set(names)


@pytest.mark.parametrize("is_quick", [True, False], ids=["quick", "full"])
def test_a_bar_is_of_cells_that_are_measured(is_quick: bool) -> None:
    made = {measure.key for measure in storage_table.measures(is_quick=is_quick)}
    for bar in storage_table.bars(storage_table.QUICK_LARGE if is_quick else storage_table.LARGE):
        assert {what.rpartition("|")[0] for what in (bar.ours, bar.theirs) if what} <= made, bar.measure


def test_a_quick_run_is_announced_with_less_than_five_minutes() -> None:
    assert sum(measure.seconds for measure in storage_table.measures(is_quick=True)) < 300


def test_the_table_compares_within_a_round_and_shows_a_cell_without_progress(tmp_path: Path) -> None:
    kept = ResultFile(tmp_path / "run.jsonl")
    state = storage_table.State(storage_table.SMALL)
    rates = {("free", 1): 1000, ("keys", 1): 500, ("free", 2): 4000, ("keys", 2): 1000, ("unknown", 1): 0}
    for (load, turn), rate in rates.items():
        name = storage_table.cell_name(load, state)
        line = {"key": f"store|{name}", "phase": "store", "name": name, "round": turn, "steady_per_s": rate}
        kept.add(line | ({} if rate else {"note": "no job in 10 s"}))
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in storage_table.cells_table(kept).splitlines()[2:]
    ]
    found = {row[0]: row for row in rows}
    assert found["keys"][3] == "0.375"  # the median of 0.5 and 0.25
    assert (found["unknown"][2], found["unknown"][3], found["unknown"][-1]) == ("0", "0", "no job in 10 s")
