"""The audit on labelled transcripts: every planted fault, the false alarms counted, and the figures by hand."""

import pytest
from scipy.stats import binomtest

from data_prep.records import RoleCard
from eval.audit import SEEKER_FAULTS, SUPPORTER_FAULTS, audit, in_wrong_language, marks_of, only_agrees, rates, wilson
from eval.audit_card import card_age, chinese_number, content_words, copied_share, disclosure
from eval.runs import EndReason, Transcript, TranscriptTurn
from tests.eval.audit_cases import CASES, EN, ZH, Case
from tests.eval.made_run import make_transcript

ROUNDS = 3


def transcript_of(case: Case, number: int = 0) -> Transcript:
    card = case.card or (EN if case.language == "en" else ZH)
    words = [line.replace("\\n", "\n") for line in case.words]
    turns = [TranscriptTurn(speaker="supporter", text="Hello." if case.language == "en" else "你好。")]
    turns += [
        TranscriptTurn(
            speaker="supporter" if at % 2 else "seeker", text=text, finish="length" if at in case.cut else "stop"
        )
        for at, text in enumerate(words)
    ]
    return Transcript(
        key=f"case{number}#0",
        card=RoleCard(id=f"case{number}", language=case.language, source="made", **card),
        sample=0,
        supporter="made",
        seeker="made",
        turns=tuple(turns),
        end_reason=EndReason(case.end),
        seed=0,
    )


def found_in(case: Case) -> set[str]:
    return {f"{mark.side} {mark.fault}" for mark in marks_of(transcript_of(case), ROUNDS)}


def test_there_are_enough_cases_and_every_fault_is_planted_in_both_languages():
    assert len(CASES) >= 60
    planted = {(fault, case.language) for case in CASES for fault in case.faults}
    for side, faults in (("seeker", SEEKER_FAULTS), ("supporter", SUPPORTER_FAULTS)):
        for fault in faults:
            languages = {language for name, language in planted if name == f"{side} {fault}"}
            assert (
                languages
                if (side, fault) in {("supporter", "empty"), ("supporter", "cut_off")}
                else (languages == {"en", "zh"})
            ), (side, fault)


@pytest.mark.parametrize("case", [case for case in CASES if case.faults], ids=lambda case: case.name)
def test_every_planted_fault_is_found(case):
    assert case.faults <= found_in(case)


def test_false_alarms_are_counted_and_shown(capsys):
    alarms = {case.name: sorted(found_in(case) - case.faults) for case in CASES}
    alarms = {name: found for name, found in alarms.items() if found}
    clean = [case for case in CASES if not case.faults]
    on_clean = sum(bool(found_in(case)) for case in clean)
    late = [case for case in CASES if case.later]
    missed = sum(not case.faults <= found_in(case) for case in late)
    with capsys.disabled():
        print(
            f"\naudit: {on_clean} of {len(clean)} clean transcripts are marked; {len(alarms)} of {len(CASES)} have a "
            f"mark that was not planted: {alarms}; of {len(late)} written later {missed} are missed"
        )
    assert on_clean == 0
    assert len(alarms) <= 3


def seeker_says(*words: str, language: str = "en", **card: str) -> Transcript:
    """The supporter says little in between."""
    lines = [line for text in words for line in (text, "I see." if language == "en" else "嗯。")]
    known = {**(EN if language == "en" else ZH), **card}
    return transcript_of(Case("made", language, lines, card=known))


def test_disclosure_grows_with_what_is_told_and_never_falls():
    problem = "night shifts manager boyfriend money apartment landlord kitchen"
    curve = disclosure(
        seeker_says("My manager is cruel", "nothing", "The landlord and my boyfriend too", problem=problem)
    )
    assert curve == pytest.approx([1 / 8, 1 / 8, 3 / 8])
    assert disclosure(seeker_says("My manager", problem="work")) is None  # too few words to say anything


def test_content_words_of_both_languages():
    assert content_words("The shifts were really SHIFTING, and I felt 12 doctors") == {"shift", "doctor"}
    assert content_words("我的考研失败了") == {"考研", "研失", "失败"}


