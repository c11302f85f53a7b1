"""Progress of a certification: what it can prove and how long it will take, said before; votes and running ACR on the way."""

import time
from collections.abc import Callable, Iterable

import numpy as np

from arquant.base.progress import Report, Status, duration
from arquant.certificates.certificate import Certificate, Settings
from arquant.certificates.rounding import down

REPORT_SECONDS = 0.5
ENOUGH_IMAGES = 10
"""to tell from the votes they used how many the others will"""


class RunProgress:
    """Counts the votes and certificates of a run, and reports on them.

    Args:
        images: how many there are in all.
        report, note: are told.
        workers: says how many workers there are; empty where there are none.
    """

    def __init__(
        self,
        settings: Settings,
        images: int,
        report: Report,
        note: Callable[[str], None],
        workers: Callable[[], str] = lambda: "",
    ) -> None:
        self._settings, self._images = settings, images
        self._report, self._note, self._workers = report, note, workers
        self._votes = self._finished_votes = self._left = 0
        self._radii: list[float] = []
        self._used: list[int] = []
        self._told = time.monotonic()

    @property
    def _votes_each(self) -> int:
        return self._settings.n + (self._settings.n0 if self._settings.mode == "select" else 0)

    def take_up(self, earlier: Iterable[Certificate]) -> None:
        """Take in the certificates of an earlier run."""
        for certificate in earlier:
            self._add(certificate)

    def announce(self, rate: float, engine: str) -> None:
        """Say, before a long run, what it can prove at most and how long it will take.

        Args:
            rate: votes per second.
            engine: what casts them, in words.
        """
        settings, done = self._settings, len(self._radii)
        left = self._images - done
        radius = settings.largest_radius
        self._note(
            f"{settings.n:,} votes at alpha {settings.effective_alpha:g} and sigma {settings.sigma:g} "
            f"({255 * settings.sigma:.0f} grey levels) can prove {settings.norm} radii up to {down(radius)} "
            f"({down(255 * radius, 0)} grey levels)"
        )
        resumed = f"{done:,} of {self._images:,} images are done; " if done else ""
        at_most = "at most " if settings.adaptive is not None else "about "
        self._note(
            f"{resumed}{left:,} images x {self._votes_each:,} votes at {rate:,.0f} votes/s "
            f"({engine}): {at_most}{duration(left * self._votes_each / rate)}"
        )

    def begin(self, votes: int) -> None:
        """Begin with the images that are left, of which so many votes are counted already."""
        self._votes, self._left = votes, self._images - len(self._radii)
        self._tell()

    def certified(self, certificate: Certificate) -> None:
        """Count a certificate."""
        self._add(certificate)
        self._finished_votes += self._used[-1]
        self._left -= 1

    def voted(self, votes: int) -> None:
        """Count votes; report now and then, and at the end."""
        self._votes += votes
        now = time.monotonic()
        if now - self._told >= REPORT_SECONDS or not self._left:
            self._tell()
            self._told = now

    def _add(self, certificate: Certificate) -> None:
        self._radii.append(certificate.radius * certificate.correct)
        self._used.append(certificate.n + certificate.n0)

    def _tell(self) -> None:
        details = {"images": f"{len(self._radii)}/{self._images}"}
        if workers := self._workers():
            details["workers"] = workers
        if len(self._radii) > 1:
            half = 1.96 * np.std(self._radii, ddof=1) / np.sqrt(len(self._radii))  # of a 95 % interval
            details["ACR"] = f"{np.mean(self._radii):.3f} ± {half:.3f}"
        # an adaptive run uses fewer votes than it may: the images to come are taken to be like those that are done
        each = float(np.mean(self._used)) if len(self._used) >= ENOUGH_IMAGES else self._votes_each
        total = max(self._votes, round(self._finished_votes + self._left * each))
        self._report(Status("certify", self._votes, total, "votes", details))
