import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arquant.base.errors import ArquantError, FileFormatError, InputError, MismatchError
from arquant.certificates.adaptive import Adaptive
from arquant.certificates.certificate import Settings
from arquant.certificates.files import (
    CertificateWriter,
    read_certificates,
    read_sidecar,
    settings_from_json,
    settings_json,
    sidecar_path,
    write_sidecar,
)
from arquant.certificates.table import HEADER
from tests.support.damage import FUZZ, mutate
from tests.support.some_certificates import SETTINGS, certificate, certificate_set


def write(folder, certificates, **options):
    path = folder / "certificates.tsv"
    with CertificateWriter(path, **options) as writer:
        for each in certificates.certificates:
            writer.write(each)
    write_sidecar(
        path, certificates.settings, rows=len(certificates), images_sha256="ab" * 32, provenance={"batch": 512}
    )
    return path


def test_a_written_set_comes_back(tmp_path):
    some = certificate_set()
    found = read_certificates(write(tmp_path, some))
    assert found.settings == some.settings
    assert found.provenance == {"batch": 512}
    assert found.images_sha256 == "ab" * 32
    assert found.warnings == ()
    assert found.acr == pytest.approx(some.acr, abs=1e-8)
    assert [c.counts for c in found.certificates] == [c.counts for c in some.certificates]
    assert read_certificates(tmp_path).acr == found.acr
    assert [p.name for p in tmp_path.iterdir() if p.suffix not in (".tsv", ".json")] == []


def test_rows_are_on_disk_as_soon_as_they_are_written(tmp_path):
    writer = CertificateWriter(tmp_path / "c.tsv")
    writer.write(certificate(900, idx=5))
    assert (tmp_path / "c.tsv").read_text().count("\n") == 2
    writer.close()


@pytest.mark.parametrize("cut", [0, 10, len(HEADER), len(HEADER) + 1, len(HEADER) + 30, 300, 1000, 10**6])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, cut):
    some = certificate_set(20)
    whole = write(tmp_path, some).read_bytes()
    path = tmp_path / "again.tsv"
    path.write_bytes(whole[:cut])
    with CertificateWriter(path) as writer:
        assert len(writer.done) == max(whole[:cut].count(b"\n") - 1, 0)
        for each in some.certificates[len(writer.done) :]:
            writer.write(each)
    assert path.read_bytes() == whole


def test_an_image_is_not_written_twice_even_after_a_resume(tmp_path):
    with CertificateWriter(tmp_path / "c.tsv") as writer:
        writer.write(certificate(900, idx=5))
    with CertificateWriter(tmp_path / "c.tsv") as writer, pytest.raises(InputError, match="image 5"):
        writer.write(certificate(900, idx=5))


def test_a_full_disk_loses_no_row_that_was_written(tmp_path):
    some = certificate_set(4)
    whole = write(tmp_path, some).read_bytes()
    path = tmp_path / "full.tsv"
    lines = len(b"".join(whole.splitlines(keepends=True)[:3]))
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with CertificateWriter(path) as writer:
        writer.write(some.certificates[0])
        writer.write(some.certificates[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (lines + 20, before[1]))  # room for the beginning of a row
        try:
            with pytest.raises(InputError, match=r"cannot write .*full\.tsv.*same command goes on"):
                writer.write(some.certificates[2])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == lines + 20
    with CertificateWriter(path) as writer:
        for each in some.certificates[len(writer.done) :]:
            writer.write(each)
    assert path.read_bytes() == whole


def test_one_writer_at_a_time(tmp_path):
    with CertificateWriter(tmp_path / "c.tsv") as writer:
        writer.write(certificate(900, idx=5))
        with pytest.raises(MismatchError, match="in use by another process"):
            CertificateWriter(tmp_path / "c.tsv")
        writer.write(certificate(900, idx=6))
    with CertificateWriter(tmp_path / "c.tsv") as writer:
        assert [c.idx for c in writer.done] == [5, 6]


@pytest.mark.parametrize(
    "content", [b"something else\n", b"idx\tlabel\n", b"\xff\xfe\n", HEADER.encode() + b"\nsummary\n"]
)
def test_a_foreign_file_is_not_overwritten(tmp_path, content):
    (tmp_path / "c.tsv").write_bytes(content)
    with pytest.raises(FileFormatError):
        CertificateWriter(tmp_path / "c.tsv")
    assert (tmp_path / "c.tsv").read_bytes() == content


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere.c\.tsv"):
        CertificateWriter(tmp_path / "nowhere" / "c.tsv")
    with pytest.raises(InputError, match=r"missing\.tsv"):
        read_certificates(tmp_path / "missing.tsv")
    with pytest.raises(InputError, match="nowhere"):
        write_sidecar(tmp_path / "nowhere" / "c.json", SETTINGS, rows=1)


def test_fewer_rows_than_stated_are_an_error(tmp_path):
    path = write(tmp_path, certificate_set())
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-3]))
    with pytest.raises(FileFormatError, match=r"37 rows where certificates\.json states 40"):
        read_certificates(path)


