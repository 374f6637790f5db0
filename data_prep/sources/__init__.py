"""The datasets of the field, by name: `get_source("esconv").read(path)` turns their files into our records."""

from difflib import get_close_matches

from data_prep.errors import UserError
from data_prep.sources import (
    cpsycoun,
    csv_table,
    epitome,
    esc_judge,
    esceval,
    esconv,
    extes,
    messages,
    mhp,
    nlpcc,
    patienthub,
    psych8k,
    psyqa,
    sdialog,
    sharegpt,
    smile,
)
from data_prep.sources.base import Conversion, Options, Refusal, Source

__all__ = ["SOURCES", "Conversion", "Options", "Refusal", "Source", "get_source"]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        esconv.ESCONV,
        esceval.ESCEVAL_CARDS,
        esceval.ESCEVAL_TRANSCRIPTS,
        esceval.ESCEVAL_SCORES,
        extes.EXTES,
        epitome.EPITOME,
        psyqa.PSYQA,
        smile.SMILE,
        cpsycoun.CPSYCOUND,
        cpsycoun.CPSYCOUNE,
        nlpcc.NLPCC,
        mhp.MHP,
        psych8k.PSYCH8K,
        esc_judge.ESC_JUDGE_PERSONAS,
        messages.MESSAGES,
        sharegpt.SHAREGPT,
        csv_table.CSV,
        patienthub.PATIENTHUB_CHARACTERS,
        patienthub.PATIENTHUB_SESSIONS,
        sdialog.SDIALOG,
        sdialog.SDIALOG_PERSONAS,
    )
}


def get_source(name: str) -> Source:
    """The source of that name. Raises UserError with the nearest known name."""
    if name in SOURCES:
        return SOURCES[name]
    folded = name.casefold().replace("_", "-")
    close = get_close_matches(folded, SOURCES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(SOURCES)}"
    raise UserError(f"unknown source {name!r}; {hint} (all of them: esckit data sources)")
