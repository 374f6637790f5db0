"""Agreement: every figure against an independent library or computation, on random tables with missing cells."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from data_prep.agreement import (
    DimensionAgreement,
    agreement,
    alpha_figure,
    dimension_agreement,
    disagrees_with_all,
    rating_table,
)
from data_prep.agreement_formulas import (
    ac2,
    ac2_parts,
    anova_parts,
    component_parts,
    consensus_distances,
    consensus_moments,
    icc,
    icc_from_components,
    kappas,
    mean_kappa,
    mean_ratio,
    pair_moments,
    pair_shares,
    ratio,
)
from data_prep.agreement_text import meaning, sentences
from data_prep.rating_plans import assign
from data_prep.records import Rating
from data_prep.resampling import bootstrap_interval, weights_of
from data_prep.rubric import load_rubric

RUBRIC = load_rubric("esc_eval")
EMPATHY = RUBRIC.dimension("empathy")
LEVELS = np.arange(5.0)
REFERENCE = json.loads((Path(__file__).parent / "agreement_reference.json").read_text())["tables"]


def random_table(seed: int, missing: float = 0.25, raters: int = 4, dialogues: int = 25) -> np.ndarray:
    random = np.random.default_rng(seed)
    truth = random.integers(0, 5, dialogues)
    table = np.clip(truth[:, None] + random.integers(-2, 3, (dialogues, raters)), 0, 4).astype(float)
    table[random.random(table.shape) < missing] = np.nan
    return table[(~np.isnan(table)).any(axis=1)]


def figures_of(table: np.ndarray, resamples: int = 199) -> DimensionAgreement:
    names = [f"r{number}" for number in range(table.shape[1])]
    return dimension_agreement(table, names, EMPATHY, int((~np.isnan(table)).sum()), resamples=resamples)


@pytest.mark.parametrize("seed", range(12))
def test_alpha_equals_its_definition(seed: int) -> None:
    """Krippendorff's definition written out pair by pair: 1 - (n - 1) · observed / expected disagreement."""
    table = random_table(seed)
    units = [row[~np.isnan(row)] for row in table]
    units = [unit for unit in units if len(unit) >= 2]
    pairable = np.concatenate(units)
    counts = {level: float((pairable == level).sum()) for level in LEVELS}

    def distance(a: float, b: float) -> float:
        low, high = min(a, b), max(a, b)
        between = sum(counts[level] for level in LEVELS if low <= level <= high)
        return (between - (counts[low] + counts[high]) / 2) ** 2

    observed = sum(
        distance(a, b) / (len(unit) - 1)
        for unit in units
        for i, a in enumerate(unit)
        for j, b in enumerate(unit)
        if i != j
    )
    expected = sum(distance(a, b) for i, a in enumerate(pairable) for j, b in enumerate(pairable) if i != j)
    by_hand = 1 - (len(pairable) - 1) * observed / expected
    shared = table[(~np.isnan(table)).sum(axis=1) >= 2]
    assert alpha_figure(shared, LEVELS, 0.95, 0, 99).value == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_kappa_equals_sklearn(seed: int) -> None:
    from sklearn.metrics import cohen_kappa_score

    table = random_table(seed)
    expected = []
    for a, b in combinations(range(table.shape[1]), 2):
        both = ~np.isnan(table[:, a]) & ~np.isnan(table[:, b])
        expected.append(cohen_kappa_score(table[both, a], table[both, b], labels=LEVELS, weights="quadratic"))
    sums = pair_moments(table).sum(axis=0)
    np.testing.assert_allclose(kappas(sums), expected, atol=1e-12)
    assert mean_kappa(sums) == pytest.approx(np.mean(expected), abs=1e-12)


