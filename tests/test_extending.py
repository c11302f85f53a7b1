"""Every example of docs/extending.md is complete: it runs in a process of its own, and is short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs/extending.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("title", SECTIONS)
def test_the_example_runs_by_itself_and_is_short(title: str, tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n(.*?)```", SECTIONS[title], re.DOTALL)
    assert len(text.splitlines()) < 60
    assert "assert " in text, "an example shows that it works"
    done = subprocess.run([sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
