import json
from pathlib import Path

import numpy as np
import pytest

import arquant
from arquant.base.errors import FileFormatError, InputError
from arquant.loading.models import load_model
from arquant.models.tracing.layers import Layers
from arquant.quantization.budget import Budget
from arquant.quantization.latency import BitSerial, make_table, read_table, write_table
from arquant.quantization.policy import Policy
from tests.support.networks import layers_of

REFERENCE = Path(__file__).parents[3] / "shared/data/reference/haq_mobilenetv2_bismo_batch16_cycles.npy"
HAQ_TOTALS = {2: 8312597, 3: 12146517, 4: 16552309, 5: 21546261, 6: 27074693, 7: 33098805, 8: 39624933}


@pytest.fixture(scope="module")
def mobilenet() -> Layers:
    return layers_of("mobilenetv2")


@pytest.mark.parametrize("bits", HAQ_TOTALS)
def test_roofline_is_within_two_percent_of_haq(mobilenet, bits):
    total = make_table(mobilenet).cost(Policy.uniform(mobilenet, bits), mobilenet)
    assert total == pytest.approx(HAQ_TOTALS[bits] / 1e6, rel=0.02)


@pytest.mark.reference
@pytest.mark.skipif(not REFERENCE.exists(), reason="the reference table is not here")
def test_haq_table_as_printed(mobilenet):
    table = read_table(REFERENCE)
    assert table.values.shape == (53, 8, 8)
    for bits, cycles in HAQ_TOTALS.items():
        assert round(table.cost(Policy.uniform(mobilenet, bits), mobilenet) * 1e6) == cycles
    assert f"{table.cost(Policy.uniform(mobilenet, 4), mobilenet):.2f}" == "16.55"
    assert f"{table.cost(Policy.uniform(mobilenet, 5), mobilenet):.2f}" == "21.55"
    made = make_table(mobilenet)
    for bits in range(1, 9):
        policy = Policy.uniform(mobilenet, bits)
        assert made.cost(policy, mobilenet) == pytest.approx(table.cost(policy, mobilenet), rel=0.02)


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_the_command_sums_the_entries_of_a_mixed_policy(tmp_path, mobilenet, suffix):
    policy = Policy.uniform(mobilenet, 4, keep={"features.1*.conv.*": "w2a6", "features.18.0": "w7a3"})
    policy.save(tmp_path / "policy.json")
    made = make_table(mobilenet)
    write_table(made, tmp_path / f"table{suffix}")
    found = arquant.cost("mobilenetv2", policy=tmp_path / "policy.json", table=tmp_path / f"table{suffix}")
    entries = [made.values[made.names.index(name), bits.w - 1, bits.a - 1] for name, bits in policy.items()]
    assert len(set(policy.values())) == 4
    assert found["latency_ms"] == pytest.approx(sum(entries))
    assert Budget.parse(f"latency<={sum(entries) + 0.001}", mobilenet, tables=[made]).allows(policy)
    assert not Budget.parse(f"latency<={sum(entries) - 0.001}", mobilenet, tables=[made]).allows(policy)


@pytest.mark.parametrize(("name", "milliseconds"), [("resnet20", "0.8"), ("resnet50", "24.0")])
def test_other_networks(name, milliseconds):
    layers = layers_of(name)
    assert f"{make_table(layers).cost(Policy.uniform(layers, 4), layers):.1f}" == milliseconds


def test_monotone_and_attention():
    layers = layers_of("vit_tiny")
    values = make_table(layers).values
    assert (np.diff(values, axis=1) >= 0).all()
    assert (np.diff(values, axis=2) >= 0).all()
    scores = layers["blocks.0.attn#qk"]
    # 3 heads x 16 images, 65 x 65 in tiles of 16, 64 in one word of 256
    assert BitSerial().cycles(scores, 4, 4) == 3 * 16 * max(4 * 65, 4 * 65, 16 * 5 * 5)


