"""Keep the fine-tuned networks of the best candidates, each in a file of its own, written in one move.

A network is on disk before the line that mentions it is in the journal, and is deleted after others have overtaken it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arquant.base.errors import FileFormatError
from arquant.base.files import envelope, in_one_move, opened
from arquant.base.own_files import own_file
from arquant.certification.certifier import Samples
from arquant.quantization.policy import Policy
from arquant.searching.workbench import Network

SCHEMA, VERSION = "arquant.candidate", "1"


@dataclass(frozen=True, eq=False)
class Kept:
    """A candidate's network and its votes on the search images, or what else the certifier saw of it.

    Attributes:
        early: the votes of the network as it was part of the way through its fine-tuning; None if nobody looked.
    """

    network: Network
    votes: Samples
    early: Samples | None = None


class KeptNetworks:
    """The networks in one folder, by the number of their candidate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        """Return where the network of a candidate is kept."""
        return own_file(self.folder.parent, self.folder.name, f"{number:06d}.safetensors")

    def save(self, number: int, policy: Policy, kept: Kept) -> None:
        """Keep a network; it is on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors: dict[str, Tensor] = {f"network.{name}": value for name, value in kept.network.items()}
        for name, votes in (("votes", kept.votes), ("early", kept.early)):
            if votes is not None:
                wide = votes.astype(np.int32) if votes.dtype == np.uint16 else votes
                tensors[name] = torch.from_numpy(np.array(wide, order="C"))  # a copy: votes of a worker are read-only
        facts = envelope(SCHEMA, VERSION, {"policy": json.dumps(policy.widths())})
        with in_one_move(self.path(number)) as scratch:
            save_file(tensors, scratch, facts)

    def load(self, number: int, policy: Policy) -> Kept | None:
        """Return the network of a candidate; None if it is not there or is of another policy.

        Raises:
            FileFormatError: the file is damaged.
        """
        path = self.path(number)
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                facts = opened(file.metadata() or {}, SCHEMA, VERSION, path)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            found, votes, early = json.loads(facts["policy"]), tensors.pop("votes"), tensors.pop("early", None)
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise FileFormatError(f"{path} is not a readable network ({error}); delete it to make it again") from error
        if found != policy.widths():
            return None
        network = {name.removeprefix("network."): value for name, value in tensors.items()}
        return Kept(network, _narrow(votes), None if early is None else _narrow(early))

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Delete all networks but these."""
        wanted = {self.path(number).name for number in numbers}
        for path in self.folder.glob("*"):
            if path.suffix in (".safetensors", ".part") and path.name not in wanted:
                path.unlink()


def _narrow(votes: Tensor) -> Samples:
    array: Samples = votes.numpy()
    return array.astype(np.uint16) if votes.dtype == torch.int32 else array
