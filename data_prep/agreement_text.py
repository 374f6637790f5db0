"""What the agreement figures mean, in plain sentences."""

from data_prep.agreement import DimensionAgreement, Figure

# Krippendorff's own limits (Content Analysis, 2004, ch. 11).
RELIABLE, TENTATIVE = 0.8, 0.667
# Koo & Li 2016, J Chiropr Med 15(2), for ICC; read on the lower end of the interval, as they ask.
ICC_LIMITS = ((0.9, "excellent"), (0.75, "good"), (0.5, "moderate"), (-9.0, "poor"))


def limits(figure: Figure, digits: int = 2) -> str:
    """`0.72 (0.61 to 0.80)`, `0.72 (no interval: why)` or `undefined: why`."""
    if figure.value is None:
        return f"undefined: {figure.reason}"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.{digits}f} (no interval: {figure.reason})"
    return f"{figure.value:.{digits}f} ({figure.low:.{digits}f} to {figure.high:.{digits}f})"


def percent(figure: Figure) -> str:
    """The same in per cent."""
    if figure.value is None:
        return f"undefined: {figure.reason}"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.0%} (no interval: {figure.reason})"
    return f"{figure.value:.0%} ({figure.low:.0%} to {figure.high:.0%})"


def alpha_meaning(figure: Figure) -> str:
    value = figure.value
    assert value is not None
    if value >= RELIABLE:
        return f"the ratings can be relied on (Krippendorff asks for {RELIABLE:g})"
    if value >= TENTATIVE:
        return f"good for tentative conclusions only (between {TENTATIVE:g} and {RELIABLE:g})"
    if value > 0:
        return (
            f"too low to rely on single ratings (below {TENTATIVE:g}); average several raters, or sharpen the anchors"
        )
    return "no better than chance; do not use these ratings"


def icc_meaning(figure: Figure, subject: str) -> str:
    judged = figure.low if figure.low is not None else figure.value
    assert judged is not None
    word = next(word for limit, word in ICC_LIMITS if judged >= limit)
    basis = "the lower limit" if figure.low is not None else "the value"
    return f"of the differences between {subject}, this share comes from the dialogues; {word} by {basis}"


def meaning(figure: Figure) -> str:
    """One sentence on one figure."""
    if figure.value is None:
        return f"{figure.name} is {limits(figure)}."
    shown = limits(figure)
    sentences = {
        "alpha": lambda: f"alpha {shown}: {alpha_meaning(figure)}",
        "kappa": lambda: (
            f"kappa {shown}: two raters avoid this share of the squared disagreement that raters with their habits "
            "would have without looking at the dialogue"
        ),
        "ac2": lambda: (
            f"AC2 {shown}: agreement beyond chance by a measure that stays high when nearly all ratings are one level, "
            "where alpha and kappa fall; far above alpha it says that the dialogues hardly differ"
        ),
        "icc_2_1": lambda: f"ICC(2,1) {shown}: {icc_meaning(figure, 'single ratings')}",
        "icc_2_k": lambda: f"ICC(2,k) {shown}: {icc_meaning(figure, 'means of all raters')}",
        "icc_all": lambda: f"ICC from all ratings {shown}: {icc_meaning(figure, 'single ratings')}",
        "exact": lambda: f"two raters give the same level to {percent(figure)} of the dialogues",
        "within_one": lambda: (
            f"two raters are at most one level apart on {percent(figure)}; on a short scale chance gives much of it"
        ),
        "ceiling_kappa": lambda: (
            f"a rater reaches kappa {shown} with the median of the others: a scorer that does as well is as good as "
            "one more rater"
        ),
        "ceiling_within_one": lambda: f"a rater is within one level of the others' median on {percent(figure)}",
        "ceiling_mae": lambda: f"a rater is {shown} levels away from the mean of the others",
    }
    text = sentences[figure.name]()
    return f"{text[0].upper() if not text.startswith(('alpha', 'kappa')) else text[0]}{text[1:]}."


def sentences(found: DimensionAgreement) -> list[str]:
    """What is to be known about one dimension, a sentence a figure, and the raters that are pointed out."""
    lines = [meaning(figure) for figure in found.figures.values()]
    for rater in found.raters:
        if rater.pointed_out:
            lines.append(f"Rater {rater.rater} disagrees with all others: {rater.pointed_out}.")
    return lines