@pytest.mark.parametrize("case", REFERENCE)
def test_ac2_and_exact_equal_irrcac(case: dict) -> None:
    table = np.array(case["table"], dtype=float)
    levels = np.arange(float(case["levels"]))
    assert ac2(ac2_parts(table, levels).sum(axis=0), len(levels)) == pytest.approx(case["ac2"], abs=1e-8)
    assert ratio(pair_shares(table, 0).sum(axis=0)) == pytest.approx(case["exact"], abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_icc_equals_pingouin(seed: int) -> None:
    """On the dialogues that everybody rated, which is how pingouin treats missing cells too (nan_policy omit)."""
    pingouin = pytest.importorskip("pingouin")
    import pandas

    table = random_table(seed, missing=0.1)
    long = pandas.DataFrame(
        [(i, j, table[i, j]) for i in range(table.shape[0]) for j in range(table.shape[1])],
        columns=["dialogue", "rater", "level"],
    )
    found = pingouin.intraclass_corr(long, "dialogue", "rater", "level", nan_policy="omit")
    by_type = dict(zip(found["Type"], found["ICC"], strict=True))
    one = by_type.get("ICC(A,1)", by_type.get("ICC2"))
    mean = by_type.get("ICC(A,k)", by_type.get("ICC2k"))
    sums = anova_parts(table[~np.isnan(table).any(axis=1)]).sum(axis=0)
    assert icc(sums, average=False) == pytest.approx(one, abs=1e-9)
    assert icc(sums, average=True) == pytest.approx(mean, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_icc_from_components_equals_icc_when_nothing_is_missing(seed: int) -> None:
    table = random_table(seed, missing=0)
    expected = icc(anova_parts(table).sum(axis=0), average=False)
    assert icc_from_components(component_parts(table).sum(axis=0)) == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_icc_from_components_equals_expectations_of_quadratic_forms(seed: int) -> None:
    """With missing cells: E[y'Qy] = trace(Q Z Z') of every component, from the design matrices themselves."""
    table = random_table(seed, missing=0.4)
    table = table[(~np.isnan(table)).sum(axis=1) >= 2]
    row, column = np.nonzero(~np.isnan(table))
    y = table[row, column]
    rows, columns = (np.eye(index.max() + 1)[index] for index in (row, column))
    rows, columns = rows[:, rows.any(axis=0)], columns[:, columns.any(axis=0)]
    project = [m @ np.linalg.inv(m.T @ m) @ m.T for m in (rows, columns)]
    mean = np.full((len(y), len(y)), 1 / len(y))
    forms = [project[0] - mean, project[1] - mean, np.eye(len(y)) - mean]
    system = [[np.trace(q @ z @ z.T) for z in (rows, columns, np.eye(len(y)))] for q in forms]
    components = np.linalg.solve(system, [y @ q @ y for q in forms])
    found = icc_from_components(component_parts(table).sum(axis=0))
    assert found == pytest.approx(components[0] / components.sum(), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_ceiling_equals_a_plain_loop_and_sklearn(seed: int) -> None:
    from sklearn.metrics import cohen_kappa_score

    table = random_table(seed)
    kappa, within, away = [], [], []
    for rater in range(table.shape[1]):
        own, medians, means = [], [], []
        for row in table:
            rest = [value for place, value in enumerate(row) if place != rater and not np.isnan(value)]
            if rest and not np.isnan(row[rater]):
                own.append(row[rater])
                medians.append(np.median(rest))
                means.append(np.mean(rest))
        kappa.append(
            cohen_kappa_score(
                (2 * np.array(own)).astype(int),
                (2 * np.array(medians)).astype(int),
                labels=range(9),
                weights="quadratic",
            )
        )
        within.append(np.mean(np.abs(np.array(own) - medians) <= 1))
        away.append(np.mean(np.abs(np.array(own) - means)))
    assert mean_kappa(consensus_moments(table).sum(axis=0)) == pytest.approx(np.mean(kappa), abs=1e-12)
    assert mean_ratio(consensus_distances(table, "within_one").sum(axis=0)) == pytest.approx(np.mean(within))
    assert mean_ratio(consensus_distances(table, "mae").sum(axis=0)) == pytest.approx(np.mean(away))


def test_within_one_counts_every_dialogue_once() -> None:
    table = np.array([[0, 1, 4], [2, 2, np.nan], [3, np.nan, np.nan]])
    assert ratio(pair_shares(table, 1).sum(axis=0)) == pytest.approx((1 / 3 + 1) / 2)
    assert ratio(pair_shares(table, 0).sum(axis=0)) == pytest.approx((0 + 1) / 2)


def test_interval_equals_scipy_on_the_dialogues_themselves() -> None:
    """The weighted sums are the resampled dialogues: same seed, same interval as scipy resampling the rows."""
    from scipy.stats import bootstrap

    table = random_table(3)
    shares = pair_shares(table, 0)
    shares = shares[shares[:, 1] > 0]
    found = bootstrap_interval(
        lambda index: ratio(weights_of(index, len(shares)) @ shares), 0.0, len(shares), seed=5, resamples=499
    )
    expected = bootstrap(
        (shares[:, 0],), np.mean, n_resamples=499, method="BCa", rng=np.random.default_rng(5), vectorized=True
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.method == "BCa"


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    hits = 0
    for seed in range(60):
        agree = np.random.default_rng(seed).random(60) < 0.7
        parts = pair_shares(np.column_stack([np.ones(60), np.where(agree, 1, 2)]).astype(float), 0)

        def share(index: np.ndarray, parts: np.ndarray = parts) -> np.ndarray:
            return ratio(weights_of(index, 60) @ parts)

        found = bootstrap_interval(share, float(agree.mean()), 60, resamples=199)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= 0.7 <= found.high
    assert hits >= 51  # 95 % of 60 is 57; below 51 has a chance under 1 %


def test_same_seed_same_figures() -> None:
    table = random_table(1)
    assert figures_of(table) == figures_of(table)


def test_undefined_is_none_with_a_reason() -> None:
    constant = figures_of(np.full((6, 3), 2.0)).figures
    for name in ("alpha", "kappa", "icc_2_1", "icc_2_k", "icc_all", "ceiling_kappa"):
        assert constant[name].value is None
        assert "same level" in (constant[name].reason or "")
    assert constant["exact"].value == 1
    assert constant["exact"].low is None
    assert constant["ac2"].value == 1

    alone = figures_of(np.array([[1.0, np.nan], [np.nan, 2.0]])).figures
    for figure in alone.values():
        assert figure.value is None
        assert figure.reason

    single = figures_of(np.array([[1.0], [2.0]])).figures
    assert all(figure.value is None and figure.reason for figure in single.values())


def test_incomplete_design_has_an_icc_from_all_ratings() -> None:
    table = random_table(2, missing=0, raters=5, dialogues=60)
    plan = assign([str(i) for i in range(60)], [str(i) for i in range(5)], 2, seed=1)
    masked = np.full_like(table, np.nan)
    for rater, ids in plan.items():
        for identifier in ids:
            masked[int(identifier), int(rater)] = table[int(identifier), int(rater)]
    found = figures_of(masked).figures
    assert found["icc_2_1"].value is None
    assert "icc_all" in (found["icc_2_1"].reason or "")
    full = figures_of(table).figures["icc_2_1"].value
    assert found["icc_all"].value == pytest.approx(full, abs=0.2)


def test_a_rater_without_values_changes_nothing() -> None:
    table = random_table(4)
    wider = np.column_stack([table, np.full(len(table), np.nan)])
    assert figures_of(table).figures == figures_of(wider).figures
    assert figures_of(wider).raters[-1].ratings == 0


def pointed_out(columns: list[np.ndarray]) -> list[str | None]:
    return [rater.pointed_out for rater in figures_of(np.column_stack(columns), resamples=99).raters]


def test_rater_who_disagrees_with_all_is_pointed_out() -> None:
    random = np.random.default_rng(0)
    truth = random.integers(0, 5, 40).astype(float)
    close = [np.clip(truth + random.integers(-1, 2, 40), 0, 4) for _ in range(3)]
    assert pointed_out(close) == [None] * 3
    flags = pointed_out([*close, 4 - truth])
    assert flags[:3] == [None] * 3
    assert "upside down" in (flags[3] or "")
    flags = pointed_out([*close, random.integers(0, 5, 40).astype(float)])
    assert flags[:3] == [None] * 3
    assert flags[3] is not None
    assert "upside down" not in flags[3]
    # Two raters alone: nobody can say who is the odd one.
    assert pointed_out([close[0], 4 - truth]) == [None] * 2
    # Nobody agrees with anybody: there is no odd one either.
    noise = [random.integers(0, 5, 40).astype(float) for _ in range(4)]
    assert pointed_out(noise) == [None] * 4


def test_few_shared_dialogues_point_at_nobody() -> None:
    kappas_of_three = np.array([[np.nan, 0.9, -0.5], [0.9, np.nan, -0.5], [-0.5, -0.5, np.nan]])
    assert disagrees_with_all(kappas_of_three, np.full((3, 3), 5), 2)
    assert disagrees_with_all(kappas_of_three, np.full((3, 3), 4), 2) is None


def test_ratings_become_a_table() -> None:
    ratings = [
        Rating(dialogue_id="b", rater="y", rubric="esc_eval", dimension="empathy", value=3),
        Rating(dialogue_id="a", rater="x", rubric="esc_eval", dimension="empathy", value=1),
        Rating(dialogue_id="a", rater="y", rubric="esc_eval", dimension="empathy", value=None, reason="left empty"),
        Rating(dialogue_id="a", rater="y", rubric="esc_eval", dimension="fluency", value=4),
    ]
    table, ids, raters = rating_table(ratings, "empathy")
    assert (ids, raters) == (["a", "b"], ["x", "y"])
    np.testing.assert_array_equal(table, [[1, np.nan], [np.nan, 3]])
    found = agreement(ratings, RUBRIC, resamples=99)
    assert [one.dimension for one in found] == ["fluency", "empathy"]
    assert found[1].ratings == 2
    assert found[1].missing == 1
    assert found[1].counts == {0: 0, 1: 1, 2: 0, 3: 1, 4: 0}


def test_every_figure_has_a_plain_sentence() -> None:
    for table in (random_table(0), np.full((6, 3), 2.0), np.array([[1.0, np.nan]])):
        found = figures_of(table)
        for figure in found.figures.values():
            text = meaning(figure)
            assert text.endswith(".")
            assert "nan" not in text
            assert "None" not in text
            assert ("undefined" in text) == (figure.value is None)
    random = np.random.default_rng(0)
    truth = random.integers(0, 5, 40).astype(float)
    found = figures_of(np.column_stack([truth, truth, 4 - truth]), resamples=99)
    assert sentences(found)[-1].startswith("Rater r2 disagrees with all others")


def test_beyond_many_units_the_interval_is_of_percentiles():
    values = np.random.default_rng(0).normal(size=5001)

    def of(count):
        sample = values[:count]
        return bootstrap_interval(lambda index: sample[index].mean(axis=-1), float(sample.mean()), count, resamples=199)

    assert (of(5000).method, of(5001).method) == ("BCa", "percentile")
    assert (of(5001).low, of(5001).high) == pytest.approx((of(5000).low, of(5000).high), abs=0.01)
