"""The pages and links of the documentation site, without building it (`make docs` does, strictly)."""

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("mkdocs")

from arquant.commands.main import COMMANDS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts/site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("here", "written", "expected"),
    [
        ("guide.md", "[f](formats.md#exit-codes)", "[f](formats.md#exit-codes)"),
        ("guide.md", "[r](../results/README.md#search)", "[r](results.md#search)"),
        ("methods/haq.md", "[s](../strategies.md)", "[s](../strategies.md)"),
        ("start.md", "[g](docs/guide.md)", "[g](guide.md)"),
        ("start.md", "![f](docs/acr-against-cost.svg)", "![f](acr-against-cost.svg)"),
        ("guide.md", "[s](../examples/serve_prediction.py)", "[s](examples/index.md#serve_predictionpy)"),
        ("start.md", "[these tests](tests/certification/test_guarantees.py)", "these tests"),
        ("results.md", "[demo](demo)", "demo"),
        ("guide.md", "[there](#here)", "[there](#here)"),
        ("guide.md", "[out](https://example.org/a)", "[out](https://example.org/a)"),
        ("guide.md", "```\n[kept](../tests/x.py)\n```", "```\n[kept](../tests/x.py)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site_or_become_text(
    hook: ModuleType, here: str, written: str, expected: str
) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=here))
    assert hook.on_page_markdown(written, page) == expected


def test_the_page_of_commands_has_all_of_them(hook: ModuleType) -> None:
    text = hook.commands_page()
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(COMMANDS)


def test_what_would_be_fetched_from_another_host_is_refused(hook: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="https://example.org">a link is fine</a><img src="own.png">')
    hook.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
    (tmp_path / "b.html").write_text('<link rel="stylesheet" href="https://fonts.example.org/x.css">')
    with pytest.raises(Exception, match="fetches from another host"):
        hook.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))
