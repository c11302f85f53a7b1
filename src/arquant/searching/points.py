"""The result within every budget: the winner's model and its controls, certified."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from arquant.base.errors import InputError
from arquant.base.own_files import own_file
from arquant.base.progress import Report
from arquant.base.run_folder import POINTS
from arquant.certificates.certificate import CertificateSet
from arquant.certification.votes import NoAnswer
from arquant.models.classifier import Classifier
from arquant.quantization.policy import Policy
from arquant.searching.delivery import CONTROL_FOLDER, Delivery
from arquant.searching.journal_lines import Candidate, SecondLook
from arquant.searching.options import SearchOptions
from arquant.searching.space import Space
from arquant.searching.standings import Track
from arquant.searching.study import Study
from arquant.searching.summary import Point
from arquant.searching.workbench import Network
from arquant.training.loop import Diverged

Chosen = tuple[Candidate, Sequence[SecondLook]]
"""a winner, and the second looks that it was chosen by"""


@dataclass(frozen=True)
class Places:
    """Where the results of the budgets go: the run folder, or one folder per budget."""

    run: Path
    several: bool

    def folder(self, space: Space) -> Path:
        """Return the folder of a budget."""
        return own_file(self.run, POINTS, space.budget.slug) if self.several else self.run

    def report_of(self, track: Track, report: Report) -> Report:
        """Return a report that names the budget, where there are several."""
        if not self.several:
            return report
        return lambda status: report(replace(status, stage=f"{status.stage}, {track.name}"))


@dataclass(frozen=True, eq=False)
class PointMaker:
    """Makes the results of a search from its winners.

    Attributes:
        classifier: the float model, a control.
    """

    places: Places
    study: Study
    delivery: Delivery
    options: SearchOptions
    classifier: Classifier

    def points(self, chosen: Mapping[str, Chosen]) -> list[Point]:
        """Return the result within every budget, by its winner.

        A budget whose model cannot be had is an error only after all others are certified: the same command, given
        again, would fail at the same place.
        """
        self._finetune_ahead(chosen)
        points: list[Point] = []
        failures: list[InputError] = []
        for track in self.study.tracks:
            try:
                points.append(self._point(track, *chosen[track.name]))
            except (Diverged, NoAnswer) as error:
                failures.append(error)
        if failures:
            raise failures[0]
        if not any(point.missing for point in points):  # a policy that diverged is still of use
            self.delivery.tidy()
        return points

    def _finetune_ahead(self, chosen: Mapping[str, Chosen]) -> None:
        """Let workers, if there are any, fine-tune what is missing of all budgets side by side."""
        wanted: list[tuple[Path, Policy, Callable[[], Network] | None]] = []
        for track in self.study.tracks:
            (winner, _), folder, space = chosen[track.name], self.places.folder(track.space), track.space
            wanted.append((folder, winner.policy, self._start(winner)))
            if "uniform" in self.options.controls:
                wanted.append((folder / CONTROL_FOLDER / "uniform", space.uniform(space.uniform_pairs[0]), None))
        missing = [each for each in wanted if not self.delivery.is_made(*each[:2])]
        recipe = self.options.final_recipe
        self.delivery.finetune_ahead([(policy, start, recipe) for _, policy, start in missing])

    def _start(self, winner: Candidate) -> Callable[[], Network] | None:
        return (lambda: self.study.network(winner).network) if self.options.final_start == "kept" else None

    def _point(self, track: Track, winner: Candidate, looks: Sequence[SecondLook]) -> Point:
        folder, space = self.places.folder(track.space), track.space
        delivery = replace(self.delivery, report=self.places.report_of(track, self.delivery.report))
        certified = delivery.certified(
            folder,
            winner.policy,
            "the winner",
            start=self._start(winner),
            examined=self.study.standings.examined,
            budget=track.name,
        )
        uniform = space.uniform(space.uniform_pairs[0])
        controls: dict[str, CertificateSet] = {}
        missing: dict[str, str] = {}
        if "float" in self.options.controls:
            place = self.places.run / CONTROL_FOLDER / "float"
            controls["float"] = delivery.certificates(place, self.classifier, "float", examined=None)
        if "uniform" in self.options.controls:
            place = folder / CONTROL_FOLDER / "uniform"
            try:
                controls["uniform"] = delivery.certified(place, uniform, "uniform", examined=1, budget=track.name)
            except (Diverged, NoAnswer) as error:  # the winner is certified, and stands without its control
                missing["uniform"] = str(error)
        return Point(
            track.name, winner.policy, str(folder), winner, looks, certified, uniform, space.is_uniform(winner.policy),
            controls, missing,
        )  # fmt: skip
