"""The limits of what a call may cost."""

from __future__ import annotations

import pytest

from benchmarks.speed import gate


def test_the_gate_fails_only_if_a_call_costs_more_each_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gate"])
    monkeypatch.setattr(gate, "read_limits", lambda: {"rules sync": 1.0})
    readings = iter([1.5, 0.9])
    monkeypatch.setattr(gate, "measure", lambda rounds: {"rules sync": next(readings)})
    assert gate.main() == 0
    assert "1.50 units of the calibration, limit 1: EXCEEDED" in capsys.readouterr().out
    readings = iter([1.5] * gate.TRIES)
    assert gate.main() == 1
    assert "say why in the commit" in capsys.readouterr().err
