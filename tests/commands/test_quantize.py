"""`inspect`, `cost`, `quantize` and `finetune` from the command line, on a small network that is not ours."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arquant
from arquant.base.errors import InputError
from arquant.base.file_lock import in_use
from arquant.commands.main import main
from arquant.loading.models import load_model
from arquant.models.weights import save_weights
from arquant.quantization.artifact import read_provenance
from arquant.training.loop import train as run_training

FACTORY = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )
"""
MODEL = ["my_small_net:net", "--input", "3,8,8", "--classes", "4"]
ALLOW = ["--arch", "my_small_net:net"]
QUANTIZE = ["quantize", *MODEL[:1], "npz:data.npz", *MODEL[1:], "--bits", "4", "--sigma", "0.1", "--out", "run", "-q"]
FINETUNE = ["finetune", "run", "--steps", "1", "--batch", "16", "-q", *ALLOW]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_small_net.py").write_text(FACTORY)
    generator = np.random.default_rng(0)
    labels = np.arange(64) % 4
    images = (generator.integers(0, 60, (64, 3, 8, 8)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "data.npz", images=images[:48], labels=labels[:48])
    np.savez(tmp_path / "other.npz", images=images[48:], labels=labels[48:])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def stages(err: str) -> dict[str, list[tuple[float, float]]]:
    """How far each stage was, in order, as `--progress json` says it."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in map(json.loads, err.splitlines()):
        if "stage" in line:
            found.setdefault(line["stage"], []).append((line["done"], line["total"]))
    return found


def test_quantize_and_export_show_how_far_they_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in QUANTIZE if word != "-q"]
    code, _, err = run(capsys, *words, "--progress", "json")
    assert code == 0
    assert stages(err)["calibrate"] == [(0, 48), (48, 48)]
    assert stages(err)["choose clips"][-1] == (4, 4)
    code, _, err = run(capsys, "export", "run", *ALLOW, "--progress", "json")
    assert code == 0
    assert {"note": "writing run/model.onnx: seconds, minutes for a large network"} in map(json.loads, err.splitlines())
    first = stages(err)["compare in the certifying engine"]
    assert first[0] == (0, 512)
    assert first[-1][0] == first[-1][1] >= 512


def test_inspect_lists_the_layers_of_a_foreign_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "inspect", *MODEL, "--json")
    facts = json.loads(out)
    assert code == 0
    assert [row["name"] for row in facts["layers"]] == ["0", "3", "6", "10"]
    assert [row["signed_input"] for row in facts["layers"]] == [True, False, False, False]
    assert facts["weights"] == 8 * 27 + 2 * 8 * 72 + 32
    code, out, _ = run(capsys, "inspect", *MODEL)
    assert code == 0
    assert "4 layers" in out


def test_the_columns_of_inspect_stand_below_their_headings(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heading, first = run(capsys, "inspect", *MODEL)[1].splitlines()[:2]
    assert heading.index("kind") == first.index("conv")
    assert len(set(heading.split())) == len(heading.split())


def test_what_finetune_names_next_would_not_be_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    code, out, _ = run(capsys, *FINETUNE)
    assert code == 0
    assert "next: arquant certify run OTHER_DATA --arch my_small_net:net" in out


def test_cost_of_resnet20_is_the_specified_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "cost", "resnet20", "--bits", "3", "--json")
    assert code == 0
    assert json.loads(out) == {
        "gbops": pytest.approx(0.3917, abs=5e-5),
        "percent_of_fp32": pytest.approx(0.94, abs=5e-3),
        "bytes": pytest.approx(118_500, abs=500),  # the file has 113,752, of which 12,584 are float parameters
        "weight_bytes": 102_256,
        "latency_ms": None,
    }
    code, out, _ = run(capsys, "cost", "resnet20", "--bits", "3", "--convention", "paper", "--json")
    assert json.loads(out)["gbops"] == pytest.approx(0.362, abs=5e-4)


def test_a_latency_table_can_be_made_and_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "cost", *MODEL, "--make-table", "table.npy", "--json")
    assert (code, json.loads(out)) == (0, {"table": "table.npy"})
    code, out, _ = run(capsys, "cost", *MODEL, "--bits", "4", "--table", "table.npy", "--json")
    latency = json.loads(out)["latency_ms"]
    assert latency > 0
    code, out, _ = run(capsys, "cost", *MODEL, "--bits", "4", "--make-table", "again.npy", "--json")
    assert (code, json.loads(out)["table"], json.loads(out)["latency_ms"]) == (0, "again.npy", latency)
    code, out, _ = run(capsys, "cost", *MODEL, "--bits", "4", "--make-table", "again.npy")
    assert out.startswith("latency table (estimated): again.npy\nbit operations")


def test_a_table_of_energy_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "cost", *MODEL, "--make-table", "table.json", "-q")[0] == 0
    table = json.loads(Path("table.json").read_text())
    Path("energy.json").write_text(json.dumps({**table, "quantity": "energy", "unit": "uJ"}))
    code, out, _ = run(capsys, "cost", *MODEL, "--bits", "4", "--table", "energy.json")
    assert (code, "latency" in out) == (0, False)
    assert out.splitlines()[-1].startswith("energy ")


def test_images_say_which_are_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE, "--images", "first:20")[0] == 0
    with np.load("run/seen.npz") as seen:
        assert {use: len(seen[use]) for use in seen.files} == {"calibrate": 20}
    code, out, err = run(capsys, "finetune", "run", "--steps", "1", "--batch", "16", "--json", "-q", *ALLOW)
    assert code == 0, err
    assert json.loads(out)["images"] == 20
    train = [
        "train",
        *MODEL[:1],
        "npz:data.npz",
        *MODEL[1:],
        "--sigma",
        "0.1",
        "--steps",
        "1",
        "--batch",
        "8",
        "--json",
        "-q",
    ]
    code, out, err = run(capsys, *train, "--images", "first:10", "--out", "float")
    assert code == 0, err
    assert json.loads(out)["images"] == 10


def test_a_command_that_cannot_run_leaves_no_run_folder_behind(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", *MODEL[:1], "npz:data.npz", *MODEL[1:], "--bits", "4", "--out", "run", "-q"]
    for wrong in (["--sigma", "-1"], ["--sigma", "0.1", "--calibration-images", "0"]):
        code, _, err = run(capsys, *words, *wrong)
        assert (code, err[:6]) == (2, "error:")
        assert not Path("run").exists()
    assert run(capsys, *words, "--sigma", "0.1")[0] == 0
    code, _, err = run(
        capsys, "quantize", "run", "npz:data.npz", *ALLOW, "--bits", "2", "--sigma", "0.1", "--out", "two"
    )
    assert code == 2
    assert "quantized already" in err
    assert not Path("two").exists()


def test_the_python_function_quantizes_what_it_is_given(here: Path) -> None:
    classifier = arquant.load_model("my_small_net:net", input_shape=(3, 8, 8))
    images = np.load("data.npz")["images"]
    policy = arquant.Policy.uniform(arquant.find_layers(classifier), "w3a4")
    quantized = arquant.quantize(classifier, policy, images, sigma=0.1)
    facts = arquant.quantize(
        "my_small_net:net", "npz:data.npz", sigma=0.1, bits="w3a4", out="run", input=(3, 8, 8), classes=4
    )
    assert arquant.load_model("run", arch="my_small_net:net").fingerprint() == quantized.fingerprint()
    assert facts["bytes"] == arquant.cost(classifier, policy=policy)["bytes"]
    for wrong in ({}, {"bits": "3", "policy": policy}, {"policy": policy, "keep": ["0=4"]}):
        with pytest.raises(InputError, match="bits") as refused:
            arquant.cost(classifier, **wrong)
        assert "--" not in str(refused.value), "in Python there are no flags"
    of_run = arquant.cost("run", arch="my_small_net:net")
    assert of_run == arquant.cost(classifier, policy=policy), "the run's own policy"


@pytest.mark.parametrize("how", [{"learn": "kmeans"}, {"per_channel": True}, {}])
def test_the_cost_of_a_run_is_that_of_its_way_to_store_weights(here: Path, how: dict[str, Any]) -> None:
    model = ("my_small_net:net", "npz:data.npz")
    made = arquant.quantize(*model, sigma=0.1, bits="w3a4", out="run", input=(3, 8, 8), classes=4, **how)
    assert arquant.cost("run", arch="my_small_net:net")["bytes"] == made["bytes"]
    plain = arquant.cost("my_small_net:net", bits="w3a4", input=(3, 8, 8), classes=4)["bytes"]
    assert (made["bytes"] > plain) == bool(how), "clips of every channel, or the values of every layer, take some more"
    assert made["file_bytes"] - made["seen_bytes"] <= made["bytes"]


def test_quantize_finetune_certify(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = [
        "quantize",
        *MODEL[:1],
        "npz:data.npz",
        *MODEL[1:],
        "--bits",
        "w4a4",
        "--sigma",
        "0.1",
        "--out",
        "run",
        "--json",
    ]
    code, out, err = run(capsys, *start)
    assert code == 0, err
    facts = json.loads(out)
    assert facts["weight_bytes"] == (8 * 27 * 8 + 2 * 8 * 72 * 4 + 32 * 8) // 8
    assert facts["file_bytes"] - facts["seen_bytes"] <= facts["bytes"]
    assert Path("run/model.safetensors").stat().st_size == facts["file_bytes"]
    before = Path("run/model.safetensors").read_bytes()

    code, _, err = run(capsys, "finetune", "run", "--steps", "0", *ALLOW)
    assert code == 2
    assert "epochs or steps must be positive" in err
    words = ["finetune", "run", "--steps", "4", "--batch", "16", "--json", "-q"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "add --arch my_small_net:net" in err
    words += ALLOW
    code, out, err = run(capsys, *words)
    assert code == 0, err
    assert json.loads(out)["steps"] == 4
    tuned = Path("run/model.safetensors").read_bytes()
    assert tuned != before
    assert read_provenance(Path("run/model.safetensors"))["start"] == "float weights"
    assert Path("run/quantized.safetensors").read_bytes() == before
    code, _, err = run(capsys, *words)
    assert code == 0, err
    tuned = arquant.load_model("run", arch="my_small_net:net").fingerprint()
    code, out, err = run(capsys, *start)
    assert (code, json.loads(out)["model"]) == (0, "run/quantized.safetensors")
    assert arquant.load_model("run", arch="my_small_net:net").fingerprint() == tuned, "quantizing again undoes nothing"
    assert arquant.load_model("run/quantized.safetensors", arch="my_small_net:net").fingerprint() != tuned

    more = ["--sigma", "0.1", "--n", "200", "--images", "first:4", "--out", "c", "--json", "-q"]
    code, _, err = run(capsys, "certify", "run", "npz:other.npz", *more)
    assert code == 2
    assert "add --arch my_small_net:net" in err
    for data in ([], ["npz:data.npz"]):
        code, _, err = run(capsys, "certify", "run", *data, *more, *ALLOW)
        assert code == 2
        assert "was used by run (calibrate)" in err
    code, out, err = run(capsys, "certify", "run", "npz:other.npz", *more, *ALLOW)
    assert code == 0, err
    assert json.loads(out)["images"] == 4
    facts = json.loads(Path("c/certificates.json").read_text())["provenance"]
    assert facts["engine"]["engine"] == "openvino"
    assert facts["candidates_examined"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cost", "resnet20"], "--bits"),
        (["cost", "resnet20", "--bits", "9"], "9"),
        (["cost", "resnet20", "--policy", "missing.json"], "missing.json"),
        (["cost", "resnet20", "--bits", "3", "--keep", "nowhere=8"], "nowhere"),
        (["cost", "resnet20", "--bits", "3", "--table", "missing.npy"], "missing.npy"),
        (["cost", "resnet20", "--keep", "fc=8", "--make-table", "t.npy"], "--bits"),
        (["cost", "resnet20", "--bits", "3", "--make-table", "t.npy", "--table", "u.npy"], "u.npy"),
        (["finetune", "missing"], "missing"),
        (["inspect", "resnet21"], "resnet20"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_a_configuration_without_a_model_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    Path("run/config.yaml").write_text("sigma: 0.1\n")
    code, _, err = run(capsys, "finetune", "run", *ALLOW)
    assert code == 2
    assert "config.yaml does not name the float model" in err


def test_without_its_float_model_a_run_is_finetuned_from_rounded_weights(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    config = Path("run/config.yaml")
    config.write_text(config.read_text().replace("model: my_small_net:net", "model: gone.safetensors"))
    code, _, err = run(capsys, *FINETUNE)
    assert code == 2
    assert "which fine-tuning follows, cannot be loaded" in err
    assert run(capsys, *FINETUNE, "--distill", "0")[0] == 0
    assert read_provenance("run/model.safetensors")["start"] == "rounded weights"


def test_a_policy_of_another_model_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = {"schema": "arquant.policy", "version": 1, "model": {}, "layers": {"conv9": {"w": 4, "a": 4}}}
    Path("policy.json").write_text(json.dumps(policy))
    code, _, err = run(capsys, "cost", "resnet20", "--policy", "policy.json")
    assert code == 2
    assert "conv9" in err


def test_an_exported_file_alone_knows_its_sigma_and_is_no_network_to_export(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    assert run(capsys, "export", "run", "--out", "alone.onnx", *ALLOW)[0] == 0
    Path("config.yaml").write_text("- of another program\n")
    code, out, err = run(
        capsys,
        "certify",
        "alone.onnx",
        "npz:other.npz",
        "--n",
        "20",
        "--images",
        "first:1",
        "--out",
        "e",
        "--json",
        "-q",
    )
    assert code == 0, err
    assert json.loads(out)["settings"]["sigma"] == 0.1
    code, _, err = run(capsys, "export", "alone.onnx", "--out", "again.onnx")
    assert code == 2
    assert "only --format openvino" in err
    assert run(capsys, "export", "alone.onnx", "--format", "openvino", "--out", "again.xml")[0] == 0


def test_export_certify_the_export_and_check(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    told = {}
    for words, name in ((["--format", "onnx"], "model.onnx"), (["--format", "openvino"], "model.xml")):
        code, out, err = run(capsys, "export", "run", *words, *ALLOW, "--json")
        assert code == 0, err
        result = json.loads(out)
        assert result["different_votes"] <= 0.02
        assert result["openvino_config"]["INFERENCE_PRECISION_HINT"] == "f32"
        assert Path("run", name).exists()
        told[name] = result["parity"]
    certify = [
        "certify", "run", "npz:other.npz", "--sigma", "0.1", "--n", "100", "--images", "first:4", "--out", "run", "-q", *ALLOW,
    ]  # fmt: skip
    assert run(capsys, *certify)[0] == 0

    code, out, err = run(capsys, "check", "run", "--json")
    assert (code, out) == (2, ""), "the network's code was not allowed to run"
    assert "add --arch my_small_net:net" in err
    code, out, _ = run(capsys, "check", "run", "--json", *ALLOW)
    checked = json.loads(out)
    assert (code, checked["passed"]) == (0, True), checked
    names = [finding["check"] for finding in checked["findings"]]
    parity = ["model.onnx parity", "model.xml parity", "model.onnx parity, ONNX Runtime"]
    assert names == ["model", "policy", "budget", "certificates", "exported files", *parity]
    said = {finding["check"]: finding["detail"] for finding in checked["findings"]}
    assert [said[name] for name in parity] == [
        told["model.onnx"]["auto"]["text"], told["model.xml"]["auto"]["text"], told["model.onnx"]["onnxruntime"]["text"],
    ], "export and check say the same"  # fmt: skip
    assert "npz:" in said["model.onnx parity"], "of the run's images"

    code, out, err = run(
        capsys, "check", "run", "--min-acr", "9", "--max-bytes", "1M", "--min-certified", "1@3", *ALLOW
    )
    assert code == 3
    assert "FAILED  min-acr" in out
    assert "min-certified" in err

    rows = Path("run/certificates.tsv").read_text().splitlines()
    fields = rows[1].split("\t")
    fields[3] = "7.0"
    Path("run/certificates.tsv").write_text("\n".join([rows[0], "\t".join(fields), *rows[2:]]) + "\n")
    code, out, _ = run(capsys, "check", "run", *ALLOW)
    assert code == 3
    assert "FAILED  certificates" in out

    code, out, err = run(
        capsys, "certify", "run/model.onnx", "npz:other.npz", "--sigma", "0.1", "--n", "100", "--images", "first:2",
        "--out", "e", "--json", "-q",
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["images"] == 2


def test_a_quantized_model_has_the_layers_of_its_float_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    for command in (["inspect"], ["cost", "--bits", "3"], ["cost", "--policy", "run/policy.json"]):
        verb, *options = command
        of_float = json.loads(run(capsys, verb, *MODEL, *options, "--json")[1])
        of_file = json.loads(run(capsys, verb, "run/model.safetensors", *ALLOW, *options, "--json")[1])
        assert {**of_file, "model": 0} == {**of_float, "model": 0}


def test_a_failed_quantization_can_be_corrected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", *MODEL[:1], "npz:data.npz", *MODEL[1:], "--bits", "4", "--sigma", "0.1", "--estimate-bn"]
    code, _, err = run(capsys, *words, "--calibration-images", "1", "--out", "run", "-q")
    assert (code, "at least 2 images" in err, Path("run").exists()) == (2, True, False)
    assert run(capsys, *words, "--calibration-images", "8", "--out", "run", "-q")[0] == 0


def test_fine_tuning_sets_the_certificates_of_the_former_model_aside(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    certify = ["certify", "run", "npz:other.npz", *ALLOW, "--n", "64", "--n0", "16", "--out", "run", "-q"]
    assert run(capsys, *certify)[0] == 0
    assert run(capsys, *FINETUNE)[0] == 0
    assert not Path("run/certificates.tsv").exists()
    assert [path.name for path in sorted(Path("run/earlier").glob("*/*"))] == ["certificates.json", "certificates.tsv"]
    assert run(capsys, *certify)[0] == 0
    assert run(capsys, *FINETUNE)[0] == 0, "a finished fine-tuning ends as before"
    assert Path("run/certificates.tsv").exists()


def test_a_run_calibrated_with_another_noise_is_certified_with_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("run", "laplace") for word in QUANTIZE]
    assert [run(capsys, *each)[0] for each in (QUANTIZE, [*words, "--noise", "laplace"])] == [0, 0]
    grid, laplace = (arquant.load_model(f"{name}/model.safetensors", arch=ALLOW[1]) for name in ("run", "laplace"))
    assert grid.fingerprint() != laplace.fingerprint(), "its clips are those of other noisy images"
    certify = ["certify", "laplace", "npz:other.npz", *ALLOW, "--n", "64", "--n0", "16", "--out", "laplace", "-q"]
    assert run(capsys, *certify)[0] == 0
    assert (
        json.loads(Path("laplace/certificates.json").read_text())["provenance"]["identity"]["settings"]["norm"] == "l1"
    )
    code, _, err = run(capsys, *words)
    assert (code, "noise 'laplace' there, not stated here" in err) == (2, True)


def test_fine_tuning_of_another_float_model_does_not_end_with_the_former_one(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [run(capsys, *words)[0] for words in (QUANTIZE, FINETUNE)] == [0, 0]
    (here / "my_small_net.py").write_text(FACTORY.replace("manual_seed(0)", "manual_seed(1)"))
    sys.modules.pop("my_small_net")
    assert run(capsys, *QUANTIZE)[0] == 0
    code, _, err = run(capsys, *FINETUNE)
    assert (code, "belongs to another run (origin" in err) == (2, True)


def test_a_run_fine_tuned_for_another_sigma_is_of_that_sigma(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finetune = ["finetune", "run", "--sigma", "0.2", "--steps", "1", "--batch", "16", "-q", "--threads", "1", *ALLOW]
    certify = ["certify", "run", "npz:other.npz", *ALLOW, "--n", "64", "--n0", "16", "--out", "run", "-q"]
    assert [run(capsys, *words)[0] for words in (QUANTIZE, finetune, certify)] == [0, 0, 0]
    sidecar = json.loads(Path("run/certificates.json").read_text())
    assert sidecar["provenance"]["identity"]["settings"]["sigma"] == 0.2
    code, out, _ = run(capsys, "check", "run", *ALLOW)
    assert code == 0, out
    assert run(capsys, "export", "run", *ALLOW, "-q")[0] == 0
    assert arquant.load_model("run/model.onnx").facts.sigma == 0.2


def test_fine_tuning_from_python_has_the_defaults_of_the_command_line(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize = ["quantize", *MODEL[:1], "npz:data.npz", *MODEL[1:], "--bits", "4", "--sigma", "0.1", "-q"]
    for name in ("typed", "called"):
        assert run(capsys, *quantize, "--out", name)[0] == 0
    assert run(capsys, "finetune", "typed", "--steps", "2", "--batch", "16", "-q", *ALLOW)[0] == 0
    arquant.finetune("called", steps=2, batch=16, arch="my_small_net:net")
    recipes = [read_provenance(Path(name) / "model.safetensors")["recipe"] for name in ("typed", "called")]
    assert recipes[0] == recipes[1]
    assert (recipes[0]["sigma"], recipes[0]["lr"], recipes[0]["consistency"]) == (0.1, 0.05, 1.0)
    with pytest.raises(InputError, match="preset must be one of paper-cifar"):
        arquant.finetune("called", preset="paper", arch="my_small_net:net")


def test_training_starts_from_weights_of_the_same_network_only(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["train", *MODEL[:1], "npz:data.npz", *MODEL[1:], "--sigma", "0.1", "--steps", "1", "--batch", "16", "-q"]
    assert run(capsys, *train, "--out", "base")[0] == 0
    assert run(capsys, *train, "--out", "on", "--init", "base")[0] == 0
    first, second = (json.loads((here / name / "training.json").read_text()) for name in ("base", "on"))
    assert (first["history"], [record["written"] for record in second["history"]]) == ([], [first["written"]])
    other = FACTORY.replace("def net", "def wider").replace("8", "16")
    (here / "my_wide_net.py").write_text(other)
    wider = ["my_wide_net:wider" if word == MODEL[0] else word for word in train]
    assert run(capsys, *wider, "--out", "wide")[0] == 0
    code, _, err = run(capsys, *train, "--out", "bad", "--init", "wide")
    assert (code, len(err.splitlines())) == (2, 1)
    code, out, _ = run(capsys, *train[:-1], "--out", "said")
    assert "model.safetensors OTHER_DATA --sigma 0.1" in out
    options = ["--sigma", "0.1", "--n", "32", "--n0", "8", "--out", "c", "-q", *ALLOW]
    code, _, err = run(capsys, "certify", "said/model.safetensors", "npz:data.npz", *options)
    assert (code, "was used by said (train)" in err) == (2, True)
    assert run(capsys, "certify", "said/model.safetensors", "npz:other.npz", *options)[0] == 0


def test_a_float_network_is_fine_tuned_after_itself_as_a_quantized_one_is(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "train", MODEL[0], "npz:data.npz", *HOW_TO_TRAIN, "--out", "base")[0] == 0
    how = [*MODEL[1:], "--sigma", "0.1", "--steps", "3", "--batch", "16", "--lr", "0.05", "--consistency", "1", "-q"]
    tuned = ["train", "base/model.safetensors", "npz:data.npz", *ALLOW, *how, "--distill", "1", "--out", "tuned"]
    assert run(capsys, *tuned)[0] == 0
    ours, start = (load_model(f"{name}/model.safetensors", arch=MODEL[0]) for name in ("tuned", "base"))
    images = np.load("data.npz")
    recipe = arquant.Recipe(sigma=0.1, steps=3, batch=16, lr=0.05, consistency=1.0, distill=1.0)
    wanted = load_model("base/model.safetensors", arch=MODEL[0])
    pixels, labels = torch.from_numpy(images["images"]), torch.from_numpy(images["labels"])
    run_training(wanted, pixels, labels, recipe, teacher=start)
    state = wanted.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in ours.module.state_dict().items())
    code, _, err = run(capsys, "train", "resnet20", "sample", "--sigma", "0.1", "--distill", "1", "-q", "--out", "none")
    assert (code, "resnet20 has no weights" in err, Path("none").exists()) == (2, True, False)


def test_what_the_float_model_was_trained_on_is_known_to_all_that_is_made_of_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--sigma", "0.1", "--steps", "1", "--batch", "16", "-q"]
    assert run(capsys, "train", *MODEL[:1], "npz:data.npz", *MODEL[1:], *how, "--out", "base")[0] == 0
    assert run(capsys, "train", *MODEL[:1], "npz:other.npz", *MODEL[1:], *how, "--init", "base", "--out", "on")[0] == 0
    quantize = ["quantize", "on/model.safetensors", "npz:other.npz", "--bits", "4", "--sigma", "0.1", "-q", *ALLOW]
    assert run(capsys, *quantize, "--out", "small")[0] == 0
    certify = ["certify", "small", "npz:data.npz", "--n", "32", "--n0", "8", "--out", "c", "-q", *ALLOW]
    code, _, err = run(capsys, *certify)
    assert (code, "was used by small (train)" in err) == (2, True)
    search = [
        "search",
        "on/model.safetensors",
        "npz:data.npz",
        "--sigma",
        "0.1",
        "--budget",
        "bops<=4bit",
        "-q",
        *ALLOW,
    ]
    code, _, err = run(capsys, *search, "--split", "50,25,25", "--search-images", "12", "--out", "found")
    assert "was used by on (train)" in err
    assert (code, Path("found").exists()) == (2, False)


def test_a_copied_file_and_an_export_still_know_what_the_model_has_seen(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = np.load("data.npz")
    np.savez("before.npz", images=whole["images"][:16], labels=whole["labels"][:16])
    np.savez("later.npz", images=whole["images"][16:32], labels=whole["labels"][16:32])
    np.savez("last.npz", images=whole["images"][32:], labels=whole["labels"][32:])
    assert run(capsys, "train", MODEL[0], "npz:before.npz", *HOW_TO_TRAIN, "--out", "base")[0] == 0
    quantize = ["quantize", "base/model.safetensors", "npz:later.npz", "--bits", "4", "--sigma", "0.1", *ALLOW]
    code, out, _ = run(capsys, *quantize, "--out", "small", "--json", "-q")
    assert (code, json.loads(out)["seen_bytes"] > 32 * 8) == (0, True)
    assert (
        run(capsys, "finetune", "small", "--data", "npz:last.npz", "--steps", "1", "--batch", "8", "-q", *ALLOW)[0] == 0
    )
    for format in ("onnx", "openvino"):
        assert run(capsys, "export", "small", "--format", format, "-q", *ALLOW)[0] == 0
    (here / "away").mkdir()
    for name in ("model.safetensors", "model.onnx", "model.xml", "model.bin"):
        (here / "away" / name).write_bytes((here / "small" / name).read_bytes())
    for name in ("model.safetensors", "model.onnx", "model.xml"):
        allow = ALLOW if name == "model.safetensors" else []
        how = ["--sigma", "0.1", "--n", "32", "--n0", "8", "--out", f"of-{name}", "-q", *allow]
        for data, use in (("before", "train"), ("later", "calibrate"), ("last", "finetune")):
            code, _, err = run(capsys, "certify", f"away/{name}", f"npz:{data}.npz", *how)
            assert (code, f"of npz:{data}.npz was used by away/{name} ({use}), with 15 others" in err) == (2, True), err
        assert run(capsys, "certify", f"away/{name}", "npz:other.npz", *how)[0] == 0
        assert json.loads((here / f"of-{name}" / "certificates.json").read_text())["provenance"]["warnings"] == []


def test_a_file_of_ours_without_a_record_of_images_is_certified_with_a_warning(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    classifier = load_model(MODEL[0], input_shape=(3, 8, 8), num_classes=4)
    save_weights(here / "old.safetensors", classifier, arch=MODEL[0], sigma=0.1)
    how = ["--n", "32", "--n0", "8", "--images", "first:2"]
    code, _, err = run(capsys, "certify", "old.safetensors", "npz:data.npz", *how, *ALLOW, "--out", "c")
    text = "old.safetensors does not say which images it was trained or calibrated on"
    assert (code, err.count(text)) == (0, 1)
    (warning,) = json.loads((here / "c" / "certificates.json").read_text())["provenance"]["warnings"]
    assert warning.startswith(text)
    assert run(capsys, "export", "old.safetensors", "--out", "old.onnx", "-q", *ALLOW)[0] == 0
    code, _, err = run(capsys, "certify", "old.onnx", "npz:data.npz", *how, "--out", "d")
    assert (code, "old.onnx does not say which images" in err) == (0, True)


HOW_TO_TRAIN = [*MODEL[1:], "--sigma", "0.1", "--steps", "1", "--batch", "16", "-q"]


def test_quantize_does_not_replace_the_model_of_something_else(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "train", MODEL[0], "npz:data.npz", *HOW_TO_TRAIN, "--out", "base")[0] == 0
    before = (here / "base" / "model.safetensors").read_bytes()
    into = ["base" if word == "run" else word for word in QUANTIZE]
    code, _, err = run(capsys, *into)
    assert (code, "base holds the model.safetensors of something else; choose another --out" in err) == (2, True)
    assert (here / "base" / "model.safetensors").read_bytes() == before
    assert not (here / "base" / "config.yaml").exists()
    assert [run(capsys, *QUANTIZE)[0] for _ in range(2)] == [0, 0], "the same run again is no other"


@pytest.mark.parametrize("start", ["base", "base/model.safetensors"])
def test_weights_that_are_trained_on_bring_their_past(
    here: Path, capsys: pytest.CaptureFixture[str], start: str
) -> None:
    assert run(capsys, "train", MODEL[0], "npz:data.npz", *HOW_TO_TRAIN, "--out", "base")[0] == 0
    assert run(capsys, "train", MODEL[0], "npz:data.npz", *HOW_TO_TRAIN, "--seed", "1", "--out", "twin")[0] == 0
    train_on = ["train", start, "npz:other.npz", *ALLOW, *HOW_TO_TRAIN, "--out", "on"]
    assert run(capsys, *train_on)[0] == 0
    base, on = (json.loads((here / name / "training.json").read_text()) for name in ("base", "on"))
    assert [record["written"] for record in on["history"]] == [base["written"]]
    certify = ["certify", "on", "npz:data.npz", "--n", "32", "--n0", "8", "--out", "c", "-q", *ALLOW]
    code, _, err = run(capsys, *certify)
    assert (code, "was used by on (train)" in err) == (2, True)
    assert run(capsys, *train_on)[0] == 0, "the same command resumes"
    code, _, err = run(capsys, *(word.replace("base", "twin") for word in train_on))
    assert (code, "belongs to another run (origin" in err) == (2, True)


def test_training_starts_from_no_quantized_model(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    code, _, err = run(capsys, "train", "run", "npz:other.npz", *ALLOW, *HOW_TO_TRAIN, "--out", "on")
    assert (code, "is quantized already" in err, Path("on").exists()) == (2, True, False)


def test_images_of_a_refused_training_are_not_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = [*HOW_TO_TRAIN, "--out", "base"]
    assert run(capsys, *QUANTIZE)[0] == 0
    for out, first, other in (
        ("base", ["train", MODEL[0], "npz:data.npz", *train], ["train", MODEL[0], "npz:other.npz", *train]),
        ("run", FINETUNE, [*FINETUNE, "--data", "npz:other.npz"]),
    ):
        assert run(capsys, *first)[0] == 0
        before = (here / out / "seen.npz").read_bytes()
        code, _, err = run(capsys, *other)
        assert (code, "another run (images 48 there, 16 here; other images)" in err) == (2, True), err
        assert (here / out / "seen.npz").read_bytes() == before


def test_one_process_at_a_time_trains_in_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *QUANTIZE)[0] == 0
    (here / "base").mkdir()
    for out, words in (
        ("base", ["train", MODEL[0], "npz:data.npz", *HOW_TO_TRAIN, "--out", "base"]),
        ("run", FINETUNE),
    ):
        with in_use(here / out):
            code, _, err = run(capsys, *words)
        assert (code, f"{out} is in use by another process" in err) == (2, True)
        assert run(capsys, *words)[0] == 0


def test_the_next_command_has_the_bounds_of_the_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(
        capsys, "train", MODEL[0], "npz:data.npz", *HOW_TO_TRAIN[:-1], "--bounds", "-1,1", "--out", "signed"
    )
    assert out.strip().endswith("--arch my_small_net:net --bounds -1,1")
