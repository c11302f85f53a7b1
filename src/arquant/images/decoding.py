"""One picture file as 8-bit pixels: decoded in full, resized by bilinear interpolation with antialiasing, cropped.

Pillow's faster draft decoding of JPEG is not used: its pixels differ from those of the whole picture.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arquant.base.errors import ArquantError, FileFormatError, InputError
from arquant.images.crops import Box
from arquant.models.photo_fit import COVER

Pixels = NDArray[np.uint8]
_ORIENTATION = 0x0112
"""the EXIF tag"""


@contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; whatever is wrong with it, then or within the context, is a FileFormatError that names the file."""
    try:
        with Image.open(path) as image:
            if deep := _deep_mode(image):
                raise FileFormatError(f"{path} has more than 8 bits per channel ({deep}); convert it to 8 bits")
            yield image
    except ArquantError:
        raise
    except Exception as error:  # Pillow's decoders raise many kinds of exceptions on damaged files.
        raise FileFormatError(f"cannot read the picture {path}: {error}; repair or remove it") from error


def _deep_mode(image: Image.Image) -> str | None:
    """Return what a picture of more than 8 bits per channel holds; Pillow would cut 16-bit colours to 8 without a word."""
    if image.mode.startswith(("I", "F")):
        return image.mode
    arguments: list[str] = re.findall(r"\w+;16\w*", repr(getattr(image, "tile", ())))  # of the decoder, such as RGB;16B
    return next(iter(arguments), None)


def remarks(image: Image.Image, width: int, height: int) -> dict[str, str]:
    """Return, by kind, what a user may not expect of a picture that becomes an input of that size."""
    found = {}
    if is_transparent(image):
        found["alpha"] = "is transparent in parts: alpha channels are dropped, colours are taken as stored"
    if (turned := _orientation(image)) != 1:
        found["turned"] = f"states the EXIF orientation {turned}, which is ignored: pixels are taken as stored"
    if (frames := _frames(image)) > 1:
        found["frames"] = f"has {frames} frames or pages: the first is taken"
    if image.width < width or image.height < height:
        found["small"] = (
            f"is {image.width} x {image.height} pixels, less than the input's {width} x {height}: it is enlarged"
        )
    return found


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a picture; 1, which is upright, if it has none or none that can be read."""
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged records make Pillow raise many kinds of exceptions; the pixels are sound
        return 1


def _frames(image: Image.Image) -> int:
    """Return how many pictures a file holds; 1 for a photo beside which a camera stored others (MPO)."""
    try:
        return int(getattr(image, "n_frames", 1)) if image.format in ("GIF", "TIFF", "WEBP", "PNG") else 1
    except Exception:  # as above, of later frames
        return 1


def is_transparent(image: Image.Image) -> bool:
    """Tell whether a picture has an alpha channel or a transparent colour, which decoding drops."""
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def colours(image: Image.Image, channels: int) -> Image.Image:
    """Return a picture as RGB, or in grey for one channel."""
    return image.convert("L" if channels == 1 else "RGB")


def fitted(picture: Image.Image, fit: str, path: Path, *, width: int, height: int) -> Image.Image:
    """Bring a picture to a size as `arquant.models.photo_fit` says; one that has it already is returned as it is."""
    if picture.size == (width, height):
        return picture
    if fit == "exact":
        raise InputError(
            f"{path} is {picture.width} x {picture.height} pixels, the model takes {width} x {height}: resize it, or let "
            "arquant do it (--fit cover)"
        )
    if fit == "squash":
        return picture.resize((width, height), Image.Resampling.BILINEAR)
    scale = max(width / picture.width, height / picture.height)
    if fit != COVER:
        scale = max(scale, int(fit) / min(picture.size))
    wide, high = max(width, round(picture.width * scale)), max(height, round(picture.height * scale))
    picture = picture.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = (wide - width) // 2, (high - height) // 2
    return picture.crop((left, top, left + width, top + height))


def part_of(picture: Image.Image, box: Box, *, mirrored: bool, width: int, height: int) -> Image.Image:
    """Return a part of a picture, resized, and mirrored from left to right if wanted."""
    part = picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else part


def pixels_of(picture: Image.Image) -> Pixels:
    """Return a decoded picture as uint8 (C, H, W)."""
    pixels = np.array(picture)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
