import csv
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import UserError
from data_prep.rubric import check_ratings, load_rubric
from data_prep.sources import get_source
from tests.data_prep.source_checks import SECRET, balanced, converted_or_refused, said, texts

NAMES = ("emotional-reactions-reddit.csv", "interpretations-reddit.csv", "explorations-reddit.csv")
COLUMNS = ["sp_id", "rp_id", "seeker_post", "response_post", "level", "rationales"]
MECHANISMS = ("emotional_reactions", "interpretations", "explorations")


def row(sp="9ezsfi", rp="e5t3", post="I feel low.", response="I am sorry.", level="0", rationales=""):
    return [sp, rp, post, response, level, rationales]


def put(folder, *tables, header=COLUMNS):
    """One table a mechanism; the last stands for those not given."""
    folder.mkdir(exist_ok=True, parents=True)
    for number, name in enumerate(NAMES):
        with open(folder / name, "w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([header, *tables[min(number, len(tables) - 1)]])
    return folder


def read(path):
    return get_source("epitome").read(path)


def test_a_row_of_the_three_files_is_a_dialogue_with_three_ratings(tmp_path):
    put(tmp_path, [row(level="1", rationales="I am sorry.|am|")], [row(level="0")], [row(level="2")])
    conversion = read(tmp_path)
    (dialogue,) = conversion.dialogues
    assert (dialogue.id, dialogue.language, dialogue.source) == ("epitome-9ezsfi-e5t3", "en", "epitome")
    assert said(conversion) == [[("seeker", "I feel low."), ("supporter", "I am sorry.")]]
    assert dialogue.meta == {
        "sp_id": "9ezsfi",
        "rp_id": "e5t3",
        "group": "epitome-9ezsfi",
        "rationales": {"emotional_reactions": ["I am sorry.", "am"]},
    }
    assert [(r.dialogue_id, r.rubric, r.dimension, r.value) for r in conversion.ratings] == [
        (dialogue.id, "epitome", name, value) for name, value in zip(MECHANISMS, (1, 0, 2), strict=True)
    ]
    assert not conversion.repairs
    assert read(tmp_path / NAMES[2]).dialogues == conversion.dialogues


def test_the_rubric_has_the_three_mechanisms_from_0_to_2():
    rubric = load_rubric("epitome")
    assert rubric.names() == list(MECHANISMS)
    assert all(dimension.scale == (0, 2) for dimension in rubric.dimensions)


def test_a_pair_that_occurs_twice_stays_twice_with_its_own_levels(tmp_path):
    conversion = read(put(tmp_path, [row(level="0"), row(rp="x"), row(level="2")]))
    assert [dialogue.id[-6:] for dialogue in conversion.dialogues] == ["i-e5t3", "zsfi-x", "e5t3-2"]
    first = [rating.value for rating in conversion.ratings if rating.dimension == "explorations"]
    assert first == [0, 0, 2]
    assert len({dialogue.meta["group"] for dialogue in conversion.dialogues}) == 1
    assert conversion.repairs == {"pair that occurs again: kept, with a number at the end of its id": 1}


def test_ids_stay_text_and_entities_stay_as_they_are(tmp_path):
    conversion = read(put(tmp_path, [row(sp="443e82", rp="007", post="a &gt; b &amp; c")]))
    assert conversion.dialogues[0].id == "epitome-443e82-007"
    assert conversion.dialogues[0].meta["sp_id"] == "443e82"
    assert said(conversion)[0][0] == ("seeker", "a &gt; b &amp; c")


def test_texts_that_differ_between_the_files_are_counted_and_the_first_is_kept(tmp_path):
    conversion = read(put(tmp_path, [row()], [row(post="I feel low!")], [row(response="sorry\n")]))
    assert said(conversion)[0] == [("seeker", "I feel low."), ("supporter", "I am sorry.")]
    assert conversion.repairs == {
        f"{what} differs between the files: that of emotional_reactions kept": 1
        for what in ("seeker_post", "response_post")
    }


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row(sp="other"), "sp_id and rp_id are not the same in the three files"),
        (row()[:4], "the interpretations file has 4 columns here, expected 6"),
    ],
)
def test_rows_that_do_not_fit_together_are_refused(tmp_path, bad, says):
    conversion = read(put(tmp_path, [row(rp="a"), row(), row(rp="c")], [row(rp="a"), bad, row(rp="c")]))
    if bad[0] == "other":  # the explorations file repeats the second table
        conversion = read(put(tmp_path, [row(rp="a"), row(), row(rp="c")], [row(rp="a"), bad, row(rp="c")]))
    (refusal,) = conversion.refused
    assert (refusal.where, refusal.turns) == (f"{tmp_path}: row 2", 2)
    assert says in refusal.reason
    assert [dialogue.meta["rp_id"] for dialogue in conversion.dialogues] == ["a", "c"]
    assert balanced(conversion)


