"""Every number of ours in the README, and in the table of certified networks of results/, follows from committed files."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arquant
from arquant.base.options import options_of
from arquant.certificates.bounds import FloatArray
from arquant.certificates.files import read_certificates
from arquant.certificates.metrics import metrics_json
from arquant.certificates.resampling import two_level_bootstrap, verdict
from arquant.commands.main import COMMANDS, find_command
from arquant.engines.base import OPENVINO_FLOAT32

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
README = (ROOT / "README.md").read_text()
PUBLIC = json.loads((RESULTS / "public/resnet110-sigma0.5.json").read_text())
REFERENCE = ROOT.parent / "shared/data/reference/certificates"
ALIKE = "resnet20-float-finetuned-sigma0.5"
MODELS = {"resnet20-3bit": "search/arq"}
"""folders whose model and policy are in another one"""


def rows(text: str) -> list[list[str]]:
    """The cells of the lines of a table that link to a folder of results/."""
    lines = [line for line in text.splitlines() if re.match(r"\|.*\]\((?:results/)?resnet20", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def folder_of(cells: list[str]) -> str:
    (found,) = [match[1] for cell in cells if (match := re.search(r"\]\((?:results/)?(resnet20[^)]*)\)", cell))]
    return found


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def certified(folder: Path | str) -> dict[str, Any]:
    return metrics_json(read_certificates(RESULTS / folder))


def measured(found: dict[str, Any]) -> list[str]:
    """ACR with its interval, right at radius 0, certified at 0.5 and at 1.0, as the tables write them."""
    shares = [found["clean_accuracy"], found["certified_accuracy"]["0.5"], found["certified_accuracy"]["1.0"]]
    acr = f"{found['acr']:.3f} [{found['acr_low']:.3f}, {found['acr_high']:.3f}]"
    return [acr, *(f"{share:.1%}".replace("%", " %") if share else "0 %" for share in shares)]


def sizes(folder: str) -> list[str]:
    """Bit operations and the size of the file."""
    home = RESULTS / MODELS.get(folder, folder)
    if (home / "policy.json").exists():
        cost = arquant.cost("resnet20", policy=home / "policy.json")
        return [
            f"{cost['gbops']:.3f} G ({cost['percent_of_fp32']:.2g} %)",
            f"{(home / 'model.safetensors').stat().st_size:,} bytes",
        ]
    shipped = ROOT / f"src/arquant/models/shipped/{folder}.safetensors"
    model = shipped if shipped.exists() else home / "model.safetensors"
    return [f"{float_gbops('resnet20'):.1f} G", f"{model.stat().st_size / 1e6:.1f} MB"]


def float_gbops(network: str) -> float:
    cost = arquant.cost(network, bits=8)
    return 100 * float(cost["gbops"]) / float(cost["percent_of_fp32"])


@pytest.mark.parametrize("cells", rows(README), ids=folder_of)
def test_a_row_of_the_readme_follows_from_its_folder(cells: list[str]) -> None:
    folder = folder_of(cells)
    assert cells[2:] == [*measured(certified(folder)), *sizes(folder)]
    sidecar = json.loads((RESULTS / folder / "certificates.json").read_text())
    settings = sidecar["settings"]
    assert (settings["sigma"], settings["n"], settings["alpha"], sidecar["rows"]) == (0.5, 100_000, 0.001, 500)
    typed = re.search(rf"^{cells[0]} (.+(?:\n  .+)*)$", README, re.MULTILINE)
    assert typed is not None
    ran = sidecar["provenance"]["command"].replace(" --progress lines", "")
    assert typed[1].splitlines()[-1].strip() == ran, (
        "the last command of the row is the one that its certificates record"
    )


@pytest.mark.parametrize("cells", rows((RESULTS / "README.md").read_text()), ids=folder_of)
def test_a_row_of_the_results_follows_from_its_folder(cells: list[str]) -> None:
    folder = folder_of(cells)
    assert cells[4:] == [*measured(certified(folder)), *sizes(folder)]
    settings = json.loads((RESULTS / folder / "certificates.json").read_text())["settings"]
    tolerance = "" if settings["adaptive"] is None else f"{settings['adaptive']['tolerance']:g}"
    assert cells[2:4] == [f"{settings['n']:,}", tolerance]


def test_the_float_network_fine_tuned_alike_has_its_row_as_soon_as_it_is_measured() -> None:
    """Written before the measurement: with its folder, the row must link to it, and the tests above check its numbers."""
    linked = ALIKE in map(folder_of, rows(README))
    assert linked == (RESULTS / ALIKE / "certificates.tsv").exists()
    assert linked != bool(re.search(r"\| being measured \|", README))


def test_the_other_numbers_of_the_readme() -> None:
    small = arquant.cost("resnet20", policy=RESULTS / "search/arq/policy.json")
    assert f"With {small['percent_of_fp32']:.2f} % of the float network's bit operations" in README
    assert f"| {float_gbops('resnet110'):.0f} G |" in README
    for summary, row, beside in (("search/seeds-10-15", "arq", "**"), ("uniform-pairs", "w2a4", "")):
        lines = re.findall(rf"^\| {row} .*$", (RESULTS / summary / "summary.md").read_text(), re.MULTILINE)
        (value,) = re.findall(r"[+-]\d\.\d+ \[[+-]\d\.\d+, [+-]\d\.\d+\]", " ".join(lines))
        assert f"{beside}{value}{beside}".replace("-", "−") in " ".join(README.split())
    compared = (RESULTS / "search/seeds-10-15/summary.md").read_text()
    assert "n = 10,000, adaptive stops" in compared
    assert "ACR of seeds 10, 11, 12, 13, 14, 15 " in compared
    assert "with the same six seeds" in README
    gain = PUBLIC["three_bit_minus_gaussian"]
    stated = f"{signed(gain['acr'], 3)} [{signed(gain['low'], 3)}, {signed(gain['high'], 3)}]"
    assert stated in " ".join(README.split())
    assert f"reach {PUBLIC['consistency']['acr']:.3f} and {PUBLIC['catrs']['acr']:.3f}" in README


def test_small_networks_are_compared_with_the_float_network_fine_tuned_alike() -> None:
    alike = read_certificates(RESULTS / ALIKE)
    stated = []
    for folder in ("resnet20-4bit", "resnet20-3bit"):
        gap = metrics_json(alike, read_certificates(RESULTS / folder))["difference"]
        stated.append(f"{signed(gap['acr'], 3)} [{signed(gap['low'], 3)}, {signed(gap['high'], 3)}]")
        longer = f"{signed(gap['acr'], 4)} [{signed(gap['low'], 4)}, {signed(gap['high'], 4)}]"
        assert longer in (RESULTS / "README.md").read_text()
    assert f"Rows 3 and 4 minus row 2, fine-tuned alike: ACR {' and '.join(stated)}" in " ".join(README.split())


def test_the_found_policy_is_compared_with_the_best_uniform_pair() -> None:
    pair, found = (read_certificates(RESULTS / folder) for folder in ("resnet20-w2a4", "resnet20-3bit"))
    gap = metrics_json(pair, found)["difference"]
    stated = f"{signed(gap['acr'], 4)} [{signed(gap['low'], 4)}, {signed(gap['high'], 4)}]"
    assert f"row 4 minus row 5 is {stated}" in " ".join(README.split())
    assert stated in (RESULTS / "README.md").read_text()


def test_today_s_search_is_compared_with_the_long_ones_and_the_uniform_pairs() -> None:
    def radii(folders: str) -> FloatArray:
        return np.stack([read_certificates(RESULTS / f"{folders}-seed-{seed}").credited for seed in (10, 11, 12)])

    found = radii("arq-searches/arq")
    table = (RESULTS / "README.md").read_text().partition("## `arq-searches`\n")[2].partition("\n## ")[0]
    assert f"| {' | '.join(f'{acr:.4f}' for acr in [*found.mean(axis=1), found.mean()])} |" in table
    for family, in_readme in (("arq-paper", True), ("arq", False), ("uniform", True), ("w2a4", True)):
        control = radii(f"search-models/{family}")
        gap = two_level_bootstrap(control, found, paired_seeds=True)
        stated = f"{signed(gap.value, 4)} [{signed(gap.low, 4)}, {signed(gap.high, 4)}]"
        figures = " | ".join(f"{acr:.4f}" for acr in [*control.mean(axis=1), control.mean()])
        assert f"| {figures} | {stated}, {verdict(gap, control.shape[1])} |" in table
        assert (stated in " ".join(README.split())) == in_readme


def test_the_row_of_the_public_network_is_the_quotation() -> None:
    quoted = PUBLIC["gaussian"]
    accuracy = {radius: quoted[f"certified_at_{radius}"] for radius in ("0.5", "1.0")}
    cells = measured({**quoted, "certified_accuracy": accuracy})
    assert f"| {' | '.join(cells)} |" in README


@pytest.mark.reference
@pytest.mark.parametrize("kind", ["gaussian", "consistency", "catrs"])
def test_quotations_are_what_the_public_certificates_say(kind: str, tmp_path: Path) -> None:
    source = REFERENCE / f"cifar10-resnet110-{kind}-sigma0.5.tsv"
    if not source.exists():
        pytest.skip("the public certificates are not here")
    head, *lines = source.read_text().splitlines()
    chosen = [line for line in lines if int(line.split("\t")[0]) % 20 == 0]
    (tmp_path / "public.tsv").write_text("\n".join([head, *chosen, ""]))
    found = metrics_json(read_certificates(tmp_path / "public.tsv"))
    expected = {**found, **{f"certified_at_{radius}": found["certified_accuracy"][radius] for radius in ("0.5", "1.0")}}
    assert PUBLIC[kind] == {name: round(expected[name], 3) for name in PUBLIC[kind]}
    if kind == "gaussian":
        both = metrics_json(read_certificates(tmp_path / "public.tsv"), read_certificates(RESULTS / "resnet20-3bit"))
        assert PUBLIC["three_bit_minus_gaussian"] == {
            name: round(value, 3) for name, value in both["difference"].items()
        }


def test_the_figure_is_what_its_command_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    monkeypatch.delitem(sys.modules, "readme_figure", raising=False)
    drawn = importlib.import_module("readme_figure").figure()
    assert drawn == (ROOT / "docs/acr-against-cost.svg").read_text(), "run: python experiments/readme_figure.py"


def test_what_the_readme_says_of_settings_and_versions() -> None:
    for name, value in OPENVINO_FLOAT32.items():
        assert f"`{name}: {json.dumps(value)}`" in README
    (torch_version,) = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch_version in README


def test_the_readme_is_short_and_its_commands_exist() -> None:
    assert len(README.splitlines()) <= 120
    for command, words in re.findall(r"^[\d ] arquant (\w+) (.*)$", README, re.MULTILINE):
        assert command in COMMANDS
        flags = {option.flag for option in options_of(find_command(command).options)}
        assert set(re.findall(r"--[a-z-]+", words)) <= flags
