"""The published numbers: every table has a source, every typed cell is the paper's."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from driftlab.errors import DriftlabError, SpecError
from driftlab.models.plan import KNOWN_CONFIGS, parameter_count
from driftlab.published import data

FOLDER = Path(data.__file__).parent


def cell(frame: pd.DataFrame, column: str, **where: object) -> float:
    for key, value in where.items():
        frame = frame[frame[key] == value]
    assert len(frame) == 1
    return float(frame[column].iloc[0])


def test_every_table_has_a_source_and_the_other_way_round() -> None:
    assert set(data.names()) == {file.stem for file in FOLDER.glob("*.csv")}
    for name in data.names():
        origin = data.source(name)
        assert origin.how in data.HOW
        assert origin.arxiv in origin.sentence
        assert set(origin.error) <= set(data.table(name).columns)


def test_every_table_says_row_by_row_how_it_was_obtained() -> None:
    for name in data.names():
        frame = data.table(name)
        assert len(frame)
        assert set(frame["how"]) <= {"exact", "digitised", "reported"}


@pytest.mark.parametrize(
    ("name", "column", "where", "value"),
    [
        ("lit238_fig6_update_norm", "update_norm", {"arm": "ES", "population": 30, "anchor": "none"}, 119.213889),
        ("lit238_fig6_update_norm", "update_norm", {"anchor": "l1"}, 92.133639),
        ("lit238_fig6_update_norm", "update_norm", {"anchor": "l2"}, 67.676355),
        ("lit238_fig6_update_norm", "update_norm", {"population": 128}, 58.622030),
        ("lit238_fig6_update_norm", "update_norm", {"population": 256}, 42.149415),
        ("lit238_fig6_update_norm", "update_norm", {"arm": "GRPO"}, 1.324287),
        ("lit238_fig6_curve", "update_norm", {"population": 256, "iteration": 350}, 35.2),
        ("lit238_fig6_curve", "update_norm", {"anchor": "l2", "iteration": 450}, 67.2),
        ("lit235_table3_norm", "es_norm", {"after": "countdown"}, 87.28),
        ("lit235_table3_norm", "es_norm", {"after": "boolq"}, 173.00),
        ("lit235_table3_norm", "grpo_norm", {"iterations_total": 400}, 1.84),
        ("lit237_trajectory", "es_update_norm", {"iteration": 500}, 88.2),
        ("lit237_grpo_norm", "update_norm", {"iteration": 500}, 0.084),
        ("lit238_fig5_lambda", "target_accuracy", {"penalty": "l1", "lambda": 0.02}, 44.6),
        ("lit238_fig5_lambda", "prior_average", {"penalty": "l2", "lambda": 100}, 66.3),
        ("lit238_fig7_kl", "hellaswag", {"arm": "ES(30)"}, 1.117809),
        ("lit211_table1_countdown", "es", {"model": "Qwen2.5-3B-Instruct"}, 60.5),
        ("lit238_final_accuracy", "prior_average", {"arm": "ES(30)", "target": "countdown", "seed": 1}, 61.9),
    ],
)
def test_typed_cells(name: str, column: str, where: dict[str, object], value: float) -> None:
    assert cell(data.table(name), column, **where) == value


def test_digitised_ends_agree_with_the_printed_ones() -> None:
    """Both exist at step 500 of LIT-238's Figure 6; the stated reading error holds there."""
    curve, printed = data.table("lit238_fig6_curve"), data.table("lit238_fig6_update_norm")
    for population, anchor in ((30, "none"), (30, "l1"), (30, "l2"), (128, "none"), (256, "none")):
        read = cell(curve, "update_norm", population=population, anchor=anchor, iteration=500)
        exact = cell(printed, "update_norm", population=population, anchor=anchor)
        assert abs(read - exact) <= data.source("lit238_fig6_curve").error["update_norm"] == 0.5


def test_what_cannot_be_read_off_is_missing_and_not_zero() -> None:
    assert math.isnan(cell(data.table("lit238_fig6_curve"), "update_norm", anchor="l1", iteration=350))
    assert math.isnan(cell(data.table("lit238_fig5_lambda"), "target_accuracy", penalty="l2", **{"lambda": 50}))
    norms = data.table("lit238_fig6_update_norm")
    assert norms["population"].dtype == "Int64"
    assert norms["population"].isna().sum() == 1


@pytest.mark.parametrize(
    ("name", "once", "counted"),
    [
        ("lit238_fig6_update_norm", 3_085_938_688, 3_397_103_616),
        ("lit237_trajectory", 1_543_714_304, 1_777_088_000),
        ("lit235_table3_norm", 4_022_468_096, 4_022_468_096),
    ],
)
def test_parameters_of_the_protocols(name: str, once: int, counted: int) -> None:
    protocol = data.source(name).protocol
    assert protocol.parameters == once
    assert protocol.counted == counted
    assert protocol.alpha == protocol.sigma / 2


def test_qwen3_4b_is_counted_exactly() -> None:
    """Embedding 151936 x 2560; a layer 2560 x (32 + 16) x 128 + 32 x 128 x 2560 + 3 x 2560 x 9728 + 5120 + 256."""
    layer = 2560 * 48 * 128 + 4096 * 2560 + 3 * 2560 * 9728 + 2 * 2560 + 2 * 128
    assert parameter_count(KNOWN_CONFIGS["Qwen/Qwen3-4B-Instruct-2507"]) == 151936 * 2560 + 36 * layer + 2560
    assert 151936 * 2560 + 36 * layer + 2560 == 4_022_468_096


def test_errors_are_sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="no published table 'fig9'; known: lit211"):
        data.table("fig9")
    with pytest.raises(SpecError, match="whose parameters cannot be counted"):
        _ = data.source("lit211_table1_countdown").protocol.parameters
    damaged = (
        ("iteration,update_norm,how\n30,near zero,exact\n", "column 'update_norm' of published table"),
        ("iteration,update_norm,how\n30,0.1,guessed\n", "how='guessed'"),
        ("", "cannot be read"),
    )
    data.names()  # the sources, before the folder is another
    monkeypatch.setattr(data, "files", lambda package: tmp_path)
    for text, sentence in damaged:
        (tmp_path / "lit237_grpo_norm.csv").write_text(text)
        with pytest.raises(DriftlabError, match=sentence):
            data.table("lit237_grpo_norm")