def test_a_file_that_ends_early_leaves_the_rest_refused(tmp_path):
    conversion = read(put(tmp_path, [row(), row(rp="b", response=SECRET)], [row(), row(rp="b")], [row()]))
    (refusal,) = conversion.refused
    assert refusal.reason == "the explorations file has no such row"
    assert len(conversion.dialogues) == 1


@pytest.mark.parametrize("level", ["", "3", "-1", "1.0", "high", "²"])
def test_a_level_off_the_scale_is_no_value(tmp_path, level):
    conversion = read(put(tmp_path, [row(level=level)], [row(level=" 2 ")]))
    assert [rating.value for rating in conversion.ratings] == [None, 2, 2]
    assert conversion.ratings[0].reason == "off the scale 0..2 in the source"
    assert conversion.repairs == {"level off the scale 0..2: no value": 1}


@pytest.mark.parametrize(("more", "says"), [({"sp": " "}, "sp_id or rp_id is empty"), ({"post": " \n"}, "is empty")])
def test_rows_without_id_or_text_are_refused(tmp_path, more, says):
    assert says in read(put(tmp_path, [row(**more), row()])).refused[0].reason


def test_folders_that_are_not_the_three_files(tmp_path):
    with pytest.raises(UserError, match="file not found"):
        read(tmp_path / "absent")
    put(tmp_path, [row()])
    (tmp_path / NAMES[1]).rename(tmp_path / "other.csv")
    with pytest.raises(UserError, match="has 0 files with 'interpretation' in the name, expected one"):
        read(tmp_path)
    put(tmp_path, [row()], header=["a", "b"])
    with pytest.raises(UserError, match="its first line is not sp_id,rp_id"):
        read(tmp_path)
    put(tmp_path, [row()])
    (tmp_path / NAMES[0]).write_text(",".join(COLUMNS), encoding="utf-16")
    with pytest.raises(UserError, match="is UTF-16"):
        read(tmp_path)


def test_a_long_response_with_bom_newlines_and_quotes(tmp_path):
    long = 'a "quoted" line,\nand\u2028more ' * 9000 + "end"
    put(tmp_path, [row(response=long)])
    (tmp_path / NAMES[0]).write_bytes(b"\xef\xbb\xbf" + (tmp_path / NAMES[0]).read_bytes())
    assert said(read(tmp_path))[0][1] == ("supporter", long)


LEVELS = {
    "emotional_reactions": {0: 1523, 1: 668, 2: 106},
    "interpretations": {0: 1215, 1: 86, 2: 996},
    "explorations": {0: 1927, 1: 83, 2: 287},
}


def test_counts_of_the_real_files(real_data):
    conversion = read(real_data / "epitome")
    assert len(conversion.dialogues) == 2297
    assert conversion.turns_read == 2 * 2297
    assert not conversion.refused
    for mechanism, expected in LEVELS.items():
        assert Counter(r.value for r in conversion.ratings if r.dimension == mechanism) == expected
    assert len({(turns[0], turns[1]) for turns in said(conversion)}) == 2254
    assert len({turns[0] for turns in said(conversion)}) == 2225
    assert len({dialogue.id for dialogue in conversion.dialogues}) == 2297
    assert len({dialogue.meta["group"] for dialogue in conversion.dialogues}) == 2225
    assert "443e82" in {dialogue.meta["sp_id"] for dialogue in conversion.dialogues}
    assert max(len(turns[1][1]) for turns in said(conversion)) == 9191
    assert conversion.repairs == {
        "pair that occurs again: kept, with a number at the end of its id": 2297 - 2254,
        "response_post differs between the files: that of emotional_reactions kept": 333,
        "seeker_post differs between the files: that of emotional_reactions kept": 191,
    }
    check_ratings((("", rating) for rating in conversion.ratings), load_rubric("epitome"))


cells = st.one_of(texts, st.sampled_from(["0", "1", "2", "a", "b"]))
tables = st.lists(st.one_of(st.lists(cells, min_size=6, max_size=6), st.lists(cells, max_size=8)), max_size=4)


@settings(max_examples=150, deadline=None)
@given(tables, tables, st.booleans())
def test_whatever_comes_is_converted_or_refused(tmp_path_factory, first, second, same):
    folder = put(tmp_path_factory.mktemp("any"), first, first if same else second)
    converted_or_refused("epitome", folder)


@settings(max_examples=60, deadline=None)
@given(texts)
def test_any_text_as_a_file(tmp_path_factory, text):
    folder = put(tmp_path_factory.mktemp("any"), [row()])
    (folder / NAMES[1]).write_text(f"{','.join(COLUMNS)}\r\n{text}", encoding="utf-8", newline="")
    converted_or_refused("epitome", folder)


@settings(max_examples=100, deadline=None)
@given(texts.map(str.strip).filter(bool), texts.map(str.strip).filter(bool))
def test_no_character_of_a_clean_text_changes(tmp_path_factory, post, response):
    conversion = read(put(tmp_path_factory.mktemp("clean"), [row(post=post, response=response)]))
    assert said(conversion) == [[("seeker", post), ("supporter", response)]]
    assert not conversion.repairs
