"""folder:DIR."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.loading.datasets import load_data


def save_picture(path: Path, width: int, height: int, *, mode: str = "RGB", seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat/2.png", "cat/10.png", "dog/a.PNG", "dog/sub/b.bmp", "ant/x.png"]):
        save_picture(tmp_path / "set" / name, 6, 4, seed=number)
    (tmp_path / "set" / "bee").mkdir()
    (tmp_path / "set" / ".hidden").mkdir()
    (tmp_path / "set" / "cat" / "Thumbs.db").write_text("")
    (tmp_path / "set" / "README.txt").write_text("")
    return tmp_path / "set"


def test_folder_order_labels_and_pixels(folder: Path) -> None:
    loaded = load_data(f"folder:{folder}", "certify", num_classes=4)
    assert loaded.class_names == ("ant", "bee", "cat", "dog")
    assert loaded.labels.tolist() == [0, 2, 2, 3, 3]
    assert loaded.shape == (3, 4, 6)
    expected = np.asarray(Image.open(folder / "cat" / "10.png")).transpose(2, 0, 1)
    assert np.array_equal(loaded.images[1], expected)


def test_folder_reads_only_the_selected_files(folder: Path) -> None:
    (folder / "dog" / "a.PNG").write_text("broken")
    chosen = load_data(f"folder:{folder}", "certify", images="0-2")
    assert (chosen.indices.tolist(), chosen.labels.tolist()) == ([0, 1, 2], [0, 2, 2])
    with pytest.raises(FileFormatError, match=r"cannot read the picture .*a\.PNG"):
        load_data(f"folder:{folder}", "certify")


def test_folder_of_unequal_sizes_needs_size(folder: Path) -> None:
    save_picture(folder / "dog" / "z.jpg", 9, 7)
    with pytest.raises(InputError, match=r"z\.jpg is 9 x 7 pixels, x\.png is 6 x 4"):
        load_data(f"folder:{folder}", "certify")
    assert load_data(f"folder:{folder}", "certify", size=(3, 5, 5)).shape == (3, 5, 5)
    assert load_data(f"folder:{folder}", "certify", size=(1, 2, 8)).shape == (1, 2, 8)
    with pytest.raises(InputError, match=r"not \(4, 5, 5\)"):
        load_data(f"folder:{folder}", "certify", size=(4, 5, 5))


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20))
def test_resize_always_gives_the_size_asked_for(tmp_path: Path, w: int, h: int, width: int, height: int) -> None:
    for name in ("a/0.png", "b/0.png"):
        save_picture(tmp_path / "s" / name, w, h)
    assert load_data(f"folder:{tmp_path / 's'}", "certify", size=(3, height, width)).shape == (3, height, width)


def test_resize_keeps_the_centre(tmp_path: Path) -> None:
    stripes = np.zeros((10, 30, 3), np.uint8)
    stripes[:, 10:20] = 255
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(stripes).save(tmp_path / name / "0.png")
    assert (load_data(f"folder:{tmp_path}", "certify", size=(3, 10, 10)).images == 255).all()


def test_folder_class_count_must_be_the_models(folder: Path) -> None:
    with pytest.raises(MismatchError, match=r"4 classes, the model 10.*one folder per class"):
        load_data(f"folder:{folder}", "certify", num_classes=10)


def test_bad_folders_and_pictures_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot list the folder .*absent"):
        load_data(f"folder:{tmp_path / 'absent'}", "certify")
    with pytest.raises(InputError, match="1 class folders and 5 pictures"):
        load_data(f"folder:{tmp_path}", "certify")
    whole = (folder / "cat" / "2.png").read_bytes()
    (folder / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"2\.png"):
        load_data(f"folder:{folder}", "certify")
    Image.fromarray(np.zeros((4, 6), np.uint16)).save(folder / "cat" / "2.png")
    with pytest.raises(FileFormatError, match=r"2\.png has more than 8 bits"):
        load_data(f"folder:{folder}", "certify")


def test_a_folder_that_cannot_be_read_is_not_empty(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def closed(path: Any) -> Any:
        if Path(path).name == "sub":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)  # root may read all
    with pytest.raises(InputError, match=r"cannot list the folder .*dog/sub: Permission denied"):
        load_data(f"folder:{folder}", "certify")


def test_a_link_to_nothing_is_no_picture_to_leave_out(folder: Path) -> None:
    (folder / "cat" / "3.png").symlink_to("gone.png")
    with pytest.raises(InputError, match=r"3\.png is no file, or a link"):
        load_data(f"folder:{folder}", "certify")


def test_hidden_folders_and_files_are_left_out(folder: Path) -> None:
    for name in ("cat/.ipynb_checkpoints/1.png", "dog/sub/.cache/deep/1.png", "ant/.1.png"):
        save_picture(folder / name, 6, 4)
    assert load_data(f"folder:{folder}", "certify").labels.tolist() == [0, 2, 2, 3, 3]


def test_grey_palette_and_alpha_pictures_are_read_as_rgb(tmp_path: Path) -> None:
    for mode in ("L", "P", "RGBA", "1"):
        save_picture(tmp_path / mode / "0.png", 6, 4, mode=mode)
    assert load_data(f"folder:{tmp_path}", "certify").shape == (3, 4, 6)
