"""The frame of tools/bench, with clocks that are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.bench import __main__ as command
from tools.bench import loops, machine, measure, plot, registry, report
from tools.bench.case import OURS, Case
from tools.bench.peers.process import PeerError


def costing(seconds, log=None, name=None):
    """Return a run whose iterations cost `seconds` each, without waiting for them."""

    def run(n):
        if log is not None:
            log.append((name, n))
        return n * seconds

    return run


def failing_at(call, error, seconds=0.1):
    """Return a run that raises `error` in its `call`-th call."""
    calls = 0

    def run(n):
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return n * seconds

    return run


@pytest.fixture
def result():
    case = Case("random", baseline="numpy", unit="B", amount=3e6)
    case.add(OURS, costing(0.0005))
    case.add("numpy", costing(0.001))
    case.skip("peer", "not installed")
    case.expect("numpy", 1.5)
    case.expect("numpy", 2.5)
    case.expect("peer", 1.0)
    return measure.measure(case, 5, 0.1)


# Loops


def test_over_goes_on_in_its_pool_where_the_last_run_stopped():
    seen = []
    run = loops.over(seen.append, [1, 2, 3])
    run(2)
    run(3)
    assert seen == [1, 2, 3, 1, 2]


def test_repeated_calls_the_lead_in_and_the_iterations():
    seen = []
    loops.repeated(lambda: seen.append(1), lead_in=4)(3)
    assert len(seen) == 7


def test_each_prepares_before_every_step():
    seen = []
    loops.each(lambda: seen.append("step"), before=lambda: seen.append("before"))(2)
    assert seen == ["before", "step", "before", "step"]


def test_loops_drop_a_result_before_they_ask_for_the_next():
    alive = 0
    most = 0

    class Result:
        def __init__(self):
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= 1

    loops.repeated(Result)(5)
    loops.over(lambda _: Result(), [0])(5)
    assert (alive, most) == (0, 1)


# Calibration and rounds


@pytest.mark.parametrize("cost", [1e-8, 1e-6, 1e-3, 0.04])
def test_calibration_fills_the_round(cost):
    n = measure.calibrate(costing(cost), 0.2)
    assert n * cost == pytest.approx(0.2, rel=0.3)


def test_calibration_of_a_slow_step_settles_for_one_iteration():
    log = []
    assert measure.calibrate(costing(9.0, log), 0.2) == 1
    assert log == [(None, 1)]


def test_calibration_ends_when_the_clock_stands_still():
    assert measure.calibrate(costing(0.0), 0.2) == 10**9


def test_rotation_gives_everyone_every_place():
    assert list(measure.rotation(["a", "b", "c"], 4)) == [
        ("a", "b", "c"),
        ("b", "c", "a"),
        ("c", "a", "b"),
        ("a", "b", "c"),
    ]


def test_rounds_are_interleaved_with_the_calibrated_number_of_iterations():
    log = []
    case = Case("c", baseline="a")
    for name, cost in (("a", 0.5), ("b", 0.25)):
        case.add(name, costing(cost, log, name))
    measured = measure.measure(case, 3, 1.0)
    assert log[-6:] == [("a", 2), ("b", 4), ("b", 4), ("a", 2), ("a", 2), ("b", 4)]
    assert measured.timings["a"].seconds == (0.5, 0.5, 0.5)


def test_median_and_spread_ignore_how_long_one_round_was_delayed():
    timing = measure.Timing(1, (1.0, 1.1, 0.9, 1.0, 2.0))
    assert timing.median == 1.0
    assert timing.spread == pytest.approx(1.1)


def test_ratio_says_how_many_times_as_fast(result):
    assert result.ratio(OURS) == pytest.approx(2.0)
    assert result.ratio("numpy") == pytest.approx(1.0)
    assert result.ratio("numpy", OURS) == pytest.approx(0.5)
    assert result.ratio("peer") is None


def test_targets_are_met_missed_or_not_measured(result):
    assert [(o.met, o.ratio is None) for o in result.outcomes()] == [
        (True, False),
        (False, False),
        (False, True),
    ]


@pytest.mark.parametrize("call", [1, 3])
def test_a_peer_that_fails_is_reported_and_the_others_go_on(call):
    case = Case("c", baseline="numpy")
    case.add("broken", failing_at(call, PeerError("gave up")))
    case.add("numpy", costing(0.1))
    measured = measure.measure(case, 5, 0.1)
    assert list(measured.timings) == ["numpy"]
    assert len(measured.timings["numpy"].seconds) == 5
    assert case.skipped == {"broken": "gave up"}


def test_a_fault_of_what_is_measured_is_not_hidden():
    case = Case("c", baseline=OURS)
    case.add(OURS, failing_at(3, IndexError("record 7")))
    with pytest.raises(IndexError, match="record 7"):
        measure.measure(case, 5, 0.1)


def test_a_case_without_contestants_has_no_timings():
    assert measure.measure(Case("c", baseline="numpy"), 5, 0.1).timings == {}


def test_a_case_refuses_two_contestants_of_one_name():
    case = Case("c", baseline="a")
    case.add("a", costing(1))
    with pytest.raises(ValueError, match="two contestants called 'a'"):
        case.add("a", costing(1))


def test_a_case_closes_what_was_opened_for_it_last_in_first_out():
    closed = []
    case = Case("c", baseline="a")
    case.on_close(lambda: closed.append("dataset"))
    case.on_close(lambda: closed.append("loader"))
    case.close()
    case.close()
    assert closed == ["loader", "dataset"]


# Report


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 us"), (7e-8, "70 ns")]
)
def test_duration(seconds, text):
    assert report.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(9.87e9, "B", "9.87 GB/s"), (12.0, "B", "12 B/s"), (1234567.0, "calls", "1,234,567 calls/s")],
)
def test_rate(value, unit, text):
    assert report.rate(value, unit) == text


def test_table_shows_contestants_skips_and_targets(result):
    rows = report.lines(result)
    assert rows[0].split() == ["random", OURS, "500", "us", "6", "GB/s", "0%", "2.00x"]
    assert rows[1].split() == ["numpy", "1", "ms", "3", "GB/s", "0%", "1.00x"]
    assert rows[2].split() == ["peer", "skipped:", "not", "installed"]
    assert rows[3:] == [
        f"  target {OURS} at least 1.5x numpy: 2.00x, met",
        f"  target {OURS} at least 2.5x numpy: 2.00x, MISSED",
        f"  target {OURS} at least 1x peer: not measured",
    ]
    assert len(report.header()) >= len(rows[0])


def test_long_names_leave_the_columns_where_they_are(result):
    short = report.lines(result)
    result.case.name = "gather, 65536 Zipf 1.1 rows, zstd, 5 % cached"
    first, *rest = report.lines(result)
    assert first == result.case.name
    assert rest == [short[0].replace("random", "      "), *short[1:]]


def test_json_document_holds_every_figure(result, tmp_path):
    document = report.to_json({"cpu": "x"}, {"rounds": 5}, {"store": ("Reading", [result])})
    report.write_json(tmp_path / "run.json", document)
    read = json.loads((tmp_path / "run.json").read_text())
    assert read == document
    assert set(read) == {"schema", "machine", "options", "sections"}
    (section,) = read["sections"]
    assert (section["name"], section["title"]) == ("store", "Reading")
    (case,) = section["cases"]
    assert (case["name"], case["unit"], case["amount"], case["baseline"]) == ("random", "B", 3e6, "numpy")
    ours = case["contestants"][0]
    assert ours["name"] == OURS
    assert ours["iterations"] == 200
    assert ours["seconds"] == pytest.approx([0.0005] * 5)
    assert ours["median"] == pytest.approx(ours["min"]) == pytest.approx(ours["max"])
    assert ours["rate"] == pytest.approx(6e9)
    assert case["skipped"] == [{"name": "peer", "reason": "not installed"}]
    assert [t["met"] for t in case["targets"]] == [True, False, False]


def test_plot_writes_a_picture(result, tmp_path):
    document = report.to_json(
        machine.describe(), {}, {"store": ("Reading", [result, result]), "loader": ("L", [result])}
    )
    plot.draw(tmp_path / "run.png", document)
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def weighed():
    """The result of a case whose contestants have processes of their own, which took memory."""

    def dying():
        raise PeerError("gone")

    case = Case("model", baseline="numpy", show_memory=True)
    for name, sizes in ((OURS, {"resident": 90 << 20, "own": 3 << 20}), ("numpy", {}), ("peer", None)):
        case.add(name, costing(0.001))
        case.memory[name] = dying if sizes is None else lambda sizes=sizes: sizes
    return measure.measure(case, 2, 0.1)


def test_memory_is_reported_where_a_case_shows_it(weighed):
    assert weighed.memory == {OURS: {"resident": 90 << 20, "own": 3 << 20}}
    assert weighed.case.skipped == {"peer": "gone"}
    assert any(line.endswith("memory: 90 MiB, 3 of them its own") for line in report.lines(weighed))
    contestants = report.to_json({}, {}, {"one": ("t", [weighed])})["sections"][0]["cases"][0]["contestants"]
    assert [(c["name"], c["memory"]) for c in contestants] == [(OURS, weighed.memory[OURS]), ("numpy", None)]
    weighed.case.show_memory = False
    assert measure.measure(weighed.case, 1, 0.1).memory == {}


def test_plot_draws_memory_below_the_ratios_of_its_section(result, weighed, tmp_path):
    document = report.to_json(machine.describe(), {}, {"store": ("Reading", [result, weighed])})
    plot.draw(tmp_path / "run.svg", document)
    said = (tmp_path / "run.svg").read_text()
    assert f"<!-- model: {OURS} -->" in said
    assert "<!--  3 of 90 -->" in said


def test_lines_of_a_plot_say_what_they_are_compared_with_where_that_differs(tmp_path):
    results = []
    for baseline in ("numpy", "zlib"):
        case = Case(f"against {baseline}", baseline=baseline)
        for name in (OURS, "numpy", "zlib"):
            case.add(name, costing(0.001))
        results.append(measure.measure(case, 1, 0.01))
    for shown, said, unsaid in (
        (results, ["(1 is numpy)", "(1 is zlib)", "times as fast as what each line names"], ["as fast as numpy"]),
        (results[:1], ["times as fast as numpy"], ["(1 is"]),
    ):
        plot.draw(tmp_path / "run.svg", report.to_json(machine.describe(), {}, {"one": ("Title", shown)}))
        text = (tmp_path / "run.svg").read_text()
        assert all(words in text for words in said) and not any(words in text for words in unsaid)


def test_plot_of_nothing_says_so(tmp_path):
    with pytest.raises(ValueError, match="nothing was measured"):
        plot.draw(tmp_path / "run.png", report.to_json({}, {}, {"store": ("Reading", [])}))


# Machine


def test_machine_block_is_printable_and_json():
    block = machine.describe()
    assert json.loads(json.dumps(block)) == block
    assert block["cores"] >= 1
    assert any(line.startswith("python") for line in report.machine_lines(block))
    assert report.machine_lines({"governor": None, "cores": 2}) == ["cores          2"]


def test_go_version_is_read_from_the_binary(tmp_path):
    note = b"\xff Go buildinf:\x08\x02" + bytes(16) + bytes([8]) + b"go1.26.6" + b"\x05rest."
    (tmp_path / "engine.so").write_bytes(b"ELF and so on" + note)
    assert machine.go_version(tmp_path / "engine.so") == "go1.26.6"
    (tmp_path / "other.so").write_bytes(b"no such note")
    assert machine.go_version(tmp_path / "other.so") is None
    assert machine.go_version(tmp_path / "missing.so") is None


# The command


@pytest.fixture
def one_section(monkeypatch):
    """Make the registry hold one section, and return the cases it closed."""
    closed = []

    def cases(bench):
        case = Case("c", baseline="numpy", unit="calls")
        case.add(OURS, costing(0.01))
        case.add("numpy", costing(0.02))
        case.expect("numpy", 3.0)
        case.on_close(lambda: closed.append(bench.work))
        assert bench.work.is_dir()
        yield case

    monkeypatch.setattr(registry, "SECTIONS", ("one",))
    monkeypatch.setattr(registry, "load", lambda name: registry.Section(name, "a title", cases))
    return closed


def test_command_prints_tables_and_writes_files(one_section, tmp_path, capsys):
    argv = ["one", "--quick", "--work", str(tmp_path / "work"), "--json", str(tmp_path / "o.json")]
    assert command.main([*argv, "--plot", str(tmp_path / "o.svg")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("cpu ")
    assert "one: a title" in said
    assert "MISSED" in said
    assert said.endswith("0 of 1 targets met\n")
    document = json.loads((tmp_path / "o.json").read_text())
    assert len(document["sections"][0]["cases"][0]["contestants"][0]["seconds"]) == 5
    assert (tmp_path / "o.svg").exists()
    assert len(one_section) == 1
    assert list((tmp_path / "work").iterdir()) == []


def test_strict_turns_a_missed_target_into_the_exit_status(one_section, tmp_path, capsys):
    assert command.main(["--strict", "--rounds", "3", "--work", str(tmp_path)]) == 1


def test_command_refuses_sections_it_does_not_have(capsys):
    with pytest.raises(SystemExit):
        command.main(["nothing"])
    assert "no section is called 'nothing'" in capsys.readouterr().err


def test_every_registered_section_has_a_title_and_cases():
    folder = Path(registry.__file__).parent / "sections"
    modules = {p.stem for p in folder.glob("[!_]*.py")}
    assert modules == set(registry.SECTIONS)
    for name in registry.SECTIONS:
        section = registry.load(name)
        assert section.title
        assert callable(section.cases)
    with pytest.raises(ValueError, match="no section is called 'x'"):
        registry.load("x")
