"""folder:DIR."""

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from arquant.base.errors import FileFormatError, InputError, MismatchError
from arquant.images.folder import load_folder
from arquant.loading.datasets import load_data
from tests.support.photo_folders import save_photo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, name in enumerate(["cat/2.png", "cat/10.png", "dog/a.PNG", "dog/sub/b.bmp", "ant/x.png"]):
        save_photo(tmp_path / "set" / name, 6, 4, seed=number)
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
    save_photo(folder / "dog" / "z.jpg", 9, 7)
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
        save_photo(tmp_path / "s" / name, w, h)
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
        save_photo(folder / name, 6, 4)
    assert load_data(f"folder:{folder}", "certify").labels.tolist() == [0, 2, 2, 3, 3]


def test_grey_palette_and_alpha_pictures_are_read_as_rgb(tmp_path: Path) -> None:
    for mode in ("L", "P", "RGBA", "1"):
        save_photo(tmp_path / mode / "0.png", 6, 4, mode=mode)
    assert load_data(f"folder:{tmp_path}", "certify").shape == (3, 4, 6)


def test_a_photo_of_the_input_s_size_is_taken_as_it_is_by_every_fit(folder: Path) -> None:
    stored = np.asarray(Image.open(folder / "ant" / "x.png")).transpose(2, 0, 1)
    for fit in ("cover", "squash", "exact", "40"):
        assert np.array_equal(load_data(f"folder:{folder}", "certify", size=(3, 4, 6), fit=fit).images[0], stored)


def test_fits_differ_as_they_say(tmp_path: Path) -> None:
    halves = np.zeros((20, 40, 3), np.uint8)
    halves[:, 20:] = 255
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(halves).save(tmp_path / name / "0.png")

    def read(fit: str) -> Any:
        return load_data(f"folder:{tmp_path}", "certify", size=(3, 10, 10), fit=fit).images[0][0]

    inner = np.asarray(Image.fromarray(halves).resize((32, 16), Image.Resampling.BILINEAR).crop((11, 3, 21, 13)))[
        :, :, 0
    ]
    assert np.array_equal(read("16"), inner)
    assert np.array_equal(
        read("squash"), np.asarray(Image.fromarray(halves).resize((10, 10), Image.Resampling.BILINEAR))[:, :, 0]
    )
    assert np.array_equal(read("3"), read("cover")), "never smaller than the input"
    with pytest.raises(InputError, match=r"0\.png is 40 x 20 pixels, the model takes 10 x 10"):
        read("exact")
    for wrong in ("", "crop", "-4", "0", "1.5"):
        with pytest.raises(InputError, match="valid are cover"):
            read(wrong)


def test_what_is_done_to_photos_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "cat" / "Thumbs.db").unlink()
    caplog.set_level("INFO", "arquant")
    load_data(f"folder:{folder}", "certify", size=(3, 4, 6))
    assert not caplog.messages
    load_data(f"folder:{folder}", "certify", size=(3, 2, 2))
    assert caplog.messages == ["photos 6x4 -> 2x2: shorter side, centre crop (--fit cover)"]
    save_photo(folder / "cat" / "2.png", 6, 4, mode="RGBA")
    save_photo(folder / "cat" / "10.png", 6, 4, mode="RGBA")
    load_data(f"folder:{folder}", "certify", size=(3, 4, 6))
    assert ["alpha channels are dropped" in text for text in caplog.messages] == [False, True]


def test_a_selection_of_one_class_warns(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_data(f"folder:{folder}", "certify", images="most:2")
    load_data(f"folder:{folder}", "certify", images="first:1")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert load_data(f"folder:{folder}", "certify", images="1-2").labels.tolist() == [2, 2]
    assert "of one class only" in caplog.text
    assert "most:2 or every:2" in caplog.text


def _folder_with(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), "red").save(tmp_path / name / "a.png")
    return tmp_path


def test_what_a_user_may_not_expect_of_a_photo_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cats = _folder_with(tmp_path) / "cat"
    turned = Image.Exif()
    turned[0x0112] = 6
    for number in range(2):
        Image.new("RGB", (9, 8)).save(cats / f"turned{number}.jpg", exif=turned)
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    frames[0].save(cats / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("RGB", (3, 2)).save(cats / "tiny.png")
    caplog.set_level("INFO", "arquant")
    found = load_folder(tmp_path, size=(3, 8, 8))
    said = caplog.text
    assert len(found) == 6
    assert said.count("states the EXIF orientation 6, which is ignored") == 1
    assert "moving.gif has 3 frames or pages: the first is taken" in said
    assert "tiny.png is 3 x 2 pixels, less than the input's 8 x 8: it is enlarged" in said


def test_files_that_are_left_out_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cats = _folder_with(tmp_path) / "cat"
    for name in ("phone.HEIC", "notes.txt", ".DS_Store"):
        (cats / name).touch()
    (cats / "more").symlink_to(tmp_path / "dog")
    Image.new("RGB", (8, 8)).save(tmp_path / "stray.png")
    caplog.set_level("INFO", "arquant")
    assert len(load_folder(tmp_path)) == 2
    for part in ("1 .heic", "1 .txt", "1 linked folder", "1 .png outside of class folders"):
        assert part in caplog.text
    assert "DS_Store" not in caplog.text


def test_colours_of_16_bits_are_refused(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(6 * 8) for _ in range(8))
    header = struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (_folder_with(tmp_path) / "cat" / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    with pytest.raises(FileFormatError, match=r"deep\.png has more than 8 bits per channel \(RGB;16B\)"):
        load_folder(tmp_path)


def test_photos_of_several_sizes_do_not_tell_the_size_of_the_input(tmp_path: Path) -> None:
    Image.new("RGB", (9, 8)).save(_folder_with(tmp_path) / "dog" / "b.png")
    with pytest.raises(InputError, match=r"b\.png is 9 x 8 pixels, .*a\.png is 8 x 8; bring all to one size or state"):
        load_folder(tmp_path, on_demand=True)
    assert load_folder(tmp_path, size=(3, 8, 8), on_demand=True).shape == (3, 8, 8)
