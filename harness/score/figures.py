"""The figures of a part of the rows: what gates judge and tables show, computed once, when asked for."""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from harness.contracts import frame
from harness.contracts.results import BASELINE
from harness.contracts.runs import MISSING_MODEL
from harness.score import accuracy, ranking
from harness.score.accuracy import Coverage, Summary
from harness.score.ranking import GroupRanking, RankingSummary
from projector.dataclass import dataclass

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Figures:
    """The figures of one predictor. ``rows``: its rows in all fits; ``whole``: rows of all predictors, for the baseline."""

    rows: pd.DataFrame
    whole: pd.DataFrame
    _fits: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, whole: pd.DataFrame, predictor: str) -> Figures:
        """Returns the figures of one predictor among the rows ``whole`` of all."""
        return cls(frame.part(whole, predictor=predictor), whole)

    def fit(self, name: str) -> pd.DataFrame:
        if name not in self._fits:
            self._fits[name] = frame.part(self.rows, fit=name)
        return self._fits[name]

    @cached_property
    def uncalibrated(self) -> Summary:
        return accuracy.summarise(self.fit("uncalibrated"))

    @cached_property
    def calibrated(self) -> Summary:
        """Returns the errors corrected by the shipped posterior, which is fitted on all measured runs, these included."""
        return accuracy.summarise(self.fit("shipped"))

    @cached_property
    def held(self) -> Summary:
        """Returns the errors with each row corrected by runs of other sources."""
        return accuracy.summarise(self.fit("heldout"))

    @cached_property
    def compared(self) -> pd.DataFrame:
        """Returns the held-out rows of a whole configuration that have an error."""
        return accuracy.eligible(self.fit("heldout")).dropna(subset=["error"])

    @cached_property
    def groups(self) -> list[GroupRanking]:
        return ranking.group_rankings(self.fit("heldout"))

    @cached_property
    def order(self) -> RankingSummary:
        return ranking.summary(self.groups)

    @cached_property
    def order_seen(self) -> RankingSummary:
        """Returns the ranking over the groups whose rows differ in a field that a projector sees."""
        return ranking.summary([g for g in self.groups if g.stated])

    @cached_property
    def intervals(self) -> Coverage | None:
        """Returns the coverage of the held-out intervals, learnt from runs of other sources."""
        return accuracy.coverage(self.fit("heldout"))

    @cached_property
    def memory(self) -> Summary | None:
        """Returns the errors of peak memory, which are the same in every fit."""
        return accuracy.memory_error(self.rows.drop_duplicates("run_id"))

    @cached_property
    def baseline(self) -> Summary:
        """Returns the baseline's held-out errors on the rows that have an error here: coverage can flatter neither."""
        held = self.fit("heldout")
        base = frame.part(self.whole, predictor=BASELINE, fit="heldout")
        return accuracy.summarise(base[base["run_id"].isin(held["run_id"][held["error"].notna()])])

    @cached_property
    def beats(self) -> bool | None:
        """Tells whether the held-out macro MAPE is below the baseline's; None where one of them has none."""
        held_out, base = self.held.macro_mape, self.baseline.macro_mape
        return None if held_out is None or base is None else held_out < base

    @cached_property
    def missing_models(self) -> tuple[int, str]:
        """Returns how many models the zoo does not have, and their names."""
        reasons = set(self.rows["reason"][self.rows["reason"].str.startswith(MISSING_MODEL).to_numpy(dtype=bool)])
        names = sorted(reason.removeprefix(MISSING_MODEL).strip() for reason in reasons)
        return len(names), ", ".join(names)

    @property
    def gpus(self) -> list[str]:
        """Returns the names of the rows' GPUs, sorted."""
        return sorted({*self.rows["gpu"]} - {""})

    @cached_property
    def milliseconds(self) -> float | None:
        """Returns the mean time of one projection in milliseconds; None where no row states it."""
        taken = self.fit("heldout")["seconds_to_project"].dropna()
        return None if taken.empty else 1e3 * float(taken.mean())
