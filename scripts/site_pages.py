"""A hook of mkdocs: pages from outside docs/, a page of every command's help, links that work on the site, nothing remote.

Documents link to each other as they lie in the repository. Here a link to something that is a page of the site leads to that
page; a link to anything else (raw results, tests) becomes its text, since the site does not hold it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "start.md", "results/README.md": "results.md", "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md", "examples": "examples/index.md",
}  # fmt: skip
"""what lies outside docs/, and the page that it becomes"""
_LINK = re.compile(r"(?P<open>!?\[(?P<words>(?:[^\[\]]|`[^`]*`)*)\]\()(?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
_REMOTE = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//""", re.IGNORECASE)


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    made = {page: (ROOT / source).read_text() for source, page in PAGES.items() if source.endswith(".md")}
    made |= {"commands.md": commands_page(), "examples/index.md": examples_page()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make the links of a page those of the site."""
    here = page.file.src_uri
    source = next((path for path, made in PAGES.items() if made == here), f"docs/{here}")
    return "\n".join(_without_code(markdown, lambda text: _LINK.sub(lambda link: _linked(link, source, here), text)))


def on_post_build(config: Any) -> None:
    """Refuse a site that would fetch something from another host."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if found := _REMOTE.search(path.read_text()):
            raise PluginError(f"{path} fetches from another host: {found[0]}")


def _without_code(markdown: str, change: Any) -> list[str]:
    """Return the lines, changed but for those of fenced blocks."""
    lines, fenced = [], False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        lines.append(line if fenced else change(line))
    return lines


def _linked(link: "re.Match[str]", source: str, here: str) -> str:
    target = link["target"]
    if not target or re.match(r"[a-z]+:", target):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source) if "." in source else source, target))
    page = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    anchor = link["anchor"] or ""
    if path.startswith("examples/"):
        page, anchor = PAGES["examples"], "#" + posixpath.basename(path).replace(".", "")
    if page is None or not (posixpath.splitext(page)[1]):
        return link["words"]
    return f"{link['open']}{posixpath.relpath(page, posixpath.dirname(here) or '.')}{anchor})"


def commands_page() -> str:
    """Return the full help of every command."""
    from arquant.base.options import options_of
    from arquant.commands.help_screen import help_of
    from arquant.commands.main import COMMANDS, Output, find_command

    parts = [
        "# Commands",
        "",
        "`arquant COMMAND --help` is one screen; this is `--help all`. Every command is a Python function of the same name.",
    ]
    for name in COMMANDS:
        parts += [
            "",
            f"## {name}",
            "",
            "```text",
            help_of(find_command(name), options_of(Output), everything=True),
            "```",
        ]
    return "\n".join(parts)


def examples_page() -> str:
    """Return the text of all examples."""
    parts = [
        "# Examples",
        "",
        "Programs of `examples/`, each run by `tests/test_examples.py`. The notebook `tutorial.ipynb` is beside them.",
    ]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts += ["", f"## {path.name}", "", "```python", path.read_text().rstrip(), "```"]
    return "\n".join([*parts, "", "## tutorial.ipynb", "", "A notebook: open it with Jupyter.", ""])
