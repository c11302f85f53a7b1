"""The file of sensitivities: what is written is read back; what is damaged is refused."""

import json
from pathlib import Path

import pytest

from arquant.base.errors import FileFormatError
from arquant.searching.sensitivity_table import SensitivityTable
from tests.support.report_runs import sensitivity


def test_a_table_is_read_back_in_order(tmp_path: Path) -> None:
    table = sensitivity()
    table.save(tmp_path / "sensitivity.json")
    read = SensitivityTable.load(tmp_path / "sensitivity.json")
    assert list(read.values) == ["b", "a"], "the order of execution, not of letters"
    assert (read.values, read.errors, read.facts) == (table.values, table.errors, table.facts)
    assert read.widths == (2, 3, 8)
    assert read.margin("b", "a", 2) == pytest.approx(0.0588)


def test_a_table_by_another_program_needs_only_layers(tmp_path: Path) -> None:
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"schema": "arquant.sensitivity", "version": 1, "layers": {"x": {"w": {"4": 2}}}}))
    read = SensitivityTable.load(path)
    assert read.values == {"x": {"w": {4: 2.0}}}
    assert read.margin("x", "w", 4) == 0


@pytest.mark.parametrize(
    "layers",
    [None, [], {"x": 3}, {"x": {"w": 3}}, {"x": {"w": {"four": 1}}}, {"x": {"a": {"9": 1}}}, {"x": {"a": {"4": "1"}}},
     {"x": {"a": {"4": True}}}, {"x": {"a": {"4": float("nan")}}}],
)  # fmt: skip
def test_a_damaged_table_is_refused(tmp_path: Path, layers: object) -> None:
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"schema": "arquant.sensitivity", "version": 1, "layers": layers}))
    with pytest.raises(FileFormatError, match=r"damaged.json: (layer|sensitivities)"):
        SensitivityTable.load(path)
