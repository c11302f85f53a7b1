"""Tell a search that a model it did not make was certified on its images: whoever reads its journal should know."""

from pathlib import Path

from arquant.base.journal import Journal, read_journal
from arquant.base.run_folder import JOURNAL, search_of

_CERTIFIED, _MADE = "certified", "model"
"""kinds of lines in the journal of a search (`arquant.searching.journal_lines`)"""


def record_certified(folder: Path, fingerprint: str, images: str) -> None:
    """Add a line to the journal of the search that `folder` belongs to, if any, unless it knows the model.

    Args:
        fingerprint: of the model.
        images: the fingerprint of the images; others than those of the search do not concern it.

    Raises:
        MismatchError: the search is at work.
    """
    search = search_of(folder)
    if search is None:
        return
    identity, lines = read_journal(search / JOURNAL)
    known = any(line.get("kind") in (_CERTIFIED, _MADE) and line.get("fingerprint") == fingerprint for line in lines)
    certified_on = identity.get("images")
    if known or not isinstance(certified_on, dict) or certified_on.get("certify") != images:
        return
    name = str(folder.resolve().relative_to(search))
    with Journal(search / JOURNAL, identity) as journal:
        journal.append({"kind": _CERTIFIED, "folder": name, "fingerprint": fingerprint})
