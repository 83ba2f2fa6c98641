"""Which tables a report holds."""

from __future__ import annotations

from driftlab.report.coverage_tables import coverage_table
from driftlab.report.formats import Table
from driftlab.report.frames import Frames
from driftlab.report.held_out import held_out_table
from driftlab.report.tables import accuracy_table, final_table, format_table, kl_table
from driftlab.report.verdict_tables import (
    control_comparison_table,
    floor_table,
    rule_comparison_table,
    seed_means_table,
    target_curve_table,
    verdict_table,
)
from driftlab.report.weight_tables import norm_table, rounding_table


def all_tables(frames: Frames) -> list[Table]:
    """Every table, in the order of the report; those of optional probes only where a run has any."""
    judged = (verdict_table, seed_means_table, control_comparison_table, target_curve_table, rule_comparison_table)
    rest = (floor_table, final_table, accuracy_table, format_table, norm_table, kl_table)
    optional = (rounding_table(frames), coverage_table(frames), held_out_table(frames))
    return [*(build(frames) for build in (*judged, *rest)), *(table for table in optional if table is not None)]