def test_accelerator_parameters(mobilenet):
    policy = Policy.uniform(mobilenet, 4)
    base = make_table(mobilenet).cost(policy, mobilenet)
    assert make_table(mobilenet, BitSerial(clock_ghz=2.0)).cost(policy, mobilenet) == pytest.approx(base / 2)
    assert make_table(mobilenet, BitSerial(rows=64, columns=64)).cost(policy, mobilenet) < base
    with pytest.raises(InputError, match="batch must be positive"):
        BitSerial(batch=0)


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_round_trip(tmp_path, mobilenet, suffix):
    table = make_table(mobilenet)
    path = tmp_path / f"table{suffix}"
    write_table(table, path)
    again = read_table(path)
    np.testing.assert_allclose(again.values, table.values, rtol=1e-12)
    assert (again.unit, again.quantity) == ("ms", "latency")
    assert again.names == (table.names if suffix == ".json" else ())
    if suffix == ".npy":
        raw = np.load(path, allow_pickle=False)
        assert raw.dtype == np.int64
        assert raw.shape == (53, 8, 8)


def test_a_file_of_haqs_has_the_order_of_the_modules(tmp_path):
    """A ResNet computes its shortcuts before the convolutions beside them, and registers them after."""
    layers = layers_of("resnet20")
    modules = [name for name, _ in load_model("resnet20", weights_required=False).module.named_modules()]
    rows = sorted(layers.names, key=modules.index)
    assert rows != list(layers.names)
    cycles = np.stack([np.full((8, 8), 1000 * row) for row in range(len(rows))])
    np.save(tmp_path / "haq.npy", cycles)
    table = read_table(tmp_path / "haq.npy")
    for row, name in enumerate(rows):
        assert table.layer_cost(layers[name], 4, 4, layers) == pytest.approx(1e-3 * row)
    write_table(make_table(layers), tmp_path / "made.npy")
    policy = Policy.uniform(layers, 3, keep={"*downsample*": "w8a8"})
    assert read_table(tmp_path / "made.npy").cost(policy, layers) == pytest.approx(
        make_table(layers).cost(policy, layers)
    )


def test_energy_table(tmp_path, mobilenet):
    path = tmp_path / "energy.json"
    rows = ", ".join(f'"{name}": {[[0.5] * 8] * 8}' for name in mobilenet.names)
    path.write_text(
        f'{{"schema": "arquant.table", "version": 1, "quantity": "energy", "unit": "mJ", "layers": {{{rows}}}}}'
    )
    table = read_table(path)
    assert (table.name, table.unit) == ("energy", "mJ")
    assert table.cost(Policy.uniform(mobilenet, 4), mobilenet) == 53 * 0.5


def test_refuses_bad_files(tmp_path):
    with pytest.raises(InputError, match="no such table"):
        read_table(tmp_path / "none.npy")
    (tmp_path / "text.npy").write_text("not numpy")
    np.save(tmp_path / "float.npy", np.zeros((3, 8, 8)))
    np.save(tmp_path / "shape.npy", np.zeros((3, 8), dtype=np.int64))
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "other.json").write_text('{"schema": "x", "version": 1}')
    (tmp_path / "broken.json").write_text('{"schema": ')
    (tmp_path / "rows.json").write_text(
        '{"schema": "arquant.table", "version": 1, "quantity": "energy", "unit": "mJ", "layers": {"a": [1]}}'
    )
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "large.json").write_text(
        '{"schema": "arquant.table", "version": 1, "quantity": "energy", "unit": "mJ", "layers": {"a": [[%s]]}}'
        % ("9" * 400)
    )
    (tmp_path / "zip.npy").write_bytes(b"PK\x03\x04 cut off")
    headers = {
        "header": "{'descr': (((",
        "huge": "{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999, 8, 8)}",
    }
    for name, header in headers.items():
        text = header.ljust(118).encode()
        (tmp_path / f"{name}.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    named = {"schema": "arquant.table", "version": 1, "unit": "mJ", "layers": {"a": [[0.5] * 8] * 8}}
    for number, quantity in enumerate(("bops", "energy per image", "")):
        (tmp_path / f"named{number}.json").write_text(json.dumps({**named, "quantity": quantity}))
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(FileFormatError, match=path.name):
            read_table(path)


def test_refuses_to_write(tmp_path, mobilenet):
    with pytest.raises(InputError, match="written as"):
        write_table(make_table(mobilenet), tmp_path / "table.csv")


@pytest.mark.parametrize("suffix", [".npy", ".json"])
def test_a_table_is_replaced_in_one_move(tmp_path, mobilenet, suffix, monkeypatch):
    path = tmp_path / f"table{suffix}"
    write_table(make_table(mobilenet), path)
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", _full)
    with pytest.raises(OSError, match="disk"):
        write_table(make_table(mobilenet, BitSerial(batch=1)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _full(*_):
    raise OSError("the disk is full")
