"""How photos of any size become a model's input; part of what a model's file says of it."""

from arquant.base.errors import InputError

COVER = "cover"
"""resize until the shorter side is that of the input, keep the centre"""
FITS = "cover (shorter side, then the centre), squash (both sides), exact (refuse other sizes), or 256 (shorter side)"


def check_fit(fit: str) -> str:
    """Return `fit`, one of FITS; a photo that has the input's size already is taken as it is by each of them."""
    if fit in (COVER, "squash", "exact") or (fit.isascii() and fit.isdigit() and 0 < int(fit) <= 2**16):
        return fit
    raise InputError(f"cannot fit photos by {fit!r}; valid are {FITS}")


def fit_text(fit: str, before: tuple[int, int], after: tuple[int, int]) -> str:
    """Say what is done to a photo of `before` pixels (width, height), such as "300x200 -> 64x64: shorter side, centre crop"."""
    how = {COVER: "shorter side, centre crop", "squash": "both sides, not in proportion"}.get(
        fit, f"shorter side to {fit}, centre crop"
    )
    return f"{before[0]}x{before[1]} -> {after[0]}x{after[1]}: {how}"
