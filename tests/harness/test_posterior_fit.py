"""The fit of the posterior: what it finds in made-up rows, that leaving out is leaving out, and what sources weigh."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.calibrate import fit, held_out, learn
from harness.calibrate.conditioned import Conditioned, blocks_of, effects_after, shared_effects, taught_by, thinned
from harness.contracts.estimates import Observation
from projector.effects import Facts, Prior
from projector.posterior import FREEDOM, Posterior

KNOWN = Prior(
    deviations={"compute": 0.1, "host": 0.2, "host, framework": 0.3, "source": 0.2, "family on gpu": 0.1, "run": 0.05},
    scatter={"f": 1.5, "": 1.2},
)


def row(i: int, source: int, log: float, host: float = 0.2, framework: str = "f", law: float = 0.0) -> Observation:
    facts = Facts(
        step_seconds=1.0 + 0.01 * i, shares={"compute": 1.0 - host, "host": host}, gpu="h100_sxm", framework=framework,
        family=f"m{i % 3}", model=f"m{i % 3}", source=f"s{source}", law=law,
    )  # fmt: skip
    return Observation(run_id=f"r{source}-{i}", facts=facts, log_ratio=log)


def drawn(sources: int = 16, rows: int = 6, seed: int = 0) -> list[Observation]:
    """Rows whose host is off by a factor of its own in every source, with little noise."""
    draw = np.random.default_rng(seed)
    made = []
    for source in range(sources):
        theta = draw.normal(0.0, 1.0)
        for i in range(rows):
            host = float(draw.uniform(0.05, 0.6))
            made.append(row(i, source, host * theta + float(draw.normal(0.0, 0.03)), host))
    return made


def test_the_likelihood_finds_the_part_in_which_sources_differ() -> None:
    prior = fit.prior(drawn())
    found = {term: value * prior.scatter["f"] for term, value in prior.deviations.items()}
    assert found["host, source"] == pytest.approx(1.0, rel=0.35)
    assert found["run"] < 0.06
    assert max(found["compute, source"], found["source"], found["model, source"]) < 0.3 * found["host, source"]


def test_the_likelihood_finds_frameworks_whose_stacks_lie_far_from_each_other() -> None:
    draw = np.random.default_rng(1)
    rows = [
        row(i, source, theta + float(draw.normal(0.0, 0.02)), framework=name)
        for name, first, wide in (("alike", 0, 0.05), ("apart", 20, 0.5))
        for source, theta in enumerate(draw.normal(0.0, wide, 20).tolist(), start=first)
        for i in range(4)
    ]
    scatter = fit.prior(rows).scatter
    assert scatter["apart"] > 1.5 * scatter["alike"]


def test_the_gradient_of_the_likelihood_is_its_finite_difference() -> None:
    draw = np.random.default_rng(2)
    rows = [*drawn(4, 3), *(row(i, 9 + i % 2, 0.3, 0.1, "g") for i in range(4))]
    facts, y = [each.facts for each in rows], np.array([each.log_ratio for each in rows])
    terms = sorted({term for each in facts for term, _ in each.effects}, key="run".__eq__)
    target = fit._likelihood(facts, y, terms, ["f", "g"], draw.uniform(0.5, 2.0, len(rows)))
    x = draw.normal(-1.5, 0.3, len(terms) + 2)
    sides = (np.array([target(x + sign * step)[0] for step in 1e-5 * np.eye(len(x))]) for sign in (1.0, -1.0))
    np.testing.assert_allclose(target(x)[1], np.subtract(*sides) / 2e-5, rtol=1e-5, atol=1e-6)


def by_the_whole_matrix(known: Conditioned, keep: np.ndarray, asked: list[Facts]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of ``asked`` by the rows ``keep``, from the covariance of all of them as one matrix."""
    facts = [row.facts for row in known.rows] + asked
    effects = list(dict.fromkeys(effect for each in facts for effect in each.effects))
    z = known.prior.design(facts, effects)
    run = np.array([term == "run" for term, _ in effects])
    variance = known.prior.variances(effects)
    noise = (z[:, run] ** 2).sum(axis=1) * known.prior.deviations["run"] ** 2
    shared = (z[:, ~run] * variance[~run]) @ z[:, ~run].T
    rows, new = np.flatnonzero(keep), np.arange(len(keep), len(facts))
    weight = np.concatenate([block.weight for block in known.blocks.values()])
    inner = shared[np.ix_(rows, rows)] + np.diag(noise[rows] * weight[rows])
    gain = np.linalg.solve(inner, shared[np.ix_(rows, new)]).T
    y = np.array([row.log_ratio for row in known.rows])[rows]
    return gain @ y, shared[np.ix_(new, new)] - gain @ shared[np.ix_(rows, new)] + np.diag(noise[new])


