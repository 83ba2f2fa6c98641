"""What every reproduction is made of: walks to emulate, numbers beside published ones, a page's parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from driftlab.drift.emulator import Progress, Walk, WalkCurve, emulate, gaussian_weights
from driftlab.errors import SpecError
from driftlab.report.formats import Table

NOTABLE = 0.03
"""Relative difference from a published number above which the page names its explanation."""

WEIGHT_STD = 0.023
"""Standard deviation of the emulated weights; the one number that is chosen, see the page of ``lit238-fig6``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a reproduction can be asked for.

    Attributes:
        coordinates: weights emulated in a walk of population 30; larger populations take proportionally fewer.
        seed: of weights and noise.
        weight_std: standard deviation of the emulated weights.
        threads: walks' threads; no number depends on it.
    """

    coordinates: int = 65_536
    seed: int = 0
    weight_std: float = WEIGHT_STD
    threads: int = 2

    def __post_init__(self) -> None:
        if self.coordinates < 100:
            raise SpecError(f"{self.coordinates} coordinates cannot stand for a model; use 100 or more")
        if not 0.0 < self.weight_std < math.inf:
            raise SpecError(f"the standard deviation of the weights is {self.weight_std:g}; it must be positive")
        if self.seed < 0:
            raise SpecError(f"the seed is {self.seed}; it must be 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """One walk to emulate.

    Attributes:
        walk: the walk.
        d: parameters its norm is scaled to.
        at: steps to record, ascending.
        thinned: take a quarter of the coordinates: a variation that needs no small error.
        weight_std: of this walk's weights; None for that of the settings.
    """

    walk: Walk
    d: int
    at: tuple[int, ...]
    thinned: bool = False
    weight_std: float | None = None

    def coordinates(self, settings: Settings) -> int:
        share = 30.0 / max(30, self.walk.population) / (4.0 if self.thinned else 1.0)
        return max(100, round(settings.coordinates * share))

    def cost(self, settings: Settings) -> float:
        return float(self.coordinates(settings) * self.walk.population * self.walk.steps)


def emulate_all(plan: Mapping[str, Planned], settings: Settings, progress: Progress) -> dict[str, WalkCurve]:
    """The curve of every planned walk; ``progress`` hears the share of the work that is done.

    All walks of one weight scale start at the same weights, so that their differences are not those of two samples.
    """
    total = math.fsum(planned.cost(settings) for planned in plan.values())
    done, curves = 0.0, {}
    for name, planned in plan.items():
        cost = planned.cost(settings)
        std = settings.weight_std if planned.weight_std is None else planned.weight_std
        start = done

        def listen(fraction: float, start: float = start, cost: float = cost) -> None:
            progress((start + fraction * cost) / total)

        curves[name] = emulate(
            planned.walk,
            base=gaussian_weights(std, planned.coordinates(settings), seed=settings.seed),
            d=planned.d,
            at=planned.at,
            seed=settings.seed,
            threads=settings.threads,
            progress=listen,
        )
        done += cost
        progress(done / total)
    return curves


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One published norm, the emulated one and the one of exact arithmetic.

    Attributes:
        run: label of the run.
        step: updates applied.
        published: the published norm; None where none was published or it cannot be read off.
        error: largest reading error of ``published``; 0 where it was printed.
        how: how it was obtained.
        ours, stderr: emulated norm and its Monte-Carlo standard error.
        exact: the law's norm in exact arithmetic; None where there is no law.
        d: parameters counted in all three.
        coordinates: emulated ones.
    """

    run: str
    step: int
    published: float | None
    error: float
    how: str
    ours: float
    stderr: float
    exact: float | None
    d: int
    coordinates: int

    @property
    def difference(self) -> float | None:
        """(ours - published) / published."""
        return relative(self.ours, self.published)

    @property
    def difference_error(self) -> float | None:
        """Error of ``difference``: Monte-Carlo standard error and reading error, added in squares."""
        if self.published is None or self.published == 0.0:
            return None
        return math.hypot(self.stderr, self.error * self.ours / self.published) / self.published

    @property
    def exact_difference(self) -> float | None:
        """(exact - published) / published."""
        return None if self.exact is None else relative(self.exact, self.published)


