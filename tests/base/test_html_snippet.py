"""What notebooks show of certificates, policies and runs."""

import re

from arquant.base.html_snippet import MOST_ROWS, table_html
from arquant.certificates.certificate import CertificateSet
from arquant.commands.report import report
from arquant.commands.watch import watch
from arquant.quantization.policy import Policy
from tests.support.report_runs import HOSTILE, write_search
from tests.support.some_certificates import certificate, certificate_set


def cells(html):
    assert "<script" not in html
    return re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", html)


def test_text_is_escaped_and_long_tables_are_cut():
    assert HOSTILE not in table_html(HOSTILE, (HOSTILE,), [(HOSTILE, HOSTILE)])
    long = table_html("x", (), [(str(i), "y") for i in range(MOST_ROWS + 3)])
    assert long.count("<tr>") == MOST_ROWS
    assert "and 3 more" in long


def test_certificates():
    found = certificate_set()
    shown = cells(found._repr_html_())
    assert f"{found.certified_accuracy(0.5):.1%}" in shown
    assert any(cell.startswith(f"{found.acr:.3f} [") for cell in shown)
    assert "σ = 0.5, grid noise, n = 1,000, α = 0.001" in shown
    assert "unknown" in cells(CertificateSet(found.certificates)._repr_html_())
    one = certificate(953, idx=7)
    assert cells(one._repr_html_()) == [
        "answer",
        "class 0",
        "label",
        "class 0",
        "radius",
        "0.732",
        "votes",
        "953 of 1,000",
    ]
    assert "abstained: nothing is claimed" in certificate(480)._repr_html_()


def test_neighbours_with_the_same_bits_share_a_row():
    policy = Policy({"a": "w8a8", "b": "w3a4", "c": "w3a4", "d<i>": "w8a8"})
    assert cells(policy._repr_html_())[3:] == ["a", "8", "8", "b to c (2 layers)", "3", "4", "d&lt;i&gt;", "8", "8"]


def test_runs(tmp_path):
    run = write_search(tmp_path / "run")
    shown = cells(watch(run)._repr_html_())
    assert shown[shown.index("candidates") + 1] == "2 scored, 1 dropped early, 1 failed, 1 repeated"
    assert "0.400 (candidate 3)" in shown
    assert "searched (w3a3)" in cells(report(run)._repr_html_())