@pytest.mark.parametrize("own", [False, True])
def test_blocks_say_what_one_matrix_of_all_rows_says(own: bool) -> None:
    rows = drawn(6)
    known = Conditioned.of(rows, KNOWN)
    asked = [r.facts for r in rows if r.source == "s2"] + [row(1, 2, 0.0, 0.4, "g").facts]
    keep = np.array([own or r.source != "s2" for r in known.rows])
    for left, right in zip(known.expected(asked, own), by_the_whole_matrix(known, keep, asked), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-9)


def test_effects_say_what_rows_say_of_a_new_source() -> None:
    rows = drawn(6)
    known = Conditioned.of(rows, KNOWN)
    effects, mean, covariance = known.effects()
    new = row(1, 99, 0.0, 0.4).facts
    shipped = Posterior(
        prior=fit.repeat_share(KNOWN), tail=(1.6, 1.6), effects=effects, mean=mean, covariance=covariance
    )
    (middle,), ((variance,),) = known.expected([new])
    assert shipped.log_ratio(new)[0] == pytest.approx(float(middle), abs=1e-9)
    # what a repetition adds is the same in all frameworks
    assert shipped.log_ratio(new)[1] == pytest.approx(float(variance), rel=0.01)


def test_a_row_far_off_counts_less() -> None:
    rows = [row(i, i % 3, 0.0, 0.2) for i in range(12)]
    broken = [*rows[:-1], row(11, 2, 3.0, 0.2)]
    weight = Conditioned.of(broken, KNOWN).blocks["s2"].weight
    assert weight.max() > 20.0 * np.median(weight)


def test_weights_are_those_of_student_s_t() -> None:
    """Where the rounds end, noise is scaled by (ν + expected square of its residual) / (ν + 1)."""
    rows = [row(i, i % 3, (-1.0) ** i * 0.1 * (i % 5), 0.2) for i in range(12)]
    facts, y = [each.facts for each in rows], np.array([each.log_ratio for each in rows])
    order = sorted(range(12), key=lambda i: facts[i].source)
    blocks = blocks_of([facts[i] for i in order], y[order], KNOWN, rounds=200)
    effects = effects_after(taught_by(blocks.values(), len(shared_effects(facts, KNOWN))))
    for block in blocks.values():
        inverse, solved = block.solved(*effects)
        noise = block.noise * block.weight
        squares = noise * solved**2 + 1.0 - noise * np.diag(inverse)  # of the residual, in its deviations
        np.testing.assert_allclose(block.weight, (FREEDOM + squares * block.weight) / (FREEDOM + 1.0), rtol=1e-6)


def test_a_source_counts_no_more_rows_than_its_share() -> None:
    rows = [row(i, 0, 0.1) for i in range(100)] + [row(i, 1, 0.1) for i in range(3)]
    chosen = thinned(rows, 10)
    assert sum(r.source == "s0" for r in chosen) == 10
    assert sum(r.source == "s1" for r in chosen) == 3
    assert {r.run_id for r in thinned(rows[::-1], 10)} == {r.run_id for r in chosen}


@pytest.mark.parametrize("scores", [[], [("a", 1.0)] * 50])
def test_the_width_of_too_few_sources_is_a_normal_one(scores: list[tuple[str, float]]) -> None:
    assert learn.tail(scores) == 1.645


