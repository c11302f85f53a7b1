"""Shell completion, tried in a real shell."""

import shutil
import subprocess
import sys

import pytest

from arquant.cli import build_parser, commands, main
from arquant.cli.completing import SHELLS, script, words_of


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """A function from typed words to what bash offers for the last one."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    file = tmp_path_factory.mktemp("completion") / "arquant.bash"
    file.write_text(script("bash"))

    def offered(*words):
        typed = " ".join(f"'{word}'" for word in ("arquant", *words))
        ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _arquant"
        program = f"source {file}; {ask}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return offered


def test_bash_offers_every_command(bash):
    assert bash("") == [command.name for command in commands()]
    assert bash("cer") == ["certify"]
    assert bash("nothing") == []


def test_bash_offers_the_options_of_the_command(bash):
    assert bash("certify", "--ad") == ["--adaptive"]
    assert bash("certify", "resnet20", "sample", "--sig") == ["--sigma"]
    assert bash("watch", "--ad") == []
    assert "--budget" in bash("search", "-")


def test_bash_offers_values_where_they_are_known(bash):
    assert bash("certify", "--engine", "o") == ["openvino", "onnxruntime"]
    assert bash("certify", "--engine", "=", "t") == ["torch"]
    assert bash("certify", "--engine", "=") == ["auto", "torch", "openvino", "onnxruntime"]
    assert bash("completion", "") == list(SHELLS)
    assert bash("certify", "--out", "") == []  # left to the completion of file names


def test_every_visible_option_is_in_every_script():
    words = words_of(build_parser())
    assert [each.name for each in words] == [command.name for command in commands()]
    for shell in SHELLS:
        text = script(shell)
        for each in words:
            for option in each.options:
                for flag in option.flags:
                    spelled = (
                        flag if shell != "fish" else f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                    )
                    assert spelled in text, (shell, each.name, flag)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    (tmp_path / "script").write_text(script(shell))
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_on_the_command_line_without_heavy_imports(capsys):
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out.strip() == script("bash").strip()
    program = "import sys; from arquant.cli import main; main(['completion', 'zsh']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
    with pytest.raises(SystemExit):
        main(["completion", "tcsh"])
    assert "tcsh" in capsys.readouterr().err
