"""Fine-tuned networks of the best candidates, each in a file of its own, written in one move.

A network is on disk before the line that mentions it is in the journal, and is deleted after others have overtaken it.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arquant.errors import FileFormatError
from arquant.policy import Policy
from arquant.vote_cache import Votes
from arquant.workbench import Network

SCHEMA, VERSION = "arquant.candidate", "1"


@dataclass(frozen=True, eq=False)
class Kept:
    """A candidate's network and its votes on the search images."""

    network: Network
    votes: Votes


class KeptNetworks:
    """The networks in one folder, by the number of their candidate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, number: int) -> Path:
        """Where the network of a candidate is kept."""
        return self.folder / f"{number:06d}.safetensors"

    def save(self, number: int, policy: Policy, kept: Kept) -> None:
        """Keep a network; it is on disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        wide = np.asarray(kept.votes, dtype=np.int32 if kept.votes.dtype != np.uint8 else np.uint8)
        tensors: dict[str, Tensor] = {f"network.{name}": value for name, value in kept.network.items()}
        tensors["votes"] = torch.from_numpy(np.ascontiguousarray(wide))
        facts = {"schema": SCHEMA, "version": VERSION, "policy": json.dumps(_plain(policy))}
        scratch = self.path(number).with_suffix(".part")
        save_file(tensors, scratch, facts)
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.replace(self.path(number))

    def load(self, number: int, policy: Policy) -> Kept | None:
        """The network of a candidate; None if it is not there or is of another policy.

        Raises:
            FileFormatError: the file is damaged.
        """
        path = self.path(number)
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                facts = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if facts.get("schema") != SCHEMA or facts.get("version") != VERSION:
                raise FileFormatError(f"its schema is {facts.get('schema')!r}")
            found, votes = json.loads(facts["policy"]), tensors.pop("votes").numpy()
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise FileFormatError(f"{path} is not a readable network ({error}); delete it to make it again") from error
        if found != _plain(policy):
            return None
        narrow: Votes = votes.astype(np.uint8 if votes.dtype == np.uint8 else np.uint16)
        return Kept({name.removeprefix("network."): value for name, value in tensors.items()}, narrow)

    def keep_only(self, numbers: Iterable[int]) -> None:
        """Delete all networks but these."""
        wanted = {self.path(number).name for number in numbers}
        for path in self.folder.glob("*"):
            if path.suffix in (".safetensors", ".part") and path.name not in wanted:
                path.unlink()


def _plain(policy: Policy) -> dict[str, str]:
    return {name: str(bits) for name, bits in policy.items()}