def compared(run: str, curve: WalkCurve, step: int, planned: Planned, settings: Settings) -> Compared:
    """The curve at ``step``, with nothing published beside it yet."""
    index = curve.steps.index(step)
    return Compared(
        run=run,
        step=step,
        published=None,
        error=0.0,
        how="",
        ours=curve.norm[index],
        stderr=curve.stderr[index],
        exact=curve.law[index],
        d=planned.d,
        coordinates=planned.coordinates(settings),
    )


def beside(row: Compared, published: float, error: float, how: str) -> Compared:
    """The row with a published norm beside it; NaN, what could not be read off, stays None."""
    return replace(row, published=None if math.isnan(published) else published, error=error, how=how)


def relative(value: float, published: float | None) -> float | None:
    return None if published is None or published == 0.0 else (value - published) / published


def notable(rows: Sequence[Compared]) -> list[Compared]:
    """Rows whose emulated norm lies more than ``NOTABLE`` from the published one."""
    return [row for row in rows if row.difference is not None and abs(row.difference) > NOTABLE]


def room(published: float, walked: float) -> float:
    """Length sqrt(published^2 - walked^2) that a displacement at right angles to the walk adds; 0 where it is shorter.

    An upper estimate of what a reward signal, and rounding the walk leaves out, contributed: both are hidden in it.
    """
    return math.sqrt(max(published**2 - walked**2, 0.0))


def most_room(row: Compared) -> float:
    """``room`` beyond the emulated walk, the published norm taken at its longest and the walk two errors shorter."""
    return 0.0 if row.published is None else room(row.published + row.error, row.ours - 2.0 * row.stderr)


def norm_table(name: str, title: str, rows: Sequence[Compared], source: str) -> Table:
    """Published, emulated and exact norms; the CSV holds them unrounded with everything else of ``rows``."""
    shown = tuple(
        (
            row.run,
            str(row.step),
            "–" if row.published is None else published(row.published, row.error),
            f"{number(row.ours)} ± {row.stderr:.2g}",
            off(row.difference, row.difference_error),
            "no law" if row.exact is None else number(row.exact),
            off(row.exact_difference),
        )
        for row in rows
    )
    columns = ("run", "step", "published", "emulated", "off by, %", "exact", "off by, %")
    return Table(name=name, title=title, columns=columns, rows=shown, data=data_of(rows), source=source)


def data_of(rows: Sequence[Compared]) -> pd.DataFrame:
    """All numbers of ``rows``, unrounded; an empty field is a number that does not exist."""
    return pd.DataFrame(
        [
            {
                "run": row.run,
                "step": row.step,
                "published": row.published,
                "published_error": row.error if row.published is not None else None,
                "how": row.how,
                "emulated": row.ours,
                "emulated_stderr": row.stderr,
                "emulated_difference": row.difference,
                "emulated_difference_error": row.difference_error,
                "exact": row.exact,
                "exact_difference": row.exact_difference,
                "parameters": row.d,
                "coordinates": row.coordinates,
            }
            for row in rows
        ]
    )


def number(value: float) -> str:
    """A norm with two decimals, three below 10."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def published(value: float, error: float) -> str:
    """A published norm: two decimals where it was printed, one and the reading error where it was read off."""
    return number(value) if error < 0.01 else f"{value:.1f} ± {error:g}"


def off(value: float | None, error: float | None = None) -> str:
    """A relative difference in percent without the sign for it, with its error where there is one."""
    if value is None:
        return "–"
    rounded = round(100 * value, 1) + 0.0
    text = (f"{rounded:+.1f}" if rounded else "0.0").replace("-", "−")
    return text if error is None else f"{text} ± {100 * error:.1f}"


def percent(value: float | None, error: float | None = None) -> str:
    """``off`` with its unit."""
    return f"{off(value, error)} %"


@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """A finished reproduction: the parts of its page.

    Attributes:
        name: of the command.
        title: what was published where.
        summary: what came out, a sentence each.
        tables: shown in the terminal and on the page, each with an introduction on the page (may be empty).
        caption: of the figure.
        png, svg: the figure.
        choices: what had to be chosen to match, one sentence or two each.
        differences: every difference above ``NOTABLE``, with its explanation.
        missing: what is not reproduced.
        sources: where the published numbers come from.
        values: everything unrounded.
    """

    name: str
    title: str
    summary: tuple[str, ...]
    tables: tuple[tuple[str, Table], ...]
    caption: str
    png: bytes
    svg: bytes
    choices: tuple[str, ...]
    differences: tuple[str, ...]
    missing: tuple[str, ...]
    sources: tuple[str, ...]
    values: pd.DataFrame
