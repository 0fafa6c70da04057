"""Estimates rows from each other, source by source. Pure.

Some effects are shared by sources; all others belong to one source alone. The covariance of rows is therefore U Uᵀ + B:
U holds the influence of the shared effects on each row, B one block a source. Every estimate follows from the inverses
of these small blocks and of one matrix over the shared effects (Rasmussen, Williams, *Gaussian Processes for Machine
Learning*, 2006, A.9), and a source is left out by leaving out its block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.contracts.estimates import Observation
from projector.dataclass import dataclass
from projector.effects import Effect, Facts, Prior, of_stack
from projector.io.rows import grouped
from projector.posterior import FREEDOM, agreement

Array = NDArray[np.float64]

#: Most rows of one source that count, spread over its cells.
MOST = 25
_ROUNDS = 4


def thinned(rows: Sequence[Observation], most: int = MOST) -> list[Observation]:
    """Returns at most ``most`` rows of each source, source by source, spread evenly over its cells and ids."""
    by_source = grouped((row.source, row) for row in sorted(rows, key=lambda o: (o.cell, o.run_id)))
    chosen: list[Observation] = []
    for members in by_source.values():
        at = np.unique(np.linspace(0, len(members) - 1, min(most, len(members))).round().astype(int))
        chosen += [members[i] for i in at.tolist()]
    return chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """The rows of one source, in the standard deviations of effects. ``shared`` (n, c): the influence of the effects
    that sources share on each row (``columns``, (c,): which of all m these are); ``own`` (n, k): that of ``effects``,
    which the source alone has. ``noise`` (n,): variance of the noise of each row, ``weight`` (n,): the factor by which
    it is larger than usual. ``y`` (n,): ln(measured / projected)."""

    y: Array
    columns: NDArray[np.int_]
    shared: Array
    own: Array
    effects: tuple[Effect, ...]
    noise: Array
    weight: Array

    @classmethod
    def of(cls, facts: Sequence[Facts], known: Prior, shared: Sequence[Effect], y: Array) -> Block:
        place = {effect: column for column, effect in enumerate(shared)}
        present = dict.fromkeys(effect for run in facts for effect in run.effects)
        common = [e for e in present if e in place]
        of_source = tuple(e for e in present if e not in place and e[0] != "run" and known.deviations.get(e[0]))
        effects = (*common, *of_source)
        z = known.design(facts, effects) * np.sqrt(known.variances(effects))
        wide = known.design(facts, [e for e in present if e[0] == "run"])
        return cls(
            y=y,
            columns=np.array([place[e] for e in common], dtype=int),
            shared=z[:, : len(common)],
            own=z[:, len(common) :],
            effects=of_source,
            noise=known.deviations["run"] ** 2 * (wide**2).sum(axis=1),
            weight=np.ones(len(facts)),
        )

    @cached_property
    def inverse(self) -> Array:
        """Returns the inverse (n, n) of the covariance of the block's rows where the shared effects are known."""
        return np.asarray(np.linalg.inv(self.own @ self.own.T + np.diag(self.noise * self.weight)), dtype=np.float64)

    @cached_property
    def taught(self) -> Array:
        """Returns the evidence of its rows on the shared effects: (c, c) their precision, beside it (c, 1) their pull."""
        return np.asarray((self.shared.T @ self.inverse) @ np.column_stack([self.shared, self.y]), dtype=np.float64)

    def solved(self, mean: Array, covariance: Array) -> tuple[Array, Array]:
        """Returns the block's part of the inverse of the covariance of all rows (n, n), and of that inverse · y (n,),
        where all rows leave the shared effects with ``mean`` and ``covariance``."""
        gain = self.inverse @ self.shared
        covariance = covariance[np.ix_(self.columns, self.columns)]
        return self.inverse - gain @ covariance @ gain.T, self.inverse @ self.y - gain @ mean[self.columns]

    def reweighed(self, mean: Array, covariance: Array) -> Block:
        """Returns the block with the weights that Student's t gives to rows that lie far off."""
        inverse, solved = self.solved(mean, covariance)
        noise = self.noise * self.weight
        residual, spread = noise * solved, noise - noise**2 * np.diag(inverse)
        return replace(self, weight=(FREEDOM + (residual**2 + spread) / self.noise) / (FREEDOM + 1.0))


def shared_effects(facts: Sequence[Facts], known: Prior) -> tuple[Effect, ...]:
    """Returns the effects of runs that do not belong to one source and whose deviation is not zero."""
    effects = dict.fromkeys(effect for run in facts for effect in run.effects)
    return tuple(e for e in effects if not of_stack(e[0]) and known.deviations.get(e[0]))


