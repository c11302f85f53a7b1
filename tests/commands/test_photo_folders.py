"""A folder of one's own photos, from training to the report: nothing is silently another image or another class."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from arquant import Settings, Smoothed, clopper_pearson_lower, load_data, load_model, predict
from arquant.certificates.bounds import certified_radius
from arquant.images import photos as photos_module
from arquant.images.imageset import ImageSet
from arquant.reporting.gathering import gather
from tests.support.command_line import InProcess

CLASSES = ("a_red", "b_green", "c_blue")
TRAIN = ("train", "toy:colours", "folder:train", "--sigma", "0.1", "--steps", "2", "--batch", "6", "--lr", "1e-4")
CERTIFY = ("--arch", "toy:colours", "--sigma", "0.1", "--n", "64", "--n0", "16")


def colour_photos(root: Path, each: int, *, seed: int) -> None:
    """Write photos of 12 x 10 pixels: the class is the brightest colour."""
    draw = np.random.default_rng(seed)
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = draw.integers(0, 100, (10, 12, 3), dtype=np.uint8)
            pixels[:, :, label] += 120
            Image.fromarray(pixels).save(root / name / f"{number}.png")


@pytest.fixture
def photos(cli: InProcess) -> InProcess:
    """The command line in a folder with the photos `train` and `test`, and a network trained on the former."""
    if not Path("train").exists():
        colour_photos(Path("train"), 4, seed=1)
        colour_photos(Path("test"), 2, seed=2)
        answer = cli(*TRAIN, "--crops", "resized", "--out", "base")
        assert answer.code == 0, answer.err
        assert answer.err.count("photos 12x10 -> 4x4: shorter side, centre crop") == 1
    return cli


def test_what_training_knows_of_its_photos_is_in_the_file(photos: InProcess) -> None:
    model = load_model("base", arch="toy:colours")
    assert (model.class_names, model.fit) == (CLASSES, "cover")
    assert model.seen is not None
    assert len(model.seen.uses["train"].digests) == 12


def test_other_photos_are_certified_and_shown_again(photos: InProcess) -> None:
    answer = photos("certify", "base", "folder:test", *CERTIFY, "--out", "certified", "--json")
    assert answer.code == 0, answer.err
    assert answer.err.count("photos 12x10 -> 4x4: shorter side, centre crop") == 1
    assert json.loads(answer.out)["certified_accuracy"]["0.0"] == 1.0
    report = gather(["certified"])
    assert "Images of folder:test" in report.gallery_note
    assert {picture.label for _, row in report.gallery for picture in row} <= set(CLASSES)
    sidecar = Path("certified/certificates.json")
    record = json.loads(sidecar.read_text())
    assert (record["provenance"]["data"]["shape"], record["provenance"]["data"]["fit"]) == ([3, 4, 4], "cover")
    del record["provenance"]["data"]["shape"]
    sidecar.write_text(json.dumps(record))
    assert "do not record what photos of 'folder:test' were resized to" in gather(["certified"]).gallery_note


def test_photos_of_the_training_are_refused(photos: InProcess) -> None:
    answer = photos("certify", "base", "folder:train", *CERTIFY, "--images", "every:5", "--out", "seen")
    assert answer.code == 2
    assert "was used by base (train)" in answer.err


def test_another_way_to_fit_photos_than_that_of_the_file_is_refused(photos: InProcess) -> None:
    answer = photos("certify", "base", "folder:train", *CERTIFY, "--fit", "8", "--out", "seen")
    assert answer.code == 2, "else photos of the training would not be known again"
    assert "made with photos fitted by 'cover', not '8'" in answer.err
    answer = photos("certify", "toy:colours", "folder:test", *CERTIFY[2:], "--fit", "8", "--out", "other-fit")
    assert answer.code == 0, answer.err
    assert "photos 12x10 -> 4x4: shorter side to 8, centre crop" in answer.err


def test_other_classes_are_refused(photos: InProcess) -> None:
    shutil.copytree("test", "renamed", dirs_exist_ok=True)
    Path("renamed/c_blue").rename("renamed/violet")
    answer = photos("certify", "base", "folder:renamed", *CERTIFY, "--out", "renamed-run")
    assert answer.code == 2
    assert "'violet' instead of 'c_blue'" in answer.err


def test_an_exported_file_says_and_compares_them_too(photos: InProcess) -> None:
    answer = photos("export", "base", "--arch", "toy:colours", "--sigma", "0.1", "--out", "model.onnx")
    assert answer.code == 0, answer.err
    stated = json.loads(onnx.load("model.onnx").metadata_props[0].value)["more"]
    assert (stated["class_names"], stated["fit"]) == (list(CLASSES), "cover")
    shutil.copytree("test", "others", dirs_exist_ok=True)
    Path("others/c_blue").rename("others/violet")
    answer = photos("certify", "model.onnx", "folder:others", *CERTIFY[2:], "--out", "onnx-run")
    assert answer.code == 2
    assert "'violet' instead of 'c_blue'" in answer.err


def test_the_lines_of_the_readme_work_with_a_folder(photos: InProcess) -> None:
    model = load_model("base", arch="toy:colours")
    images = load_data("folder:test", "certify", model=model).select("every:2")
    certificates = list(Smoothed(model, sigma=0.1).certify(images, Settings(sigma=0.1, n=64, n0=16, alpha=0.01)))
    assert [row.predict for row in certificates] == [0, 1, 2]
    shuffled = ImageSet(
        images.images, np.array([1, 2, 0]), images.indices, "shuffled", 3, (CLASSES[2], CLASSES[0], CLASSES[1])
    )
    assert shuffled.named_as(model.class_names).labels.tolist() == images.labels.tolist()


def test_a_run_on_many_photos_records_those_that_it_read_in_the_end(
    photos: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photos_module, "FEW", 4)
    answer = photos(*TRAIN, "--steps", "1", "--out", "part")
    assert answer.code == 0, answer.err
    model = load_model("part", arch="toy:colours")
    assert model.seen is not None
    assert len(model.seen.uses["train"].digests) == 6, "those of one batch"
    answer = photos(*TRAIN, "--out", "many")
    assert answer.code == 0, answer.err
    with np.load("many/seen.npz") as seen:
        assert len(seen["train"]) == 12
    shutil.copy("many/model.safetensors", "alone.safetensors")
    for model in ("many", "alone.safetensors"):
        answer = photos("certify", model, "folder:train", *CERTIFY, "--images", "every:5", "--out", "seen")
        assert answer.code == 2
        assert "certificates are for images that a run never saw" in answer.err


PREDICT = ("--arch", "toy:colours", "--sigma", "0.1", "--n", "200", "--seed", "1")


def test_photos_are_classified_by_their_files(photos: InProcess) -> None:
    shutil.copytree("test/b_green", "flat", dirs_exist_ok=True)
    answer = photos("predict", "base", "test/c_blue/1.png", "flat", *PREDICT, "--out", "answers.tsv")
    assert answer.code == 0, answer.err
    header, *rows, said = answer.out.splitlines()
    assert said == "3 images: 0.0% abstained"
    found = [dict(zip(header.split("\t"), row.split("\t"), strict=True)) for row in rows]
    assert [(row["file"], row["class"], row["label"], row["correct"]) for row in found] == [
        ("test/c_blue/1.png", "c_blue", "-1", "-1"),
        ("flat/0.png", "b_green", "-1", "-1"),
        ("flat/1.png", "b_green", "-1", "-1"),
    ]
    assert Path("answers.tsv").read_text().splitlines() == [header, *rows]
    for row in found:
        paid = clopper_pearson_lower(int(row["votes"]), 200, 0.001 / 3)  # the votes that chose the class bound it too
        assert float(row["radius"]) == pytest.approx(certified_radius(paid, 0.1), abs=1e-8)
        assert float(row["radius"]) > 0


def test_python_classifies_photos_too(photos: InProcess) -> None:
    model = load_model("base", arch="toy:colours")
    one, other = predict(model, Path("test/a_red/0.png"), "test/b_green/1.png", sigma=0.1, n=200)
    assert (one.class_name, one.file, one.label) == ("a_red", "test/a_red/0.png", -1)
    assert (other.class_name, other.file) == ("b_green", "test/b_green/1.png")
    assert [p.class_name for p in predict(model, ["test"], sigma=0.1, n=200, images="every:2")] == list(CLASSES)
    labelled = predict(model, load_data("folder:test", "certify", model=model), sigma=0.1, n=200)
    assert [p.label for p in labelled] == [0, 0, 1, 1, 2, 2]


def test_a_folder_with_labels_says_its_files(photos: InProcess) -> None:
    answer = photos("predict", "base", "folder:test", *PREDICT, "--images", "every:3", "--json")
    found = json.loads(answer.out)
    assert [(p["file"], p["label"], p["class_name"]) for p in found] == [
        ("test/a_red/0.png", 0, "a_red"), ("test/b_green/1.png", 1, "b_green"),
    ]  # fmt: skip


def test_arrays_without_labels_are_classified(photos: InProcess) -> None:
    pixels = np.zeros((2, 3, 4, 4), np.uint8)
    pixels[0, 2] = pixels[1, 0] = 200
    np.savez("unlabelled.npz", images=pixels)
    answer = photos("predict", "base", "npz:unlabelled.npz", *PREDICT, "--json")
    assert answer.code == 0, answer.err
    assert [(p["class_name"], p["file"]) for p in json.loads(answer.out)] == [
        ("c_blue", "unlabelled.npz[0]"), ("a_red", "unlabelled.npz[1]"),
    ]  # fmt: skip
    answer = photos("certify", "base", "npz:unlabelled.npz", *CERTIFY)
    assert answer.code == 2
    assert "no array 'labels'" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gone.jpg", "test"), "there is no file or folder 'gone.jpg' to classify"),
        (("toy.py",), "toy.py is no picture"),
        (("empty",), "the folder empty has no pictures"),
    ],
)
def test_what_is_no_picture_is_said(photos: InProcess, words: tuple[str, ...], said: str) -> None:
    Path("empty").mkdir(exist_ok=True)
    answer = photos("predict", "base", *words, *PREDICT)
    assert answer.code == 2
    assert said in answer.err


@pytest.mark.parametrize("model", ["mobilenetv2", "timm:resnet10t", "torchvision:mobilenet_v3_small"])
def test_a_network_by_name_takes_its_classes_from_the_photos(photos: InProcess, model: str) -> None:
    command = ("train", model, "folder:train", "--input", "3,32,32", "--sigma", "0.1", "--steps", "1", "--batch", "4")
    answer = photos(*command, "--out", "named")
    assert answer.code == 0, answer.err
    assert answer.err.count(f"{model} begins with 3 classes, those of folder:train") == 1
    trained = load_model("named")
    assert (trained.num_classes, trained.class_names) == (3, CLASSES)
    resumed = photos(*command, "--out", "named")
    assert resumed.code == 0, "the same command resumes"
    stated = photos(*command, "--classes", "4", "--out", "stated")
    assert stated.code == 2
    assert "folder:train has 3 classes, the model 4" in stated.err
    shutil.rmtree("named")


def test_a_plan_for_a_network_by_name_takes_its_classes_from_the_photos(photos: InProcess) -> None:
    answer = photos(
        "plan", "mobilenetv2", "folder:test", "--calibrate", "folder:train", "--certify", "folder:test", "--input", "3,32,32",
        "--sigma", "0.1", "--budget", "bops<=4bit",
    )  # fmt: skip
    assert "has 3 classes, the model 1000" not in answer.err
    assert "mobilenetv2 begins with 3 classes" in answer.err


def test_a_class_too_many_or_too_few_is_named(photos: InProcess) -> None:
    shutil.copytree("test", "more", dirs_exist_ok=True)
    Path("more/d_white").mkdir()
    answer = photos("certify", "base", "folder:more", *CERTIFY, "--out", "refused")
    assert answer.code == 2
    assert "'d_white' as well; take those folders away" in answer.err
    shutil.copytree("test", "fewer", ignore=shutil.ignore_patterns("b_green"), dirs_exist_ok=True)
    answer = photos("certify", "base", "folder:fewer", *CERTIFY, "--out", "refused")
    assert answer.code == 2
    assert "not 'b_green'; an empty folder stands for a class without images" in answer.err
    Path("fewer/b_green").mkdir()
    answer = photos("certify", "base", "folder:fewer", *CERTIFY, "--out", "two-of-three")
    assert answer.code == 0, answer.err


def test_photos_tell_the_input_only_where_all_have_one_size(photos: InProcess) -> None:
    command = (
        "train",
        "toy:bare",
        "folder:several",
        "--sigma",
        "0.1",
        "--steps",
        "1",
        "--batch",
        "4",
        "--out",
        "sized",
    )
    shutil.copytree("train", "several", dirs_exist_ok=True)
    answer = photos(*command)
    assert answer.code == 0, answer.err
    assert "toy:bare gets images of 3 x 10 x 12, those of folder:several" in answer.err
    Image.new("RGB", (40, 30)).save("several/b_green/large.png")
    answer = photos(*command[:-1], "sized-2")
    assert answer.code == 2, "else all would be cropped to the size of the first"
    assert "large.png is 40 x 30 pixels" in answer.err
    assert "state the model's (--input 3,H,W)" in answer.err


def test_what_comes_before_is_named(photos: InProcess) -> None:
    answer = photos("finetune", "base")
    assert answer.code == 2
    assert (
        "base holds a float network that `train` made; fine-tuning is for quantized ones: arquant quantize base"
        in answer.err
    )
    answer = photos("metrics", "base")
    assert answer.code == 2
    assert "base has no certificates.tsv; make one: arquant certify base --out base" in answer.err
    answer = photos("certify", "runs/gone", "folder:test")
    assert answer.code == 2
    assert "unknown model 'runs/gone': there is no such file or folder" in answer.err


def test_predict_without_data_does_not_take_the_images_of_the_calibration(photos: InProcess) -> None:
    train = ("train", "resnet20", "folder:train", "--sigma", "0.1", "--steps", "1", "--batch", "4", "--out", "small")
    quantize = ("quantize", "small", "folder:train", "--bits", "4", "--sigma", "0.1", "--out", "small4")
    for command in (train, quantize):
        answer = photos(*command)
        assert answer.code == 0, answer.err
    assert "arquant certify small4 OTHER_DATA --sigma 0.1 --out small4" in answer.out
    assert "without records about images" in answer.out
    answer = photos("predict", "small4", "--n", "20")
    assert answer.code == 2
    assert "DATA was not given, and small4 kept no images to certify: name pictures" in answer.err
