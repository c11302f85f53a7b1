"""`arquant report` writes what it says, where it says, in every format."""

import csv
import json
import re
import shutil
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arquant.base.errors import ArquantError, InputError
from arquant.certificates.certificate import CertificateSet
from arquant.certificates.files import read_certificates
from arquant.certificates.metrics import compare
from arquant.commands.main import main
from arquant.commands.report import report
from arquant.loading.datasets import load_data
from arquant.quantization.policy import Policy
from arquant.reporting.html import Linker
from arquant.reporting.options import Format
from arquant.reporting.words import WORDS
from tests.support.damage import FUZZ, mutate
from tests.support.report_runs import HOSTILE, write_certificates, write_search
from tests.support.some_certificates import SETTINGS, certificate, certificate_set


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_search(tmp_path_factory.mktemp("search") / "run")


def test_the_page_is_self_contained(run):
    written = report(run)
    assert written.path == run / "report.html"
    page = written.path.read_text()
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "http://" not in page
    assert "https://" not in page
    assert len(page) < 500_000
    titles = ("Verdict", "What came out", "Evidence", "What may be claimed", "Images", "Trust", "Words")
    assert re.findall("<h2>(.*?)</h2>", page) == list(titles)
    assert "Not claimed" in page


def test_the_page_says_how_the_search_was_set(run):
    page = report(run).path.read_text()
    for text in ("× 48 votes, against 160 of the float model", "60 steps", "best of 3", "10.0 epochs of 60,000 images"):
        assert text in page


def test_the_page_tells_several_searches_apart(run, tmp_path):
    other = write_search(tmp_path / "other")
    journal = (other / "journal.jsonl").read_text()
    (other / "journal.jsonl").write_text(
        journal.replace("bops<=3bit", "bops<=2bit").replace('"search_n": 48', '"search_n": 96')
    )
    (other / "config.yaml").unlink()
    alone = write_certificates(tmp_path / "alone", certificate_set())
    written = report(run, other, alone, out=tmp_path)
    page = written.path.read_text()
    assert "<dt>budget</dt><dd>bops&lt;=3bit; bops&lt;=2bit</dd>" in page
    for text in (f"<h3>Search: {run}</h3>", f"<h3>Search: {other}</h3>", "× 48 votes", "× 96 votes"):
        assert text in page
    examined = dict(re.findall(r"<summary>([^<]*)</summary><dl>.*?<dt>candidates examined</dt><dd>(.*?)</dd>", page))
    assert (examined["searched (w3a3), run"], examined["searched (w3a3), other"]) == ("4", "4")
    assert examined["toy"] == "unknown"
    data = json.loads(written.data.read_text())
    assert [search["folder"] for search in data["searches"]] == [str(run), str(other)]
    assert [len(search["candidates"]) for search in data["searches"]] == [5, 5]
    assert data["searches"][0]["search"] == data["search"]


def test_the_page_is_well_formed(run):
    empty = {"meta", "link", "br", "img", "path", "circle", "rect"}

    class Checker(HTMLParser):
        stack: list[str]

        def handle_starttag(self, tag, attrs):
            if tag not in empty:
                self.stack.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert self.stack.pop() == tag

    checker = Checker()
    checker.stack = []
    checker.feed(report(run).path.read_text())
    assert checker.stack == []


def test_the_data_are_beside_it(run):
    written = report(run)
    data = json.loads(written.data.read_text())
    assert [model["name"] for model in data["models"]] == ["searched (w3a3)", "float network", "uniform (w2a2)"]
    assert data["searches"][0]["winners"][0]["number"] == 0
    assert data["models"][0]["metrics"]["acr"] == read_certificates(run).acr
    assert len(data["models"][0]["certificates"]) == 40
    assert len(data["candidates"]) == 5
    assert data["sensitivity"]["layers"]["a"]["w"]["2"] == 0.2


