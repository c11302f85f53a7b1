"""`arquant.certify` in a folder that others work in, too."""

import json

import pytest

from arquant.base.errors import InputError, MismatchError
from arquant.commands.certify import certify
from arquant.engines.choice import ENGINES
from arquant.models.weights import save_weights
from tests.support.small_search import SIGMA, image_set, quick_engines, small_classifier

IMAGES = image_set(6, 3, "certify")
HOW = {"sigma": SIGMA, "n": 64, "n0": 16}


@pytest.fixture(scope="module", autouse=True)
def _quick_engines():
    with quick_engines():
        yield


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def while_its_engine_is_made(monkeypatch, act):
    """Do something in the time that `certify` takes to make its engine, once."""
    make, calls = ENGINES["openvino"], []

    def made(*args, **options):
        if not calls:
            calls.append(None)
            act()
        return make(*args, **options)

    monkeypatch.setitem(ENGINES, "openvino", made)


def test_what_another_run_began_meanwhile_is_neither_taken_nor_touched(tmp_path, monkeypatch):
    other = {**HOW, "seed": 7}
    while_its_engine_is_made(monkeypatch, lambda: certify(small_classifier(), IMAGES, out=tmp_path, **other))
    with pytest.raises(MismatchError, match="holds another run"):
        certify(small_classifier(), IMAGES, out=tmp_path, **HOW)
    monkeypatch.undo()
    before = files(tmp_path)
    assert certify(small_classifier(), IMAGES, out=tmp_path, **other).certificates.settings.seed == 7
    assert files(tmp_path).keys() == before.keys()
    with pytest.raises(MismatchError, match=r"holds another run \(precision 'float32' there, 'bfloat16' here\)"):
        certify(small_classifier(), IMAGES, out=tmp_path, precision="bfloat16", **other)
    assert files(tmp_path)["certificates.tsv"] == before["certificates.tsv"]


def test_the_same_run_by_another_engine_meanwhile_is_not_gone_on_with(tmp_path, monkeypatch):
    def begin():
        sidecar = certify(small_classifier(), IMAGES, out=tmp_path, **HOW).path.with_suffix(".json")
        record = json.loads(sidecar.read_text())
        record["provenance"]["engine"]["batch"] += 1
        sidecar.write_text(json.dumps(record))

    while_its_engine_is_made(monkeypatch, begin)
    with pytest.raises(MismatchError, match="another process has begun"):
        certify(small_classifier(), IMAGES, out=tmp_path, **HOW)


def test_a_table_without_rows_and_sidecar_is_no_run(tmp_path):
    """What a kill leaves between the two files."""
    certify(small_classifier(), IMAGES, out=tmp_path, **HOW)
    table = tmp_path / "certificates.tsv"
    header = table.read_text().splitlines(keepends=True)[0]
    for text in ("", header[:9], header):
        (tmp_path / "certificates.json").unlink()
        table.write_text(text)
        assert len(certify(small_classifier(), IMAGES, out=tmp_path, **HOW).certificates) == len(IMAGES)
    (tmp_path / "certificates.json").unlink()
    with pytest.raises(MismatchError, match=r"exists without certificates\.json"):
        certify(small_classifier(), IMAGES, out=tmp_path, **HOW)


def test_the_folder_of_a_search_takes_certificates_of_its_own_model_only(tmp_path):
    arch = "tests.support.small_search:factory"
    save_weights(tmp_path / "mine.safetensors", small_classifier(), arch=arch, sigma=SIGMA)
    run = tmp_path / "run"
    run.mkdir()
    (run / "journal.jsonl").write_text("{}\n")
    with pytest.raises(MismatchError, match=r"holds another run \(the one of its journal\.jsonl\)"):
        certify(tmp_path / "mine.safetensors", IMAGES, out=run, arch=arch, **HOW)
    assert [file.name for file in run.iterdir()] == ["journal.jsonl"]


@pytest.mark.parametrize("adaptive", [False, True])
def test_more_votes_than_can_be_counted_are_refused(tmp_path, adaptive):
    with pytest.raises(InputError, match="at most 9,007,199,254,740,992"):
        certify(small_classifier(), IMAGES, out=tmp_path, adaptive=adaptive, **{**HOW, "n": 10**19})
