"""Shell completion, tried in a real shell."""

import json
import shutil
import subprocess
import sys

import pytest

import arquant
from arquant.base.options import options_of
from arquant.commands.main import COMMANDS, find_command, main

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """A function from typed words to what bash offers for the last one."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    file = tmp_path_factory.mktemp("completion") / "arquant.bash"
    file.write_text(arquant.completion("bash"))

    def offered(*words):
        typed = " ".join(f"'{word}'" for word in ("arquant", *words))
        ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; $complete arquant"
        find = "complete=$(complete -p arquant | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
        program = f"source {file}; {find}; {ask}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return offered


def test_bash_offers_commands_options_and_known_values(bash):
    assert sorted(bash("")) == sorted(COMMANDS)
    assert bash("sea") == ["search"]
    assert bash("nothing") == []
    assert sorted(bash("search", "--no")) == ["--no-racing", "--noise"]
    assert bash("search", "resnet20", "sample", "--sig") == ["--sigma"]
    assert bash("watch", "--ad") == []
    assert bash("search", "--noise", "gr") == ["grid"]
    assert bash("search", "m", "--budget", "a", "--noise", "g") == ["grid", "gaussian"]
    assert bash("completion", "") == list(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_is_in_every_script(shell):
    text = arquant.completion(shell)
    for name in COMMANDS:
        for option in options_of(find_command(name).options):
            if not option.positional:
                assert (option.flag if shell != "fish" else option.flag[2:]) in text, (name, option.flag)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "script").write_text(arquant.completion(shell))
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_on_the_command_line_without_heavy_imports(capsys):
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef arquant")
    assert main(["completion", "bash", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == "bash"
    program = (
        "import sys, arquant.commands.main as it; it.main(['completion', 'zsh']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