@pytest.mark.parametrize(
    ("text", "age"),
    [("27", 27), ("27 years old", 27), ("30s", None), ("20-25", None), ("30多岁", None), ("Not mentioned", None)],
)
def test_age_of_a_card(text, age):
    assert card_age(text) == age


@pytest.mark.parametrize(("text", "number"), [("三十五", 35), ("十", 10), ("十八", 18), ("二十", 20), ("42", 42)])
def test_chinese_numbers(text, number):
    assert chinese_number(text) == number


@pytest.mark.parametrize(
    ("text", "language", "wrong"),
    [
        ("OK", "zh", False),
        ("好的", "en", False),
        ("I live in 北京 with my sister", "en", False),
        ("我在用Python写毕业论文，真的好难", "zh", False),
        ("This is a whole English sentence.", "zh", True),
        ("这是一个完整的中文句子。", "en", True),
        ("1234 5678 90 12 34", "zh", False),
        ("😀" * 10_000, "en", False),
    ],
)
def test_language_of_a_text(text, language, wrong):
    assert in_wrong_language(text, language) == wrong


def test_only_thanks_is_agreement_and_a_new_matter_is_not():
    assert only_agrees("Thank you so much!!")
    assert only_agrees("好的，谢谢你！")
    assert not only_agrees("Thank you, but my landlord wrote to me again and wants the kitchen repaired by Friday")
    assert not only_agrees("谢谢，不过我爸昨天又跟我吵了一架，把门都摔坏了")
    assert not only_agrees("My landlord")


def test_copying_counts_words_in_a_row():
    card = transcript_of(CASES[0]).card
    assert copied_share(card, "Her manager keeps adding") is None
    assert copied_share(card, "argues with her boyfriend about money and fears that she will lose the apartment") == (
        "14 words in a row are the card's"
    )
    assert copied_share(card.model_copy(update={"problem": None}), "anything") is None


def test_marks_quote_nobody():
    secret = "zanzibar"
    for case in CASES:
        spoken = Case(
            case.name, case.language, [f"{secret} {line}" for line in case.words], card=case.card, end=case.end
        )
        for mark in marks_of(transcript_of(spoken), ROUNDS):
            assert secret not in mark.reason


def test_rates_count_a_dialogue_once_and_agree_with_scipy():
    cases = [case for case in CASES if case.language == "en"]
    transcripts = [transcript_of(case, number) for number, case in enumerate(cases)]
    found = audit(transcripts, ROUNDS)
    keys = [transcript.key for transcript in transcripts]
    named = {(rate.side, rate.fault): rate for rate in rates(found, keys, lambda key: key.partition("#")[0])}
    assert len(named) == len(SEEKER_FAULTS) + len(SUPPORTER_FAULTS)
    rate = named["seeker", "speaks_as_ai"]
    expected = sum("seeker speaks_as_ai" in found_in(case) for case in cases)
    assert (rate.dialogues, rate.of) == (expected, len(cases))
    limits = binomtest(expected, len(cases)).proportion_ci(0.95, method="wilson")
    assert (rate.low, rate.high) == pytest.approx((limits.low, limits.high))
    harm = named["supporter", "encourages_harm"]
    assert harm.of == sum(case.card is not None for case in cases)  # only where the card speaks of a crisis


def test_an_interval_over_cards_is_wider_than_over_dialogues():
    assert wilson(0, 0, 0) == (None, None, None)
    share, low, high = wilson(10, 100, 20)
    alone = wilson(10, 100, 100)
    assert share == alone[0] == 0.1
    assert low < alone[1] < alone[2] < high
    assert wilson(0, 50, 50)[1:] == pytest.approx((0.0, 0.0713), abs=1e-3)


def test_hostile_and_empty_texts_are_audited_like_any():
    words = ["", "<script>alert(1)</script>", "\u202e" * 50, "😀" * 10_000, "a" * 100_000, "<|im_end|>\n{{ 7 }}"]
    found = audit([make_transcript("c", texts=words), make_transcript("d", language="zh", texts=words)], 2)
    assert found.dialogues == 2
    assert audit([]).disclosure == ()
