"""Specs: refused keys and values are one sentence; overrides, arms and digests do what they say."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from driftlab.errors import SpecError
from driftlab.run.parts import MeasureSpec
from driftlab.run.plan import load_plan, parse_seeds, presets
from driftlab.run.spec import spec_digest

TOML = """
name = "t"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 4
max_new_tokens = 8
[es]
population = 4
iterations = 10
sigma = 0.02
"""


@pytest.fixture
def spec_file(tmp_path, monkeypatch):
    monkeypatch.delenv("DRIFTLAB_DATA", raising=False)
    file = tmp_path / "t.toml"
    file.write_text(TOML)
    return str(file)


def test_every_preset_loads():
    for name in presets():
        assert load_plan(name)


def test_resolved_defaults(spec_file):
    (planned,) = load_plan(spec_file)
    assert planned.spec.es.step_scale == 0.01
    assert planned.spec.measured_steps() == (0, 10)
    assert planned.folder == "es-s0"


def test_first_and_last_are_always_measured():
    assert MeasureSpec(every=4, at=(3,)).steps(10) == (0, 3, 4, 8, 10)


def test_overrides_and_arms(tmp_path):
    file = tmp_path / "arms.toml"
    file.write_text(TOML + '[arms.ES]\n[arms."ES+AWD-L2"]\nanchor = { penalty = "l2", lambda = 5.0 }\n')
    plain, anchored = load_plan(str(file), ["es.population=128", "seed=3"])
    assert (plain.spec.es.population, plain.spec.seed, plain.spec.decay) == (128, 3, 0.0)
    assert anchored.spec.decay == 0.05
    assert anchored.folder == "es-awd-l2-s3"
    assert anchored.given["anchor"] == {"penalty": "l2", "lambda": 5.0}
    (only,) = load_plan(str(file), [], ["ES+AWD-L2"])
    assert only.spec.arm == "ES+AWD-L2"


def test_data_comes_from_the_environment_and_is_not_in_the_digest(spec_file, monkeypatch):
    (without,) = load_plan(spec_file)
    monkeypatch.setenv("DRIFTLAB_DATA", "/somewhere")
    (planned,) = load_plan(spec_file)
    assert str(planned.spec.data) == "/somewhere"
    assert planned.spec.digest() == without.spec.digest()


def test_digest_changes_with_any_number_and_survives_json(spec_file):
    (one,) = load_plan(spec_file)
    (other,) = load_plan(spec_file, ["es.sigma=0.021"])
    assert one.spec.digest() != other.spec.digest()
    assert spec_digest(json.loads(json.dumps(one.spec.as_dict()))) == one.spec.digest()


def test_frozen(spec_file):
    (planned,) = load_plan(spec_file)
    with pytest.raises(ValidationError):
        planned.spec.es.population = 5


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("es.popultion=5", "did you mean 'es.population'"),
        ("es.population=1", "use 2 or more"),
        ("es={population=5, iterations=2, sigma=0.1, mirrored=true}", "use an even number"),
        ('anchor={penalty="l2", lambda=100.0}', r"alpha\*lambda is 1, but L2"),
        ("anchor.lambda=1.0", "set anchor.penalty"),
        ("measure.at=[11]", "the run ends at step 10"),
        ('target.task="embedded_countdwn"', "embedded_countdown"),
        ("es.sigma=-1", "es.sigma"),
        ("es.sigma=nan", "es.sigma"),
        ("es.iterations=0.5", "es.iterations"),
        ("nonsense", "--set takes key=value"),
        ("seed=-1", "seed"),
        ('name="../elsewhere"', "name"),
        ('control="shuffled"', "control in .* is 'shuffled'.*'shuffled-reward'"),
    ],
)
def test_bad_input_is_one_sentence(spec_file, override, sentence):
    with pytest.raises(SpecError, match=sentence) as caught:
        load_plan(spec_file, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("control", ["random-direction", "base"])
def test_a_control_without_rollouts_takes_no_anchor(spec_file, control):
    chosen = f'control="{control}"'
    (planned,) = load_plan(spec_file, [chosen])
    assert planned.spec.rolls_out is False
    with pytest.raises(SpecError, match=f"a {control} arm takes no anchor: give this arm anchor = ") as caught:
        load_plan(spec_file, [chosen, 'anchor={penalty="l1", lambda=0.1}'])
    assert "\n" not in str(caught.value)
    # The advice in the sentence works.
    load_plan(spec_file, ['anchor={penalty="l1", lambda=0.1}', chosen, 'anchor={ penalty = "none", lambda = 0.0 }'])


def test_controls_and_mirrored_members(spec_file):
    for control in ("shuffled-reward", "base"):
        load_plan(spec_file, [f'control="{control}"', "es.mirrored=true"])
    with pytest.raises(SpecError, match=r"no mirrored members: set es\.mirrored to false"):
        load_plan(spec_file, ['control="random-direction"', "es.mirrored=true"])


def test_a_control_is_an_arm_like_any_other(tmp_path):
    file = tmp_path / "arms.toml"
    file.write_text(TOML + '[arms.ES]\n[arms."shuffled reward"]\ncontrol = "shuffled-reward"\n')
    es, walk = load_plan(str(file))
    assert (es.spec.control, walk.spec.control) == ("none", "shuffled-reward")
    assert walk.folder == "shuffled-reward-s0"
    differing = {key for key in es.spec.as_dict() if es.spec.as_dict()[key] != walk.spec.as_dict()[key]}
    assert differing == {"arm", "control"}


def test_seeds_come_seed_by_seed_with_the_arms_within(tmp_path):
    file = tmp_path / "arms.toml"
    file.write_text("seed = 9\n" + TOML + '[arms.ES]\n[arms."ES+AWD"]\nanchor={penalty="l2", lambda=1.0}\n')
    folders = [planned.folder for planned in load_plan(str(file), [], [], [5, 0])]
    assert folders == ["es-s5", "es-awd-s5", "es-s0", "es-awd-s0"]
    assert [planned.given["seed"] for planned in load_plan(str(file), [], ["ES"], [5, 0])] == [5, 0]
    assert [planned.spec.seed for planned in load_plan(str(file))] == [9, 9]
    one, other = load_plan(str(file), [], ["ES"], [0, 1])
    assert one.spec.model_copy(update={"seed": 1}) == other.spec


def test_seeds_named_twice_over_are_refused(spec_file):
    with pytest.raises(SpecError, match="both name the seed"):
        load_plan(spec_file, ["es.population=6", " seed =3"], [], [0, 1])
    with pytest.raises(SpecError, match="same folder 'es-s1'"):
        load_plan(spec_file, [], [], [1, 1])


def test_seeds_are_read():
    assert parse_seeds("0, 12,3 ") == (0, 12, 3)


@pytest.mark.parametrize("text", ["", " ", "0,", "0,,1", "a", "0;1", "1.0", "-1", "+1", "1_0", "٣", "9" * 5000])
def test_what_is_no_list_of_seeds_is_one_sentence(text):
    with pytest.raises(SpecError, match="--seeds takes whole numbers") as caught:
        parse_seeds(text)
    assert "\n" not in str(caught.value)


def test_a_seed_that_stands_twice_is_refused():
    with pytest.raises(SpecError, match="names seed 1 more than once"):
        parse_seeds("0,1,01")


def test_unknown_preset_names_the_nearest():
    with pytest.raises(SpecError, match="did you mean 'nano-awd'"):
        load_plan("nano-adw")


def test_missing_key(tmp_path):
    file = tmp_path / "m.toml"
    file.write_text(TOML.replace("sigma = 0.02", ""))
    with pytest.raises(SpecError, match=r"lacks 'es.sigma'"):
        load_plan(str(file))


def test_l2_decay_just_below_one_is_allowed(spec_file):
    (planned,) = load_plan(spec_file, ['anchor={penalty="l2", lambda=99.0}'])
    assert planned.spec.decay == pytest.approx(0.99)


def test_arms_that_would_share_a_folder_or_are_no_tables_are_refused(tmp_path):
    file = tmp_path / "arms.toml"
    file.write_text(TOML + '[arms."ES+AWD"]\n[arms."ES-AWD"]\n')
    with pytest.raises(SpecError, match="same folder 'es-awd-s0'"):
        load_plan(str(file))
    file.write_text(TOML + "[arms]\nES = 3\n")
    with pytest.raises(SpecError, match="must be a table"):
        load_plan(str(file))


def test_bytes_that_are_no_text_are_refused(tmp_path):
    file = tmp_path / "latin.toml"
    file.write_bytes(b'name = "\xff"\n' + TOML.replace('name = "t"', "").encode())
    with pytest.raises(SpecError, match=r"latin\.toml is not UTF-8 text \(byte 8 is wrong\)"):
        load_plan(str(file))
