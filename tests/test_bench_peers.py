"""The other packages of tools/bench, and their processes."""

from __future__ import annotations

import io
import json
import textwrap

import pytest

from tools.bench import measure
from tools.bench.bench import LOADERX, Bench
from tools.bench.case import OURS, Case
from tools.bench.peers.child import serve
from tools.bench.peers.install import folder_of
from tools.bench.peers.process import PeerError, PeerProcess, PeerUnavailable
from tools.bench.sections import modules

FAKE = """
    import os, sys, time
    from contextlib import contextmanager
    import loaderx

    @contextmanager
    def steady(cost, log):
        print("a peer that prints")
        yield lambda n: n * cost
        open(log, "w").write(loaderx.__name__ + " " + loaderx.WHO)

    @contextmanager
    def broken():
        raise RuntimeError("no such store")
        yield

    @contextmanager
    def dying():
        def run(n):
            sys.stderr.write("first line\\nlast words\\n")
            sys.stderr.flush()
            os._exit(7)
        yield run

    @contextmanager
    def hanging():
        yield lambda n: time.sleep(600)

    @contextmanager
    def heavy():
        held = bytearray(b"x") * (64 << 20)
        yield lambda n: n * 0.01 * bool(held)

    CASES = {"heavy": heavy, "steady": steady, "broken": broken, "dying": dying, "hanging": hanging}
"""


@pytest.fixture
def fake(tmp_path):
    """Return the arguments of a peer process around a package that is called loaderx, too."""
    peer, cases = tmp_path / "peer", tmp_path / "cases"
    (peer / "loaderx").mkdir(parents=True)
    (peer / "loaderx" / "__init__.py").write_text("WHO = 'the peer'\n")
    cases.mkdir()
    (cases / "fake_cases.py").write_text(textwrap.dedent(FAKE))
    return {"module": "fake_cases", "path": [peer], "root": cases}


def test_a_peer_runs_its_own_package_and_reports_its_own_seconds(fake, tmp_path):
    log = tmp_path / "log"
    case = Case("c", baseline="peer")
    with PeerProcess(**fake) as process:
        process.enter(case, "peer", "steady", cost=0.01, log=str(log))
        measured = measure.measure(case, 5, 0.1)
        assert measured.timings["peer"].seconds == pytest.approx((0.01,) * 5)
        assert not log.exists()
        case.close()
        assert log.read_text() == "loaderx the peer"
    assert not process.alive


def test_a_peer_case_that_cannot_be_set_up_is_skipped(fake):
    case = Case("c", baseline="peer")
    with PeerProcess(**fake) as process:
        process.enter(case, "peer", "broken")
        process.enter(case, "other", "unheard-of")
        assert process.alive
    assert case.contestants == {}
    assert case.skipped == {"peer": "RuntimeError: no such store", "other": "KeyError: 'unheard-of'"}


def test_a_peer_tells_what_memory_it_has_taken(fake):
    case = Case("c", baseline="peer", show_memory=True)
    with PeerProcess(**fake) as process:
        process.enter(case, "peer", "heavy")
        sizes = measure.measure(case, 1, 0.1).memory["peer"]
        case.close()
    assert 64 << 20 <= sizes["own"] <= sizes["resident"] < 80 << 20


def test_a_peer_that_dies_leaves_its_last_words(fake):
    case = Case("c", baseline="peer")
    with PeerProcess(**fake) as process:
        process.enter(case, "peer", "dying")
        with pytest.raises(PeerError, match="ended with status 7: last words"):
            case.contestants["peer"](1)
        process.enter(case, "again", "dying")
        case.close()
    assert "status 7" in case.skipped["again"]


def test_a_peer_that_hangs_is_ended(fake):
    case = Case("c", baseline="peer")
    with PeerProcess(**fake, timeout=20) as process:
        process.enter(case, "peer", "hanging")
        process._timeout = 0.05
        with pytest.raises(PeerError, match="no answer"):
            case.contestants["peer"](1)
    assert not process.alive


def test_a_peer_that_cannot_be_imported_says_why(fake):
    case = Case("c", baseline="peer")
    with PeerProcess("no_such_module", fake["path"], fake["root"]) as process:
        process.enter(case, "peer", "steady")
    assert "No module named 'no_such_module'" in case.skipped["peer"]


def test_serve_answers_line_by_line_and_stops_at_quit():
    answers = io.StringIO()
    requests = [{"op": "drop", "id": 1}, {"op": "nonsense"}, {"op": "quit"}, {"op": "drop", "id": 2}]
    serve(map(json.dumps, requests), answers, {})
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"ok": False, "error": "KeyError: 1"},
        {"ok": False, "error": "ValueError: unknown request 'nonsense'"},
    ]


def test_installed_peers_are_found_in_place_or_where_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.delenv("SOME_PEER", raising=False)
    (tmp_path / "peer-1.0").mkdir()
    assert folder_of("peer", "1.0", tmp_path, "SOME_PEER") == tmp_path / "peer-1.0"
    monkeypatch.setenv("SOME_PEER", str(tmp_path / "elsewhere"))
    with pytest.raises(PeerUnavailable, match="elsewhere has no package peer"):
        folder_of("peer", "1.0", tmp_path, "SOME_PEER")
    (tmp_path / "elsewhere" / "peer").mkdir(parents=True)
    assert folder_of("peer", "1.0", tmp_path, "SOME_PEER") == tmp_path / "elsewhere"


def test_a_peer_that_cannot_be_installed_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.delenv("SOME_PEER", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PeerUnavailable, match=r"could not install nowhere==1\.0"):
        folder_of("nowhere", "1.0", tmp_path, "SOME_PEER")
    assert list(tmp_path.iterdir()) == []


def test_without_the_peer_cases_say_why_it_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADERX_ORACLE", str(tmp_path / "gone"))
    with Bench(tmp_path, tmp_path) as bench:
        for _ in range(2):
            case = Case("c", baseline="numpy")
            bench.enter_loaderx(case, "sampler", length=10, batch=2, mode=0)
            assert "has no package loaderx" in case.skipped[LOADERX]


# A whole model


@pytest.mark.slow
def test_a_whole_model_is_trained_and_measured_in_two_processes(tmp_path):
    import torch

    with Bench(tmp_path, tmp_path, quick=True) as bench:
        case = modules._classifier(torch, bench, tmp_path / "data")
        assert case.skipped == {}
        result = measure.measure(case, 1, 0.01)
        case.close()
    assert case.amount > 100 and set(result.timings) == {OURS, "torch"}
    own = {name: sizes["own"] for name, sizes in result.memory.items()}
    assert own["torch"] - own[OURS] > 100_000 * 128 * 4 // 2  # bytes of the table


def test_a_whole_model_that_can_not_be_trained_is_skipped(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise SystemExit('there is no sklearn')")
    monkeypatch.setattr(modules, "_EXAMPLE", tmp_path / "broken.py")
    with Bench(tmp_path, tmp_path) as bench:
        case = modules._classifier(None, bench, tmp_path / "data")
    assert measure.measure(case, 1, 0.01).timings == {}
    assert case.skipped == dict.fromkeys((OURS, "torch"), "broken.py ended with 1: there is no sklearn")