def test_without_a_sidecar_the_settings_are_unknown(tmp_path):
    path = write(tmp_path, certificate_set())
    sidecar_path(path).unlink()
    found = read_certificates(path)
    assert found.settings is None
    assert "settings unknown" in found.warnings[0]


def test_a_file_without_rows_is_an_error(tmp_path):
    (tmp_path / "c.tsv").write_text(HEADER + "\n")
    with pytest.raises(FileFormatError, match="no certificates"):
        read_certificates(tmp_path / "c.tsv")


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        Settings(0.25, noise="laplace", n0=0, mode="label", family_wise=500, seed=7),
        Settings(1.0, certificate="multiclass", adaptive=Adaptive(tolerance=None, futility_beta=0.01)),
        Settings(1.0, n=100_000, adaptive=Adaptive(tolerance=0.05)),
    ],
)
def test_settings_come_back_and_state_what_follows_from_them(settings):
    data = json.loads(json.dumps(settings_json(settings)))
    assert settings_from_json(data) == settings
    assert data["alpha_per_image"] == settings.effective_alpha
    assert data["norm"] == settings.norm


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"schema": "other"}, "arquant.certificates"),
        ({"version": 2}, "version 2"),
        ({"rows": 0}, "rows"),
        ({"rows": True}, "rows"),
        ({"images_sha256": 3}, "images_sha256"),
        ({"provenance": []}, "provenance"),
        ({"settings": None}, "expected exactly"),
        ({"settings": {**settings_json(SETTINGS), "extra": 1}}, "expected exactly"),
        ({"settings": {**settings_json(SETTINGS), "sigma": "0.5"}}, "sigma cannot be '0.5'"),
        ({"settings": {**settings_json(SETTINGS), "n": True}}, "n cannot be True"),
        ({"settings": {**settings_json(SETTINGS), "sigma": 10**400}}, "out of range"),
        ({"settings": {**settings_json(SETTINGS), "alpha": 2.0}}, "alpha"),
        ({"settings": {**settings_json(SETTINGS), "adaptive": {}}}, "adaptive"),
        (
            {
                "settings": {
                    **settings_json(SETTINGS),
                    "n": 10**30,
                    "adaptive": {"tolerance": 0.1, "futility_beta": 0.1},
                }
            },
            "at most 9,007,199,254,740,992",
        ),
    ],
)
def test_a_sidecar_that_is_wrong_is_refused_and_says_where(tmp_path, change, named):
    path = sidecar_path(write(tmp_path, certificate_set(4)))
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileFormatError, match=named) as caught:
        read_sidecar(path)
    assert "certificates.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3", '"x"', "1" * 5000])
def test_a_sidecar_that_is_no_json_object_is_refused(tmp_path, text):
    path = write(tmp_path, certificate_set(4))
    sidecar_path(path).write_text(text)
    with pytest.raises(FileFormatError, match=r"certificates\.json"):
        read_certificates(path)


@pytest.fixture(scope="module")
def sound_files(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("sound"), certificate_set(6))
    return {".tsv": path.read_bytes(), ".json": sidecar_path(path).read_bytes()}


@FUZZ
@given(st.data())
def test_fuzzed_files_raise_only_our_errors(sound_files, tmp_path, data):
    path = tmp_path / "c.tsv"
    damaged = data.draw(st.sampled_from(sorted(sound_files)))
    for suffix, content in sound_files.items():
        path.with_suffix(suffix).write_bytes(mutate(content, data) if suffix == damaged else content)
    with contextlib.suppress(ArquantError):
        read_certificates(path)
    with contextlib.suppress(ArquantError):
        CertificateWriter(path).close()


@FUZZ
@given(st.binary(max_size=300), st.booleans())
def test_fuzzed_bytes_raise_only_our_errors(tmp_path, noise, after_header):
    path = tmp_path / "c.tsv"
    path.write_bytes((HEADER + "\n").encode() * after_header + noise)
    with contextlib.suppress(ArquantError):
        read_certificates(path)


def test_the_trusted_core_needs_no_torch():
    core = ("bounds", "claims", "adaptive", "files", "metrics", "recomputation", "incremental_bounds", "contradictions")
    code = f"import sys, {', '.join('arquant.certificates.' + name for name in core)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_table_without_end_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("arquant.certificates.files._MOST_BYTES", 2**20)
    (tmp_path / "certificates.tsv").symlink_to("/dev/zero")
    with pytest.raises(FileFormatError, match="longer than 1,048,576 bytes"):
        read_certificates(tmp_path / "certificates.tsv")