def blocks_of(
    facts: Sequence[Facts], y: Array, known: Prior, weight: Array | None = None, rounds: int = _ROUNDS
) -> dict[str, Block]:
    """Returns a block for each source of rows that come source by source, weighed ``rounds`` times from ``weight`` on."""
    by_source = grouped((run.source, i) for i, run in enumerate(facts))
    shared = shared_effects(facts, known)
    weight = np.ones(len(y)) if weight is None else weight
    blocks = {
        name: replace(Block.of([facts[i] for i in at], known, shared, y[at]), weight=weight[at])
        for name, at in by_source.items()
    }
    for _ in range(rounds):
        effects = effects_after(taught_by(blocks.values(), len(shared)))
        blocks = {name: block.reweighed(*effects) for name, block in blocks.items()}
    return blocks


def taught_by(blocks: Iterable[Block], effects: int) -> Array:
    """Returns the evidence of the rows of blocks on all shared effects (m, m + 1), as :attr:`Block.taught` of one."""
    total = np.zeros((effects, effects + 1))
    for block in blocks:
        total[np.ix_(block.columns, np.append(block.columns, effects))] += block.taught
    return total


def effects_after(taught: Array) -> tuple[Array, Array]:
    """Returns mean (m,) and covariance (m, m) of the shared effects, in their deviations, given evidence (m, m + 1)."""
    covariance = np.asarray(np.linalg.inv(np.eye(len(taught)) + taught[:, :-1]), dtype=np.float64)
    return np.asarray(covariance @ taught[:, -1]), covariance


@dataclass(frozen=True, kw_only=True, eq=False)
class Conditioned:
    """The rows that teach, source by source: ``shared`` are the effects that sources share."""

    rows: tuple[Observation, ...]
    prior: Prior
    shared: tuple[Effect, ...]
    blocks: Mapping[str, Block]

    @classmethod
    def of(cls, rows: Sequence[Observation], known: Prior) -> Conditioned:
        """Returns the rows that teach among ``rows``: those that were measured, at most :data:`MOST` of a source."""
        rows = tuple(thinned([row for row in rows if math.isfinite(row.log_ratio)]))
        facts, y = [row.facts for row in rows], np.array([row.log_ratio for row in rows])
        return cls(rows=rows, prior=known, shared=shared_effects(facts, known), blocks=blocks_of(facts, y, known))

    @cached_property
    def _taught(self) -> Array:
        return taught_by(self.blocks.values(), len(self.shared))

    def expected(self, asked: Sequence[Facts], own: bool = False) -> tuple[Array, Array]:
        """Returns mean (n,) and covariance (n, n) of ln(measured / projected) of runs of one source by the rows of
        others, and, with ``own``, by the rows of that source."""
        block = self.blocks.get(asked[0].source)
        known = self._taught if own or not block else self._taught - taught_by([block], len(self.shared))
        mean, covariance = effects_after(known)
        target = Block.of(asked, self.prior, self.shared, np.zeros(len(asked)))
        shared, middle, spread = (self._influence(target), target.y, target.own @ target.own.T + np.diag(target.noise))
        if own and block:
            both = [effect for effect in target.effects if effect in block.effects]
            cross = _columns(target, both) @ _columns(block, both).T
            gain = cross @ block.inverse
            shared, middle, spread = (shared - gain @ self._influence(block), gain @ block.y, spread - gain @ cross.T)
        return middle + shared @ mean, spread + shared @ covariance @ shared.T

    def _influence(self, block: Block) -> Array:
        """Returns the influence of all shared effects on each row of a block, (n, m)."""
        wide = np.zeros((len(block.y), len(self.shared)))
        wide[:, block.columns] = block.shared
        return wide

    def without_itself(self) -> tuple[Array, Array]:
        """Returns the error in ln (n,) of every row that teaches, by all others, and its standard deviation by them,
        scaled by the spread of its source's other rows; measurements of the same configuration count as the row itself
        (Rasmussen, Williams, 2006, 5.12)."""
        effects = effects_after(self._taught)
        errors, deviations = [], []
        for name, block in self.blocks.items():
            inverse, solved = block.solved(*effects)
            prints = np.array([row.facts.fingerprint for row in self.rows if row.source == name], dtype=object)
            error, variance, agreed = np.zeros((3, len(prints)))
            surprise = solved @ np.linalg.solve(inverse, solved)
            for fingerprint in set(prints.tolist()):
                same = np.flatnonzero(prints == fingerprint)
                covariance = np.linalg.inv(inverse[np.ix_(same, same)])
                error[same], variance[same] = covariance @ solved[same], np.diag(covariance)
                others = max(float(surprise - solved[same] @ error[same]), 0.0)
                agreed[same] = agreement(others, len(prints) - len(same))
            errors.append(error)
            deviations.append(agreed * np.sqrt(variance - block.noise * (block.weight - 1.0)))
        return np.concatenate(errors), np.concatenate(deviations)

    def effects(self) -> tuple[tuple[Effect, ...], Array, Array]:
        """Returns the posterior of the effects that sources share: names, mean and covariance."""
        mean, covariance = effects_after(self._taught)
        deviation = np.sqrt(self.prior.variances(self.shared))
        return self.shared, deviation * mean, covariance * np.outer(deviation, deviation)


def _columns(block: Block, effects: Sequence[Effect]) -> Array:
    return block.own[:, [block.effects.index(effect) for effect in effects]]
