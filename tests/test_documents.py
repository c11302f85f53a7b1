"""What the README and the documents tell people to type is typed here, in order, in a folder of its own.

Fenced `sh` blocks hold `arquant` commands, `python` blocks are run, or saved if they begin with `# name.py`. A comment before
a block makes it small enough for a test; the documented options are all kept, and these are added at the end:

    <!-- test: certify --n 100 --images first:2; train --steps 1 -->     to every `arquant certify` and `arquant train`
    <!-- test: n=1000 => n=64; first:20 => first:2 -->                   in a Python block: text, and what to put in its place
    <!-- test: skip: it installs packages -->                            for make and pip only
"""

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from arquant.base.options import options_of
from arquant.certificates.bounds import max_radius, min_votes
from arquant.commands.main import COMMANDS, Output, find_command, main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *(path for folder in ("docs", "results", "src") for path in sorted((ROOT / folder).rglob("*.md"))),
]
_BLOCK = re.compile(r"(?:<!-- test: (?P<note>.*?) -->\n)?```(?P<language>sh|bash|python)\n(?P<text>.*?)```", re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)(?P<target>[^)#]+)?(?:#(?P<anchor>[^)]+))?\)")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    note: str

    @property
    def skipped(self) -> bool:
        return self.note.startswith("skip: ")

    def small(self) -> str:
        """The text of a Python block with small numbers in it."""
        text = self.text
        for part in filter(None, self.note.split(";")):
            old, _, new = (word.strip() for word in part.partition("=>"))
            assert old in text, f"{old!r} is not in the block any more"
            text = text.replace(old, new)
        return text

    def commands(self) -> Iterator[list[str]]:
        """The words of each command, with the options that make it small."""
        added = [shlex.split(part) for part in self.note.split(";")] if self.note else []
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                extra = [option for part in added if part[0] == words[1] for option in part[1:]]
                yield words + extra


def blocks(document: Path) -> list[Block]:
    found = _BLOCK.finditer(document.read_text())
    return [Block(match["language"], match["text"], " ".join((match["note"] or "").split())) for match in found]


def type_in(command: list[str]) -> None:
    assert command[0] == "arquant", f"{shlex.join(command)}: documents show commands of arquant only"
    try:
        code = main(command[1:])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 0, f"{shlex.join(command)} ended with {code}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_of_a_document_works(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before, names = set(sys.modules), {"__name__": document.stem}
    try:
        for block in blocks(document):
            first = block.text.splitlines()[0]
            if block.skipped:
                continue
            if block.language == "python" and re.fullmatch(r"# \w+\.py", first):
                (tmp_path / first[2:]).write_text(block.text)
            elif block.language == "python":
                exec(compile(block.small(), f"{document.name}: {first}", "exec"), names)
            else:
                for command in block.commands():
                    type_in(command)
    finally:
        for name in set(sys.modules) - before:
            if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def test_only_installation_is_not_run() -> None:
    for document in DOCUMENTS:
        for block in blocks(document):
            if block.skipped:
                commands = [line.split()[0] for line in block.text.splitlines()]
                assert set(commands) <= {"make", "pip", "git", "python"}, f"{document.name}: {block.text}"


def test_every_option_named_in_a_document_exists() -> None:
    declared = [Output, *(find_command(name).options for name in COMMANDS)]
    known = {"--help", "--version"} | {option.flag for cls in declared for option in options_of(cls)}
    assert "--sigma" in known
    for document in DOCUMENTS:
        text = re.sub(r"<!--.*?-->", "", document.read_text(), flags=re.DOTALL)
        text = re.sub(r"(?m)^(\d )?(pip|python) .*$|`ray [^`]*`", "", text)  # other programs have other options
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
        assert named <= known, f"{document.name}: {sorted(named - known)}"


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_inside_the_repository_leads_somewhere(document: Path) -> None:
    """All links but those to other hosts, and all anchors: `make docs` checks the site's own."""
    for match in _LINK.finditer(document.read_text()):
        target = document if match["target"] is None else document.parent / match["target"]
        assert target.exists(), f"{document.name}: {match[0]}"
        if match["anchor"]:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert match["anchor"] in anchors, f"{document.name}: {match[0]}"


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    assert "docs/README.md" in (ROOT / "README.md").read_text()
    for document in (ROOT / "docs").glob("*.md"):
        assert document.name == "README.md" or f"({document.name})" in index, document.name


def test_the_tables_of_largest_radii_follow_from_the_bounds() -> None:
    text = (ROOT / "docs/choosing.md").read_text()
    heads, *rows = re.findall(r"^\| (?:n|[\d,]+) \|.*$", text, re.MULTILINE)
    alphas = [float(number) for number in re.findall(r"\| α = ([\d.]+)", heads)]
    assert len(alphas) == 3
    assert len(rows) >= 5
    for row in rows:
        n, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        count = int(n.replace(",", ""))
        expected = [f"{int(1000 * max_radius(count, alpha, 1.0)) / 1000:.3f} σ" for alpha in alphas]
        assert cells == [*expected, f"{min_votes(count, 0.001):,}"], row
