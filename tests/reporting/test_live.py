"""`arquant watch --web`: a page that follows a run, read-only, from this machine only."""

import http.client
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from arquant.base.errors import InputError
from arquant.base.journal import Journal
from arquant.commands.watch import watch, watch_lines
from arquant.reporting.live import live_content, look_at
from arquant.reporting.live_server import LiveServer
from arquant.searching.snapshot import snapshot_of
from tests.support.report_runs import HOSTILE, candidate, write_certificates, write_search
from tests.support.some_certificates import certificate_set

IDENTITY = {"model": "f" * 64, "config": {"model": HOSTILE}, "options": {"sigma": 0.5, "strategy": "arq"}}


def scored(number, value):
    score = {"estimate": "acr-cv", "value": value, "standard_error": 0.01, "images": 100, "n": 200}
    return candidate(number, value, score=score, seconds={"finetune": 3.0, "votes": 2.0})


@contextmanager
def served(run):
    with LiveServer(run, 0, 0.1) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server, method="GET", path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_a_search_that_grows(tmp_path):
    with Journal(tmp_path / "journal.jsonl", IDENTITY) as journal:
        journal.append(scored(0, 0.30))
        facts = dict(look_at(tmp_path).facts)
        assert facts["best so far, bops<=3bit"] == "candidate 0, w3a3: 0.300 ± 0.020 (an estimate)"
        assert facts["votes per second"] == "10,000"
        journal.append(scored(1, 0.40))
        live = look_at(tmp_path)
    assert dict(live.facts)["best so far, bops<=3bit"].startswith("candidate 1")
    assert [chart.key for chart in live.charts] == ["learning", "bits-0"]
    assert live.log[0].startswith("candidate 1, w3a3: 0.400")
    assert live.state.startswith("searching; stopped") or live.state == "searching"
    assert "<script>alert" not in live_content(tmp_path)


def test_a_certification_that_is_not_finished(tmp_path):
    found = certificate_set()
    write_certificates(tmp_path, found, rows=100)
    with (tmp_path / "certificates.tsv").open("a") as table:
        table.write("820\t0")
    live = look_at(tmp_path)
    assert live.state.startswith("certifying")
    assert dict(live.facts)["certified, this run"] == "40 of 100 images, 880 votes per second, about 75 s left"
    assert [chart.key for chart in live.charts] == ["outcomes", "accuracy"]
    assert len(live.log) == 12
    assert watch(tmp_path).stage == "certification"
    assert "40 of 100 images" in "\n".join(watch_lines(watch(tmp_path)))
    write_certificates(tmp_path / "done", found)
    assert look_at(tmp_path / "done").state == "finished"


def test_a_finished_search_shows_its_certificates(tmp_path):
    live = look_at(write_search(tmp_path / "run"))
    assert [chart.key for chart in live.charts] == ["learning", "outcomes", "accuracy", "bits-3"]
    assert "candidate 0 wins within bops<=3bit" in live.log


def test_a_run_that_has_not_begun_or_is_damaged(tmp_path):
    assert "waiting for the run to begin" in live_content(tmp_path / "later")
    (tmp_path / "journal.jsonl").write_text('{"schema": "other"}\n')
    assert "not a journal of arquant" in live_content(tmp_path)


def test_it_is_read_only_and_for_this_machine_only(tmp_path):
    write_certificates(tmp_path, certificate_set())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with served(tmp_path) as server:
        answer, page = asked(server)
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert not re.search(r'(?:src|href)="(?!data:|#)', page)
        assert asked(server, path="/content")[0].status == 200
        assert asked(server, path="/../certificates.tsv")[0].status == 404
        assert asked(server, Host="evil.example")[0].status == 403
        assert asked(server, "POST")[0].status == 501
        with pytest.raises(InputError, match="choose another --port"):
            LiveServer(tmp_path, server.server_port)
        assert server.url == f"http://127.0.0.1:{server.server_port}/"
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_on_the_command_line(tmp_path, monkeypatch, capsys, cli):
    write_certificates(tmp_path, certificate_set())
    monkeypatch.setattr(LiveServer, "serve_forever", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    answer = cli("watch", str(tmp_path), "--web", "--json")
    assert answer.code == 0, answer.err
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", json.loads(answer.out)["url"])
    assert cli("watch", str(tmp_path), "--web", "--port", "70000").code == 2


def test_files_that_grow_between_two_reads(tmp_path, monkeypatch):
    with Journal(tmp_path / "journal.jsonl", IDENTITY) as journal:
        journal.append(scored(0, 0.30))
        before = replace(snapshot_of(tmp_path), certified={".": (0, 100)})
        journal.append(scored(1, 0.40))
    write_certificates(tmp_path, certificate_set(), rows=100)
    monkeypatch.setattr("arquant.reporting.live.snapshot_of", lambda run: before)
    facts = dict(look_at(tmp_path).facts)
    assert facts["best so far, bops<=3bit"].startswith("candidate 1")
    assert facts["certified, the winner"] == "0 of 100 images, 880 votes per second, about 2 min left"