def test_the_width_is_a_quantile_over_sources_not_rows() -> None:
    scores = [("many", 9.0)] * 500 + [(f"s{i}", 1.0 + 0.01 * i) for i in range(40)]
    assert learn.tail(scores) < 2.0


def test_unseen_rows_are_judged_without_their_source_and_own_runs_help() -> None:
    looks = drawn(10, 5)
    judged = held_out.unseen(looks, looks)
    assert {j.row.run_id for j in judged if not j.own} == {r.run_id for r in looks}
    error = {own: np.median([abs(j.error) for j in judged if j.own == own and not j.nearest]) for own in (0, 3)}
    assert error[3] < 0.6 * error[0]
    inside = [j.inside for j in judged if not j.own]
    assert 0.75 <= np.mean(inside) <= 1.0
    # what a source itself measured does not touch how it is judged
    moved = [r if r.source != "s3" else row_moved(r) for r in looks]
    before, after = (
        {j.row.run_id: j.half for j in held_out.unseen(rows, rows) if not j.own and j.row.source == "s3"}
        for rows in (looks, moved)
    )
    assert after == pytest.approx(before, rel=0.25)


def row_moved(r: Observation) -> Observation:
    return Observation(run_id=r.run_id, facts=r.facts, log_ratio=r.log_ratio + 0.5)


def test_the_ratio_of_two_runs_of_a_source_is_surer_than_either() -> None:
    rows = drawn(6)
    known = Conditioned.of(rows, replace(KNOWN, deviations={**KNOWN.deviations, "source": 0.5}))
    widths = held_out.ratio_widths(known, rows, [("r1-0", "r1-1"), ("r1-0", "r2-0")], 1.645)
    alone = held_out.estimates(known, [r for r in rows if r.run_id == "r1-0"], 1.645)["r1-0"].half
    assert widths["r1-0", "r1-1"] < alone
    assert math.isfinite(widths["r1-0", "r1-1"])


def test_a_row_by_all_others_is_the_row_left_out_with_its_repetitions() -> None:
    rows = drawn(sources=4, rows=5)
    rows.append(replace(rows[3], run_id="again", log_ratio=rows[3].log_ratio + 0.01))
    those = Conditioned.of(rows, KNOWN)
    error, deviation = those.without_itself()
    for i, each in enumerate(those.rows):
        other = np.array([row.facts.fingerprint != each.facts.fingerprint for row in those.rows])
        mean, covariance = by_the_whole_matrix(those, other, [each.facts])
        assert error[i] == pytest.approx(each.log_ratio - mean[0])
        mine = other & np.array([row.source == each.source for row in those.rows])
        own = [those.rows[j] for j in np.flatnonzero(mine)]
        theirs = by_the_whole_matrix(those, other & ~mine, [row.facts for row in own])
        left = np.array([row.log_ratio for row in own]) - theirs[0]
        noise = np.concatenate([block.noise * (block.weight - 1.0) for block in those.blocks.values()])[mine]
        surprise = left @ np.linalg.solve(theirs[1] + np.diag(noise), left)
        assert deviation[i] ** 2 == pytest.approx(covariance[0, 0] * (FREEDOM + surprise) / (FREEDOM + mine.sum()))


def test_a_known_source_is_expected_nearer_than_the_same_rows_of_an_unknown_one() -> None:
    rows, posterior = drawn(), Posterior(prior=fit.repeat_share(KNOWN), tail=(1.7, 2.0))
    known = held_out.known(rows, posterior)
    assert [each.row.run_id for each in known] == [row.run_id for row in Conditioned.of(rows, KNOWN).rows]
    assert {each.own for each in known} == {5}
    alone = {each.row.run_id: each for each in held_out.seen(rows, posterior)}
    assert np.mean([abs(each.error) for each in known]) < 0.5 * np.mean([abs(each.error) for each in alone.values()])
    assert all(each.half <= alone[each.row.run_id].half + 1e-12 for each in known)
    assert not held_out.known(rows[: held_out.FEW - 1], posterior)
