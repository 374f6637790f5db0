import pytest
import yaml

from data_prep.errors import UserError
from data_prep.records import Rating
from data_prep.rubric import RUBRIC_FOLDER, check_ratings, known_rubrics, load_rubric


def rating(**changes) -> tuple[str, Rating]:
    values = {"dialogue_id": "d", "rater": "r", "rubric": "esc_eval", "dimension": "empathy", "value": 3, **changes}
    return "ratings.jsonl:7", Rating(**values)


def test_the_seven_dimensions_and_their_official_keys():
    rubric = load_rubric("esc_eval")
    assert {d.name: d.official_key for d in rubric.dimensions} == {
        "fluency": "fluency",
        "expression": "diversity",
        "empathy": "empathic",
        "information": "suggestion",
        "skillful": "tech",
        "humanoid": "human",
        "overall": "overall",
    }
    assert all(list(dimension.levels()) == [0, 1, 2, 3, 4] for dimension in rubric.dimensions)


@pytest.mark.parametrize("name", known_rubrics())
def test_every_shipped_rubric_loads_under_its_file_name(name):
    rubric = load_rubric(name)
    assert rubric.name == name
    assert len(rubric.sha) == 12


def test_sha_follows_the_content(tmp_path):
    content = yaml.safe_load((RUBRIC_FOLDER / "esconv_survey.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    assert load_rubric(str(path)).sha == load_rubric("esconv_survey").sha
    content["dimensions"][0]["anchors"][1]["en"] += "!"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    assert load_rubric(str(path)).sha != load_rubric("esconv_survey").sha


def test_unknown_rubric_suggests_the_nearest():
    with pytest.raises(UserError, match="unknown rubric 'esc_evel'; did you mean 'esc_eval'"):
        load_rubric("esc_evel")
    with pytest.raises(UserError, match=r"unknown rubric 'zzz'; known: .*esc_eval"):
        load_rubric("zzz")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["dimensions"][0].pop("scale"), r"dimensions\.0\.scale: found nothing"),
        (lambda c: c["dimensions"][0].update(scale=[5, 1]), "from low to high"),
        (lambda c: c["dimensions"][0]["anchors"].pop(3), "must explain exactly the levels 1..5"),
        (lambda c: c["dimensions"][0].update(name="Two Words"), r"dimensions\.0\.name"),
        (lambda c: c["dimensions"][1].update(name="empathy"), "the same name"),
        (lambda c: c.update(dimensions=[]), "dimensions"),
        (lambda c: c["dimensions"][0]["title"].pop("zh"), r"title\.zh: found nothing"),
        (lambda c: c.update(colour="red"), "colour"),
    ],
)
def test_a_rubric_that_is_none_names_file_and_field(tmp_path, change, says):
    content = yaml.safe_load((RUBRIC_FOLDER / "esconv_survey.yaml").read_text(encoding="utf-8"))
    change(content)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), encoding="utf-8")
    with pytest.raises(UserError, match=rf"mine\.yaml: .*{says}"):
        load_rubric(str(path))


def test_broken_yaml_names_the_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: a\nversion: [1\ndescription: b\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"mine\.yaml:\d+: not valid YAML"):
        load_rubric(str(path))


def test_good_and_missing_ratings_pass():
    check_ratings([rating(value=level) for level in (0, 4, None)], load_rubric("esc_eval"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"value": 5}, r"ratings\.jsonl:7: value 5 of empathy is off the scale 0\.\.4"),
        ({"value": -1}, r"value -1 of empathy is off the scale"),
        ({"value": 2.5}, r"value 2\.5 .*whole levels"),
        ({"dimension": "empathic"}, "dimension 'empathic' is not in rubric esc_eval; it has: fluency"),
        ({"rubric": "esconv_survey"}, "rating is for rubric 'esconv_survey', expected 'esc_eval'"),
    ],
)
def test_ratings_outside_the_rubric_are_refused(changes, says):
    with pytest.raises(UserError, match=says):
        check_ratings([rating(), rating(**changes)], load_rubric("esc_eval"))


def test_unknown_dimension_names_the_known():
    with pytest.raises(UserError, match="has no dimension 'warmth'; it has: empathy, relevance"):
        load_rubric("esconv_survey").dimension("warmth")