def test_clean_accuracy_has_intervals_and_is_compared(run):
    found, base = (read_certificates(run / part) for part in ("", "controls/float"))
    clean, gap = found.bootstrap(0.0), compare(base, found).certified_accuracy[0.0]
    shown = f"{100 * clean.value:.1f} [{100 * clean.low:.1f}, {100 * clean.high:.1f}]"
    differs = f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    for name in ("html", "md", "latex"):
        text = report(run, format=name).path.read_text()
        assert shown in text
        assert differs in text
        assert "difference [low, high]" in text
        assert "right at r = 0" in text
    data = json.loads(report(run).data.read_text())
    metrics = data["models"][0]["metrics"]
    assert [metrics[f"clean_accuracy{part}"] for part in ("", "_low", "_high")] == list(clean)
    (against,) = [each for each in data["differences"] if each["first"] == "float network"]
    assert against["certified_accuracy"]["0.0"] == gap._asdict()
    row = next(csv.DictReader(StringIO(report(run, format="csv").path.read_text())))
    assert [float(row[f"certified_0{part}"]) for part in ("", "_low", "_high")] == list(clean)


def trusted(folder):
    page = report(folder).path.read_text()
    return dict(re.findall(r"<dt>([^<]*)</dt><dd>(?:<code>)?(.*?)(?:</code>)?</dd>", page)), page


def test_the_parts_of_a_run_are_told(tmp_path):
    engine = {"engine": "openvino", "precision": "int8", "version": "2025"}
    parts = [
        {"rows": 12, "written": "2026-01-01T00:00:00Z", "commit": "aaa", "engine": engine},
        {"rows": 12, "written": "2026-01-02T00:00:00Z"},
        "of another kind",
    ]
    more = {"written": "2026-01-03T00:00:00Z", "commit": "ccc", "parts": parts}
    rows, _ = trusted(write_certificates(tmp_path, certificate_set(), **more))
    assert rows["begun"] == "2026-01-01T00:00:00Z"
    assert rows["part 1 of 3"] == "rows 1 to 12, 2026-01-01T00:00:00Z, commit aaa, openvino int8 2025"
    assert rows["part 2 of 3"] == "no finished rows, 2026-01-02T00:00:00Z"
    assert rows["part 3 of 3"] == "rows 13 to 40, 2026-01-03T00:00:00Z, commit ccc, openvino int8"


def test_the_page_says_which_warnings_it_knows(tmp_path):
    rows, page = trusted(write_certificates(tmp_path / "old", certificate_set()))
    assert rows["warnings while certifying"] == "not recorded"
    assert "Writing this report raised no warnings" in page
    assert not any(name.startswith("part ") for name in rows)
    rows, page = trusted(write_certificates(tmp_path / "run", certificate_set(), warnings=["PyTorch instead"]))
    assert rows["warnings while certifying"] == "PyTorch instead"
    assert "<li>toy, while certifying: PyTorch instead</li>" in page
    assert "no warnings" not in page
    for earlier, words in (
        ({}, "not recorded by every part"),
        ({"warnings": ["slow"]}, "slow"),
        ({"warnings": []}, "none"),
    ):
        run = write_certificates(tmp_path / words, certificate_set(), warnings=[], parts=[{"rows": 3, **earlier}])
        assert trusted(run)[0]["warnings while certifying"] == words


def test_hostile_names_are_text(tmp_path):
    folder = write_certificates(tmp_path / "run", certificate_set(), model=HOSTILE)
    page = report(folder).path.read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<script>" not in report(folder, format="md").path.read_text()


def test_csv_holds_unrounded_figures(run):
    rows = list(csv.DictReader(StringIO(report(run, format="csv").path.read_text())))
    assert float(rows[0]["acr"]) == read_certificates(run).acr
    assert float(rows[0]["certified_0.25"]) == read_certificates(run).certified_accuracy(0.25)
    assert rows[0]["bops"] == "2000000000.0"


def test_markdown_and_latex_tables(run):
    markdown = report(run, format="md").path.read_text()
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert any(line.startswith("| uniform (w2a2) |") for line in rows)
    assert "What may be claimed" in markdown
    latex = report(run, format="latex").path.read_text()
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 3
    assert r"in \% of all; r = 0 is" in latex
    for line in latex.splitlines():
        assert not re.search(r"(?<!\\)[%#_]", line), line


