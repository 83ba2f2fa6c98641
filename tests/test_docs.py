"""The README against the code: commands, options, presets, quantities, map, figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from driftlab.cli import app
from driftlab.run.plan import presets
from driftlab.run.store import find_runs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def commands(group, prefix: str = "") -> dict:
    found = {}
    for name, command in group.commands.items():
        path = f"{prefix}{name}"
        found |= commands(command, f"{path} ") if hasattr(command, "commands") else {path: command}
    return found


def options(command) -> list:
    """Options of a command; by kind and not by class, because typer may carry its own copy of click."""
    return [p for p in command.params if p.param_type_name == "option"]


COMMANDS = commands(get_command(app))


def option_table() -> dict[str, str]:
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", section("Use"), flags=re.M)
    return {re.sub(r" [\[A-Z].*", "", command): options for command, options in rows}


def test_every_command_and_option_is_in_the_readme_and_the_other_way_round():
    table = option_table()
    assert table.keys() == COMMANDS.keys()
    for name, command in COMMANDS.items():
        expected = {o for p in options(command) for o in p.opts} - {"--help"}
        assert set(re.findall(r"--[a-z-]+", table[name])) == expected, name


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name):
    command = COMMANDS[name]
    assert command.help
    assert all(p.help for p in options(command))


def test_presets_are_named():
    for name in presets():
        assert f"`{name}`" in section("Use")


def documented_quantities() -> dict[str, str]:
    """Unit of every quantity in the table; a row may name several."""
    rows = re.findall(r"^\| (`[a-z_]+`(?:, `[a-z_]+`)*) \|.*\| ([^|]+) \|$", section("What is measured"), flags=re.M)
    return {name: unit for names, unit in rows for name in re.findall(r"[a-z_]+", names)}


@pytest.mark.parametrize("folder", ["nano-awd", "nano-seeds", "smol-countdown"])
def test_every_measured_quantity_is_in_the_table_with_its_unit(folder):
    """The rows stored with the committed reports."""
    units = documented_quantities()
    rows = [row for store in find_runs(ROOT / "reports" / folder) for row in store.measurements()]
    assert rows
    for row in rows:
        assert units.get(row.quantity) == row.unit, row.quantity


def test_every_documented_quantity_is_made_by_the_code():
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "driftlab").rglob("*.py"))
    for quantity in documented_quantities():
        assert f'"{quantity}"' in code, quantity


def test_map_names_every_module_and_nothing_else():
    block = section("Map").split("```text\n")[1].split("```")[0]
    named = set(re.findall(r"[a-z_0-9]+\.py", block))
    present = {file.name for file in (ROOT / "driftlab").rglob("*.py") if file.parent.name != "embedded"}
    assert named == present - {"__init__.py"}
    for folder in re.findall(r"^ {0,2}([a-z_]+)/ ", block, flags=re.M):
        assert (ROOT / folder).is_dir() or (ROOT / "driftlab" / folder).is_dir(), folder


def test_links_and_figures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_glossary_is_sorted_out():
    words = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", section("Glossary"), flags=re.M)
    assert len(words) == len(set(words)) > 20
