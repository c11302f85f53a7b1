"""Bad input: one line on stderr that names what is wrong, exit code 2, nothing on stdout, no traceback."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.support.command_line import Answer, InProcess, Project, images

SIGMA = ("--sigma", "0.5")
QUICK = (*SIGMA, "--n", "100", "--n0", "20")


def assert_refused(answer: Answer, *named: str) -> None:
    assert (answer.code, answer.out) == (2, ""), answer.err
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1, "one line"
    for word in named:
        assert word in answer.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--sigma", "0"], "0"),
        (["--sigma", "-0.5"], "-0.5"),
        (["--sigma", "nan"], "sigma must be positive and at most 1e+06"),
        (["--sigma", "inf"], "got inf"),
        (["--sigma", "loud"], "--sigma: 'loud' is not a number"),
        (["--sigma", "50"], "50"),
        (["--alpha", "0"], "alpha must lie strictly between 0 and 1, got 0"),
        (["--alpha", "1"], "got 1"),
        (["--alpha", "1.5"], "1.5"),
        (["--alpha", "-0.1"], "-0.1"),
        (["--n", "9"], "n=9 votes cannot certify anything at alpha=0.001"),
        (["--n", "0"], "n=0"),
        (["--n", "-5"], "-5"),
        (["--n", "1.5"], "'1.5' is not a whole number"),
        (["--n", "inf"], "'inf'"),
        (["--n", "many"], "'many'"),
        (["--n0", "0"], "n0=0"),
        (["--family-wise", "--n", "12", "--images", "first:5"], "n=12"),
        (["--tolerance", "0.1"], "--tolerance 0.1"),
        (["--adaptive", "--tolerance", "-1"], "-1"),
        (["--multiclass", "--noise", "uniform"], "uniform"),
        (["--noise", "pink"], "'pink'"),
        (["--images", "first:99"], "'first:99'"),
        (["--images", "some"], "'some'"),
        (["--engine", "abacus"], "'abacus'"),
        (["--device", "toaster"], "toaster"),
        (["--batch", "0"], "0"),
        (["--threads", "0"], "0"),
        (["--seed", "-1"], "-1"),
        (["--bounds", "1,0"], "(1.0, 0.0)"),
        (["--bounds", "0"], "'0'"),
        (["--classes", "4"], "4"),
        (["--input", "3,8,8"], "(3, 8, 8)"),
        (["--arch", "resnet20"], "--arch"),
        (["--config", "absent.yaml"], "absent.yaml"),
        (["--unknown", "3"], "--unknown"),
        (["--out", "toy.py"], "toy.py"),
        (["--out", "toy.py/deeper"], "toy.py/deeper: Not a directory; name another place"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_settings(cli: InProcess, options: list[str], named: str) -> None:
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "refused", *options)
    assert_refused(answer, named)
    assert not Path("refused/certificates.tsv").exists()


def test_arguments_that_are_missing(cli: InProcess) -> None:
    assert_refused(cli("certify", "toy:colours"), "sigma")
    assert_refused(cli("certify", *SIGMA), "MODEL must be given")
    assert_refused(cli("report"), "RUNS must be given")
    assert_refused(cli("conjure"), "conjure")


def test_an_unknown_key_of_a_configuration(cli: InProcess) -> None:
    Path("bad.yaml").write_text("sigma: 0.5\nsamples: 100\n")
    assert_refused(cli("certify", "toy:colours", "npz:data.npz", "--config", "bad.yaml"), "samples")
    for content, named in [
        ("n: 1.5", "n: 1.5 is not a whole number"),
        ("adaptive: 'yes'", "adaptive: must be true or false, got 'yes'"),
        ("alpha: {a: 1}", "alpha: cannot be"),
        ("noise: pink", "'pink'"),
        ("- sigma", "does not hold options"),
        ("config: other.yaml", "no option 'config'"),
    ]:
        Path("bad.yaml").write_text(content + "\n")
        assert_refused(cli("certify", "toy:colours", "npz:data.npz", *SIGMA, "--config", "bad.yaml"), named)
    Path("broken.yaml").write_text("sigma: [0.5\n")
    assert_refused(cli("certify", "toy:colours", "npz:data.npz", "--config", "broken.yaml"))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("toy:nan_weights", ["NaN"]),
        ("toy:wrong_shape", ["(2, 3)", "(2, 5)"]),
        ("toy:absent", ["'absent'"]),
        ("toy:broken", ["the disk is on fire and so is the second line"]),
        ("nothing.here:make", ["nothing"]),
        ("resnet20", ["without weights"]),
        ("resnet20:sigma=0.3", ["resnet20:sigma=0.3"]),
        ("resnet21", ["resnet21", "resnet20"]),
        ("absent.safetensors", ["absent.safetensors"]),
        ("torn.safetensors", ["torn.safetensors"]),
        ("nan.safetensors", ["NaN"]),
        (".", ["model.safetensors"]),
    ],
)
def test_bad_models(cli: InProcess, model: str, named: list[str]) -> None:
    options: tuple[str, ...] = ()
    if model.endswith(".safetensors"):
        save_file({"scale": torch.tensor([1.0, float("nan"), 1.0])}, "nan.safetensors")
        Path("torn.safetensors").write_bytes(Path("nan.safetensors").read_bytes()[:-5])
        options = ("--arch", "toy:colours")
    assert_refused(cli("certify", model, "npz:data.npz", *QUICK, *options), *named)


def spoil_data(project: Project) -> None:
    """Data files that are wrong in one way each."""
    pixels, labels = images()
    project.save("small", pixels[:, :, :3, :3], labels)
    project.save("grey", pixels[:, :1], labels)
    project.save("flat", pixels.reshape(6, -1), labels)
    project.save("classes", pixels, labels + 5)
    project.save("negative", pixels, labels - 1)
    project.save("fewer", pixels, labels[:4])
    project.save("fractions", pixels, labels + 0.5)
    project.save("bright", pixels.astype(np.float32), labels)
    project.save("holes", np.where(pixels > 200, np.nan, 0.5).astype(np.float32), labels)
    np.savez(project.folder / "nameless.npz", pictures=pixels, labels=labels)
    whole = (project.folder / "data.npz").read_bytes()
    (project.folder / "torn.npz").write_bytes(whole[: len(whole) // 2])
    (project.folder / "flipped.npz").write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    bins = project.folder / "bins"
    bins.mkdir(exist_ok=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (bins / name).write_bytes(bytes(3073))


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ("npz:small.npz", ["(3, 3, 3)", "(3, 4, 4)"]),
        ("npz:grey.npz", ["(1, 4, 4)", "(3, 4, 4)"]),
        ("npz:flat.npz", ["(6, 48)"]),
        ("npz:classes.npz", ["label 5", "0..2"]),
        ("npz:negative.npz", ["label -1"]),
        ("npz:fewer.npz", ["(4,)"]),
        ("npz:fractions.npz", ["float64"]),
        ("npz:bright.npz", ["pixel value 250", "--bounds"]),
        ("npz:holes.npz", ["NaN"]),
        ("npz:nameless.npz", ["'images'"]),
        ("npz:torn.npz", ["torn.npz"]),
        ("npz:flipped.npz", ["flipped.npz"]),
        ("npz:absent.npz", ["absent.npz"]),
        ("data.npz", ["npz:data.npz"]),
        ("cifar10:bins", ["test_batch.bin"]),
        ("cifar10:nowhere", ["nowhere"]),
        ("folder:nowhere", ["nowhere"]),
        ("sample", ["10 classes"]),
        ("toy:nothing", ["toy:nothing"]),
    ],
)
def test_bad_data(cli: InProcess, data: str, named: list[str]) -> None:
    spoil_data(cli.project)
    assert_refused(cli("certify", "toy:colours", data, *QUICK), *named)


@pytest.fixture
def sound(cli: InProcess) -> Path:
    """A folder with certificates, intact."""
    folder = Path("sound")
    assert cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "sound").code == 0
    return folder


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda text: text[: len(text) // 2], ["certificates.tsv"]),
        (lambda text: text.replace("\t", " ", 3), ["line 1"]),
        (lambda text: text.replace("\n1\t", "\nx\t"), ["line 3"]),
        (lambda text: text.replace("\n1\t", "\n0\t"), ["image 0"]),
        (lambda text: text.replace("\n1\t1\t1\t", "\n1\t1\t1\t-"), ["line 3"]),
        (lambda text: text.replace("fixed", "whenever", 1), ["'whenever'"]),
        (lambda text: "\n".join(text.splitlines()[:-1]) + "\n", ["5 rows", "states 6"]),
        (lambda text: "", ["certificates.tsv"]),
        (lambda text: text.rstrip()[:-1], ["line 7"]),
        (lambda text: text.replace("\n1\t1\t1\t0.", "\n1\t1\t1\t9."), ["radius of image 1"]),
    ],
    ids=["half", "header", "no index", "twice", "negative radius", "stop", "a row less", "empty", "votes", "radius"],
)
def test_a_damaged_table(cli: InProcess, sound: Path, damage: object, named: list[str]) -> None:
    table = sound / "certificates.tsv"
    whole = table.read_text()
    try:
        table.write_text(damage(whole))  # type: ignore[operator]
        assert_refused(cli("metrics", "sound/certificates.tsv"), *named)
    finally:
        table.write_text(whole)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema": "other"}', '{"schema": "arquant.certificates"}'])
def test_a_damaged_sidecar(cli: InProcess, sound: Path, content: str) -> None:
    folder = Path("unsound")
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    (folder / "certificates.json").write_text(content)
    assert_refused(cli("metrics", "unsound/certificates.tsv"), "certificates.json")
    assert_refused(cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "unsound"), "certificates.json")


@pytest.mark.parametrize("field", ["identity", "engine"])
def test_a_sidecar_that_does_not_say_what_it_belongs_to(cli: InProcess, sound: Path, field: str) -> None:
    folder = Path(f"without-{field}")
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    data = json.loads((folder / "certificates.json").read_text())
    data["provenance"][field] = "?"
    (folder / "certificates.json").write_text(json.dumps(data))
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", str(folder))
    assert_refused(answer, "choose another --out")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", "128"),
        ("batch", 10**30),
        ("threads", 10**9),
        ("batch", 128.5),
        ("threads", [1]),
        ("threads", 0),
        ("engine", 3),
    ],
)
def test_a_sidecar_whose_engine_is_damaged(cli: InProcess, sound: Path, name: str, value: object) -> None:
    folder = Path("other-engine")
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    data = json.loads((folder / "certificates.json").read_text())
    data["provenance"]["engine"][name] = value
    (folder / "certificates.json").write_text(json.dumps(data))
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", str(folder))
    assert_refused(answer, "certificates.json is damaged", f"'{name}': {value!r}")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--n", "200"], "n 100 there, 200 here"),
        (["--sigma", "0.25"], "sigma 0.5 there, 0.25 here"),
        (["--seed", "1"], "seed 0 there, 1 here"),
        (["--images", "first:3"], "another set of images"),
        (["--adaptive"], "settings.adaptive.tolerance not stated there"),
    ],
)
def test_an_output_folder_of_a_different_run(cli: InProcess, sound: Path, options: list[str], named: str) -> None:
    before = {file.name: file.read_bytes() for file in sound.iterdir()}
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "sound", *options)
    assert_refused(answer, named, "choose another --out")
    assert {file.name: file.read_bytes() for file in sound.iterdir()} == before


def test_an_output_folder_of_a_different_model(cli: InProcess, sound: Path) -> None:
    answer = cli(
        "certify", "toy:bare", "npz:data.npz", *QUICK, "--input", "3,4,4", "--mean", "0", "--std", "2", "--out", "sound"
    )
    assert_refused(answer, "another model")


def test_rows_that_do_not_follow_from_their_votes_are_not_continued(cli: InProcess, sound: Path) -> None:
    folder = Path("forged")
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    lines = (folder / "certificates.tsv").read_text().replace("\n1\t1\t1\t0.", "\n1\t1\t1\t9.").splitlines()
    (folder / "certificates.tsv").write_text("\n".join(lines[:4]) + "\n")
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "forged")
    assert_refused(answer, "radius of image 1")
    assert (folder / "certificates.tsv").read_text().splitlines() == lines[:4]


def test_an_output_folder_with_the_model_of_another_run(cli: InProcess) -> None:
    folder = Path("a-run")
    folder.mkdir()
    (folder / "config.yaml").write_text("sigma: 0.5\n")
    (folder / "model.safetensors").write_bytes(b"")
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "a-run")
    assert_refused(answer, "a-run", "another run", "choose another --out")
    assert len(list(folder.iterdir())) == 2


def test_a_table_without_its_sidecar_is_not_continued(cli: InProcess, sound: Path) -> None:
    folder = Path("orphan")
    folder.mkdir(exist_ok=True)
    shutil.copy(sound / "certificates.tsv", folder)
    answer = cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", "orphan")
    assert_refused(answer, "orphan/certificates.tsv")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["metrics", "absent.tsv"], "absent.tsv"),
        (["metrics", "."], "certificates.tsv"),
        (["metrics", "sound", "--radii", "-1"], "-1"),
        (["metrics", "sound", "--radii", "0,x"], "'x' is not a number"),
        (["metrics", "sound", "--confidence", "2"], "2"),
        (["predict", "toy:colours", "npz:data.npz", *SIGMA, "--alpha", "2"], "2"),
        (["predict", "toy:colours", "npz:data.npz", *SIGMA, "--n", "5"], "n=5"),
        (["predict", "toy:colours", "npz:data.npz", *SIGMA, "--out", "sound"], "sound: it is a folder"),
        (["predict", "toy:colours", "npz:data.npz", "--sigma", "-1"], "-1"),
        (["predict", "toy:colours", "npz:data.npz", *SIGMA, "--n", "20", "--out", "no/such/folder"], "no/such/folder"),
        (["data", "imagenet"], "imagenet"),
    ],
    ids=lambda value: " ".join(value[:1] + value[-2:]) if isinstance(value, list) else "",
)
def test_other_commands(cli: InProcess, sound: Path, arguments: list[str], named: str) -> None:
    assert_refused(cli(*arguments), named)


OURS = "resnet20:sigma=0.5"
SEARCH = ("search", OURS, "sample", *SIGMA, "--out", "refused-search")
TRAIN = ("train", "resnet20", "sample", *SIGMA, "--out", "refused-training")
QUANTIZE = ("quantize", OURS, "sample", "--bits", "4", "--out", "refused-quantizing")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["inspect", "nosuch"], "'nosuch'"),
        (["inspect", "timm:resnet18", "--input", "3,32"], "'3,32' has 2 values, expected 3"),
        (["inspect", "resnet20", "--classes", "1"], "1"),
        (["inspect", "toy:colours"], "toy"),
        (["cost", "resnet20"], "--bits 3"),
        (["cost", "resnet20", "--bits", "nine"], "'nine'"),
        (["cost", "resnet20", "--bits", "99"], "99"),
        (["cost", "resnet20", "--bits", "4", "--policy", "p.json"], "--policy"),
        (["cost", "resnet20", "--bits", "4", "--keep", "nolayer=8"], "nolayer"),
        (["cost", "resnet20", "--bits", "4", "--keep", "conv1"], "'conv1'"),
        (["cost", "resnet20", "--policy", "absent.json"], "absent.json"),
        (["cost", "resnet20", "--policy", "toy.py"], "toy.py"),
        (["cost", "resnet20", "--bits", "4", "--table", "absent.npy"], "absent.npy"),
        (["cost", "resnet20", "--make-table", "table.txt"], "table.txt"),
        ([*QUANTIZE[:-2], *SIGMA], "--out"),
        ([*QUANTIZE], "--sigma"),
        ([*QUANTIZE, "--sigma", "nan"], "nan"),
        ([*QUANTIZE, *SIGMA, "--calibration-images", "0"], "0"),
        ([*QUANTIZE, *SIGMA, "--clip", "hard"], "'hard'"),
        (["finetune", "absent"], "absent"),
        (["finetune", "."], "config.yaml"),
        (["export", "absent"], "'absent'"),
        (["export", "resnet20"], "without weights"),
        (["export", OURS, "--format", "tflite"], "'tflite'"),
        (["check", "absent"], "absent"),
        (["check", "."], "nothing to check"),
        (["check", "sound", "--min-acr", "nan"], "nan"),
        (["check", "sound", "--min-acr", "-1"], "--min-acr must be a number that is not negative, got -1"),
        (["check", "sound", "--max-bytes", "-1"], "-1"),
        (["check", "sound", "--max-bytes", "100x"], "'100x' is not a size in bytes, such as 100k or 1e6"),
        (["check", "sound", "--min-certified", "often"], "'often'"),
        (["check", "sound", "--min-certified", "40@0.5"], "'40@0.5'"),
        (["report", "absent"], "absent"),
        (["report", "sound", "--figures", "toy.py"], "toy.py"),
        ([*SEARCH], "budget"),
        ([*SEARCH, "--budget", "bops<=0.01bit"], "0.01bit"),
        ([*SEARCH, "--budget", "bops=3"], "'bops=3'"),
        ([*SEARCH, "--budget", "speed<=3"], "speed"),
        ([*SEARCH, "--budget", "bops<=3bit", "--budget", "bops<=3bit"], "twice"),
        ([*SEARCH, "--budget", "bops<=3bit", "--strategy", "magic"], "'magic'"),
        ([*SEARCH, "--budget", "bops<=3bit", "--reward", "magic"], "'magic'"),
        ([*SEARCH, "--budget", "bops<=3bit", "--option", "x"], "'x'"),
        ([*SEARCH, "--budget", "bops<=3bit", "--trials", "0"], "0"),
        ([*SEARCH, "--budget", "bops<=3bit", "--hours", "nan"], "nan"),
        ([*SEARCH, "--budget", "bops<=3bit", "--split", "50,50"], "'50,50' has 2 values, expected 3"),
        ([*SEARCH, "--budget", "bops<=3bit", "--controls", "ours"], "'ours'"),
        ([*SEARCH, "--budget", "bops<=3bit", "--n", "5"], "n=5"),
        ([*TRAIN[:-2]], "--out"),
        ([*TRAIN, "--epochs", "-1"], "epochs"),
        ([*TRAIN, "--lr", "nan"], "nan"),
        ([*TRAIN, "--batch", "0"], "0"),
        ([*TRAIN, "--init", "absent.pt"], "absent.pt"),
        ([*TRAIN, "--schedule", "wild"], "'wild'"),
        ([*TRAIN, "--threads", "-1"], "threads must be at least 1, got -1"),
        ([*TRAIN, "--threads", "0"], "threads must be at least 1, got 0"),
        ([*TRAIN, "--epochs", "1e308"], "epochs must be at most"),
        ([*TRAIN, "--lr", "1e39"], "lr must be at most"),
        ([*TRAIN, "--decay", "-1"], "decay"),
        ([*TRAIN, "--warm-up", "1e308"], "warm_up"),
        ([*TRAIN, "--see", "1"], "--see"),
        (["finetune", "sound", "--threads", "0"], "threads must be at least 1, got 0"),
        ([*SEARCH, "--budget", "bops<=3bit", "--split", "nan,20,20"], "nan"),
        ([*SEARCH, "--budg", "bops<=3bit"], "--budg"),
        ([*SEARCH, "--conf", "absent.yaml"], "--conf"),
    ],
    ids=lambda value: " ".join((value[0], *value[-2:])) if isinstance(value, list) else "",
)
def test_every_command_names_what_is_wrong(cli: InProcess, sound: Path, arguments: list[str], named: str) -> None:
    assert_refused(cli(*arguments), named)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(cli: InProcess, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert_refused(cli("certify", "toy:colours", "npz:data.npz", *QUICK, "--out", str(tmp_path / "x")), str(tmp_path))


def test_bad_input_as_a_user_meets_it(project: Project) -> None:
    assert_refused(project.run("certify", "toy:colours", "npz:data.npz", "--sigma", "0"), "sigma", "0")


def test_training_does_not_overwrite_another_run(cli: InProcess, sound: Path, tmp_path: Path) -> None:
    words = [
        "train",
        "toy:colours",
        "npz:data.npz",
        *SIGMA,
        "--steps",
        "1",
        "--batch",
        "4",
        "--out",
        str(tmp_path / "trained"),
    ]
    assert cli(*words).code == 0
    assert cli(*words).code == 0, "the same command resumes"
    assert_refused(cli(*words, "--init", "toy:colours"), "belongs to another run (origin")
    assert_refused(cli(*words, "--lr", "0.5"), "lr 0.2 there, 0.5 here")
    for kept in ("config.yaml", "model.safetensors"):
        other = tmp_path / kept.replace(".", "-")
        other.mkdir()
        (other / kept).write_text("theirs")
        assert_refused(cli(*words[:-1], str(other)), "holds another run, which training would overwrite")
        assert (other / kept).read_text() == "theirs"


def test_what_was_not_given_is_said(cli: InProcess) -> None:
    assert_refused(cli("certify", "toy:colours", *SIGMA), "DATA was not given (it is sample then): sample")
    assert_refused(cli("finetune", "absent"), "there is no run folder absent")


def test_the_record_of_a_run_is_no_file_of_options(cli: InProcess) -> None:
    Path("recorded.yaml").write_text("command: quantize\nmodel: toy:colours\n")
    assert_refused(
        cli("certify", "toy:colours", "--config", "recorded.yaml"), "what `arquant quantize` recorded of its run"
    )


def test_a_float_network_is_not_fine_tuned(cli: InProcess) -> None:
    folder = Path("trained")
    folder.mkdir(exist_ok=True)
    (folder / "training.json").write_text("{}")  # what `train` writes; it writes no config.yaml
    assert_refused(cli("finetune", "trained"), "a float network that `train` made", "arquant quantize trained")