@pytest.mark.parametrize("name", get_args(Format))
def test_out_is_a_file_or_a_folder(run, tmp_path, name):
    inside = report(run, format=name, out=tmp_path / "new").path
    assert inside.parent == tmp_path / "new"
    assert report(run, format=name, out=tmp_path / f"x{inside.suffix}").path == tmp_path / f"x{inside.suffix}"
    with pytest.raises(InputError, match="should end in"):
        report(run, format=name, out=tmp_path / "x.pdf")


def test_files_of_a_run_are_not_replaced(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    before = (tmp_path / "run" / "certificates.json").read_bytes()
    for name in ("certificates", "policy"):
        with pytest.raises(InputError, match=rf"would replace .*{name}\.json, which is no report"):
            report(run, out=tmp_path / "run" / f"{name}.html")
    assert (tmp_path / "run" / "certificates.json").read_bytes() == before
    assert not (tmp_path / "run" / "certificates.html").exists()
    for _ in range(2):
        report(run, out=tmp_path / "run" / "mine.html")


def test_refused_certificates_are_shown_as_such(tmp_path):
    write_certificates(tmp_path, certificate_set())
    text = (tmp_path / "certificates.tsv").read_text()
    row = next(line for line in text.splitlines()[1:] if line.split("\t")[2] != "-1")
    cells = row.split("\t")
    (tmp_path / "certificates.tsv").write_text(text.replace(row, "\t".join([*cells[:3], "9.0", *cells[4:]])))
    written = report(tmp_path)
    assert "is damaged: the radius of image" in written.notes[0]
    page = written.path.read_text()
    assert "are refused: " in page
    assert "nothing may be claimed" in page
    assert "does NOT follow" in page
    assert "may be shipped" not in page
    assert "Ship " not in page
    assert "nothing may be claimed" in report(tmp_path, format="md").path.read_text()


def test_captions_are_text_too(tmp_path):
    for name, seed in (("a", 0), ("<img src=x>", 3)):
        write_certificates(tmp_path / name, certificate_set(settings=replace(SETTINGS, seed=seed)))
    markdown = report(tmp_path / "a", tmp_path / "<img src=x>", format="md", out=tmp_path / "x.md").path.read_text()
    assert "seed" in markdown
    assert "<img" not in markdown


def test_few_images_have_no_interval(tmp_path):
    write_certificates(tmp_path, certificate_set(5))
    found = read_certificates(tmp_path)
    page = report(tmp_path).path.read_text()
    assert f"(average certified radius) is {found.acr:.3f}; {found.clean_accuracy:.1%} of 5 images are right" in page


def test_words_follow_the_kind_of_certificate(tmp_path, capsys):
    settings = replace(SETTINGS, mode="label", certificate="multiclass", family_wise=2)
    rows = [replace(certificate(900, settings, idx=i), n0=0, select_votes=0) for i in range(2)]
    write_certificates(tmp_path, CertificateSet(rows, settings))
    page = report(tmp_path).path.read_text()
    assert "1,000 to bound the probability of the label" in page
    assert "to select the class" not in page
    assert main(["metrics", str(tmp_path)]) == 0
    assert "alpha 0.001 for all 2 images, multiclass of the label, for evaluation only" in capsys.readouterr().out


def test_an_unknown_format_is_refused(run):
    with pytest.raises(InputError, match="docx"):
        report(run, format="docx")


def test_figures_at_paper_quality(run, tmp_path):
    pytest.importorskip("matplotlib")
    written = report(run, out=tmp_path, figures=tmp_path / "figures")
    assert {path.suffix for path in written.figures} == {".svg", ".pdf"}
    assert len(written.figures) == 16
    assert all(path.stat().st_size > 1000 for path in written.figures)


def test_figures_of_several_models_are_all_kept(tmp_path):
    pytest.importorskip("matplotlib")
    runs = [write_certificates(tmp_path / name, certificate_set()) for name in ("модель", "сеть")]
    for run in runs:
        Policy({"a": "w8a8", "b": "w3a3", "c": "w8a8"}).save(run / "policy.json")
    written = report(*runs, format="csv", out=tmp_path / "t.csv", figures=tmp_path / "figures")
    assert len(written.figures) == len(set(written.figures)) == len(list((tmp_path / "figures").iterdir()))
    assert tmp_path / "figures" / "bits-1.svg" in written.figures


def test_a_plain_file_of_the_field(tmp_path):
    write_certificates(tmp_path, certificate_set())
    (tmp_path / "certificates.json").unlink()
    written = report(tmp_path / "certificates.tsv")
    assert any("settings unknown" in note for note in written.notes)
    assert "settings unknown" in written.path.read_text()


def test_on_the_command_line(run, cli, tmp_path):
    answer = cli("report", str(run), "--out", str(tmp_path), "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["report"] == str(tmp_path / "report.html")
    assert cli("report", str(tmp_path / "none")).code == 2


FILES = ("certificates.tsv", "certificates.json", "config.yaml", "policy.json", "journal.jsonl", "sensitivity.json")


@settings(FUZZ, max_examples=max(FUZZ.max_examples // 10, 20))
@given(data=st.data())
def test_fuzz_damaged_runs_are_reported_or_refused(run, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(run, folder, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(FILES))
    (folder / name).write_bytes(mutate((folder / name).read_bytes(), data))
    with suppress(ArquantError):
        assert report(folder).path.exists()


def test_raw_keys_and_long_numbers_stay_out_of_the_page(tmp_path):
    noise = {"key_id": "765a", "total_variation": 1.9451107391432743e-13}
    rows, page = trusted(write_certificates(tmp_path, certificate_set(), noise=noise))
    assert rows["noise"] == "key 765a, distance of the drawn noise from the ideal one (total variation) at most 2e-13"
    assert "total_variation" not in page
    assert not re.search(r"\d\.\d{9}", re.sub(r"<svg.*?</svg>", "", page))


def test_a_radius_is_said_in_grey_levels(tmp_path):
    write_certificates(tmp_path, certificate_set(), data={"name": "elsewhere", "images": 40, "shape": [3, 32, 32]})
    page = report(tmp_path).path.read_text()
    assert "With R = 0.5, no change of the image within ℓ₂ distance 0.5 changes the answer" in page
    assert "0.5 is about 2.3 of 255 grey levels on every value of a 32 × 32 RGB image" in page
    assert "<code>certificates.tsv</code>" in page


def test_an_abstention_shows_its_votes_and_their_class(tmp_path):
    images = load_data("sample", "certify").take([0, 1])
    rows = [
        certificate(480, idx=int(images.indices[0]), label=int(images.labels[0]), klass=1),
        certificate(990, idx=int(images.indices[1]), label=int(images.labels[1]), klass=int(images.labels[1])),
    ]
    write_certificates(tmp_path, CertificateSet(rows, SETTINGS), data={"name": "sample (certify)", "images": 2})
    sidecar = json.loads((tmp_path / "certificates.json").read_text())
    (tmp_path / "certificates.json").write_text(json.dumps({**sidecar, "images_sha256": images.fingerprint()}))
    page = report(tmp_path).path.read_text()
    assert page.count("<img ") == 2
    assert f"480 of 1,000 votes for {images.class_names[1]}" in page


def test_the_time_of_a_search_is_that_of_all_its_work(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    page = report(tmp_path / "run").path.read_text()
    assert "The search took 6 s on candidates, 30 s on the final fine-tunings, 2 min on certifying 3 models." in page
    (tmp_path / "run" / "provenance.json").write_text(json.dumps({"written": "2026-01-01T00:00:00Z"}))
    for place in ("", "controls/float", "controls/uniform"):
        sidecar = tmp_path / "run" / place / "certificates.json"
        data = json.loads(sidecar.read_text())
        data["provenance"]["written"] = "2026-01-01T00:10:00Z"
        sidecar.write_text(json.dumps(data))
    assert "The search took 11 min from its start to the last certificate" in report(tmp_path / "run").path.read_text()


def test_terms_are_linked_where_they_first_stand():
    linked = Linker()
    assert linked("ACR <b> with 3 votes") == (
        f'<a href="#word-{[*WORDS].index("ACR") + 1}">ACR</a> &lt;b&gt; with 3 '
        f'<a href="#word-{[*WORDS].index("vote") + 1}">votes</a>'
    )
    assert linked("ACR again, one vote") == "ACR again, one vote"
