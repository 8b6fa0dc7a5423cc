"""Every command of skills/improve-retrieval/SKILL.md, run in its order on a function of a user's kind."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.application_world import run, write_application

pytestmark = pytest.mark.skipif(
    os.name != "posix", reason="the skill's commands are those of a POSIX shell"
)
SKILL = Path(__file__).parents[2] / "skills/improve-retrieval/SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"^```\w+ (\w+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_application(tmp_path)
    return tmp_path


def test_an_agent_finds_the_skill_by_its_name_and_knows_when_to_use_it() -> None:
    name, description = re.fullmatch(
        r"---\nname: (\S+)\ndescription: (.+)\n---\n.*", TEXT, re.DOTALL
    ).groups()
    assert name == SKILL.parent.name
    assert "Use when" in description
    assert len(description) <= 1024  # the longest that agents read


@pytest.mark.thorough
def test_the_commands_lead_from_a_function_to_a_measured_change(folder: Path) -> None:
    assert list(BLOCKS) == ["check", "measure", "wrap", "prove"]
    assert run(folder, BLOCKS["check"]).returncode == 0
    assert run(folder, BLOCKS["measure"]).returncode == 0
    assert (folder / "report.md").is_file()
    app = folder / "app.py"
    app.write_text(f"{app.read_text()}\n\n{BLOCKS['wrap']}", encoding="utf-8")
    proved = run(folder, BLOCKS["prove"])
    assert proved.returncode == 0, proved.stderr
    assert re.search(r"^yours ", proved.stdout, re.MULTILINE)
    raw = json.loads((folder / "base.json").read_text(encoding="utf-8"))
    assert [system["name"] for system in raw["systems"]] == ["off", "preprocessed as text", "rules"]
