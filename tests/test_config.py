"""Settings: TOML there and back, recipes and their bases, and what a wrong one is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce.config import (
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    RunConfig,
    TrainingConfig,
    from_tables,
    read_config,
    to_toml,
)
from bnce.errors import UserError
from bnce.kinds.bodies import BODIES
from bnce.kinds.losses import LOSSES
from bnce.recipes.recipe import load_recipe, recipe_names


def refusal(name: str, *, model: str | None = None, loss: str | None = None, settings: tuple[str, ...] = ()) -> str:
    with pytest.raises(UserError) as caught:
        load_recipe(name, model=model, loss=loss, settings=settings)
    return str(caught.value)


def write(directory: Path, name: str, text: str) -> str:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


# There and back.


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=st.text(), corpus=st.text(), rate=st.floats(1e-300, 1e38), power=st.floats(-1e9, 1e9))
def test_round_trip(tmp_path: Path, recipe: str, corpus: str, rate: float, power: float) -> None:
    before = RunConfig(
        recipe=recipe,
        corpus=corpus,
        optimiser=OptimiserConfig(learning_rate=rate),
        loss=LossConfig(noise_power=power, learn_log_z=True),
    )
    path = tmp_path / "config.toml"
    path.write_text(to_toml(before), encoding="utf-8")
    # NaN is not equal to itself, but it is written as it is read.
    assert repr(read_config(path)) == repr(before)


@pytest.mark.parametrize(
    "text", ['"', "\\", "a\\u0041", "\n\r\t\0\x7f", "'''", '"""', "# no comment", "ü–日本", "\u2028"]
)
def test_odd_strings_round_trip(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(to_toml(RunConfig(corpus=text)), encoding="utf-8")
    assert read_config(path).corpus == text


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("model", BODIES.names)
@pytest.mark.parametrize("loss", LOSSES.names)
def test_every_shipped_recipe_loads_for_every_model_and_loss(
    tmp_path: Path, recipe: str, model: str, loss: str
) -> None:
    loaded = load_recipe(recipe, model=model, loss=loss)
    assert (loaded.recipe, loaded.model.name, loaded.loss.name) == (recipe, model, loss)
    assert (loaded.loss.num_noise > 0) == (loss in ("nce", "snce"))
    path = tmp_path / "config.toml"
    path.write_text(to_toml(loaded), encoding="utf-8")
    assert read_config(path) == loaded


# The paper's figures.


@pytest.mark.parametrize("model", BODIES.names)
def test_ltcb_is_the_paper(model: str) -> None:
    """Section 4.2 and Table 1."""
    loaded = load_recipe("ltcb", model=model, loss="bnce")
    sizes = (loaded.model.embedding_size, loaded.model.hidden_size, loaded.model.bottleneck_size, loaded.model.order)
    assert sizes == (200, 600, 400, 5)
    assert loaded.model.dropout == 0.0
    assert loaded.loss == LossConfig(
        "bnce", num_noise=0, log_z=9.0, learn_log_z=False, noise="unigram", noise_power=1.0
    )
    optimiser = loaded.optimiser
    assert (optimiser.name, optimiser.learning_rate, optimiser.clip_norm) == ("sgd", 0.4, 5.0)
    assert (optimiser.schedule, optimiser.patience, optimiser.gradient) == ("halve", 7, "streams")
    assert loaded.training.batch_size == 400
    assert load_recipe("ltcb", loss="snce").loss.num_noise == 100
    assert load_recipe("ltcb", loss="nce").loss.num_noise == 100


@pytest.mark.parametrize("model", BODIES.names)
def test_obwb_is_the_paper(model: str) -> None:
    """Section 4.3 and Table 3: "similar to LTCB with minor differences"."""
    loaded, ltcb = load_recipe("obwb", model=model), load_recipe("ltcb", model=model)
    sizes = (loaded.model.embedding_size, loaded.model.hidden_size, loaded.model.bottleneck_size, loaded.model.order)
    assert sizes == (500, 1500, 600, 5)
    assert loaded.optimiser == dataclasses.replace(ltcb.optimiser, learning_rate=1.0)
    assert loaded.training.batch_size == 500
    assert loaded.loss == ltcb.loss
    assert load_recipe("obwb", loss="snce").loss.num_noise == 200


# Recipes and their bases.


def test_a_recipe_names_one_base(tmp_path: Path) -> None:
    """What it says goes before what its base says, table by table and key by key."""
    write(
        tmp_path, "below.toml", 'base = "ltcb"\n[model]\nhidden_size = 7\ndropout = 0.5\n[losses.snce]\nnum_noise = 3\n'
    )
    name = write(
        tmp_path,
        "above.toml",
        'base = "below.toml"\ncorpus = "here"\n[model]\nhidden_size = 8\n[models.rnn]\nembedding_size = 9\n',
    )
    loaded = load_recipe(name, model="rnn", loss="snce")
    assert (loaded.recipe, loaded.corpus) == ("above", "here")
    assert (loaded.model.hidden_size, loaded.model.dropout, loaded.model.embedding_size) == (8, 0.5, 9)
    assert loaded.loss.num_noise == 3
    assert loaded.training.batch_size == 400, "from ltcb, two bases below"
    assert load_recipe(name, model="lstm").model.embedding_size == 200, "what [models.rnn] says is for rnn"


def test_a_model_and_a_loss_may_have_rates_of_their_own(tmp_path: Path) -> None:
    """The loss's go before the model's, and a setting before both."""
    name = write(
        tmp_path,
        "own.toml",
        'base = "wiki"\n[models.rnn]\nhidden_size = 7\n[models.rnn.optimiser]\nlearning_rate = 0.1\n'
        "body_learning_rate = 0.2\n[losses.softmax.optimiser]\nlearning_rate = 0.3\n",
    )

    def rates(*, model: str, loss: str, settings: tuple[str, ...] = ()) -> tuple[float, float]:
        optimiser = load_recipe(name, model=model, loss=loss, settings=settings).optimiser
        return optimiser.learning_rate, optimiser.body_learning_rate

    assert load_recipe(name, model="rnn").model.hidden_size == 7
    assert rates(model="lstm", loss="bnce") == (0.4, 0.004)
    assert rates(model="rnn", loss="bnce") == (0.1, 0.2)
    assert rates(model="rnn", loss="softmax") == (0.3, 0.2)
    assert rates(model="rnn", loss="softmax", settings=("optimiser.learning_rate=0.5",)) == (0.5, 0.2)


def test_a_base_stands_beside_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the recipe's own file is called, and wherever the command runs."""
    write(tmp_path, "below", "[model]\nhidden_size = 7\n")
    name = write(tmp_path, "above", 'base = "below"\n')
    monkeypatch.chdir("/")
    assert load_recipe(name).model.hidden_size == 7


def test_a_shipped_recipe_takes_no_file_for_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load_recipe("demo")
    write(tmp_path, "wiki", "[model]\nhidden_size = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_recipe("demo") == expected


@pytest.mark.parametrize(
    ("first", "second"), [("b.toml", "a.toml"), ("./b.toml", "../x/a.toml"), ("../x/b.toml", "../x/a.toml")]
)
def test_a_circle_of_bases_is_refused(tmp_path: Path, first: str, second: str) -> None:
    name = write(tmp_path, "x/a.toml", f'base = "{first}"\n')
    write(tmp_path, "x/b.toml", f'base = "{second}"\n')
    assert "is its own base (" in refusal(name)
    assert refusal(name).endswith("): give another base.")


def test_its_own_base_is_refused(tmp_path: Path) -> None:
    name = write(tmp_path, "a.toml", 'base = "a.toml"\n')
    assert refusal(name) == f"Recipe '{name}' is its own base ({name} → {name}): give another base."


def test_the_defaults_are_the_recipe_s_own_model_and_loss(tmp_path: Path) -> None:
    name = write(tmp_path, "a.toml", '[model]\nname = "rnn"\n[loss]\nname = "softmax"\n')
    loaded = load_recipe(name)
    assert (loaded.model.name, loaded.loss.name) == ("rnn", "softmax")
    assert load_recipe(name, model="ffnn").model.name == "ffnn"


# --set key=value.


@pytest.mark.parametrize(
    ("setting", "section", "key", "value"),
    [
        ("training.epochs=3", "training", "epochs", 3),
        (" training.epochs = 3 ", "training", "epochs", 3),
        ("optimiser.learning_rate=1", "optimiser", "learning_rate", 1.0),
        ("optimiser.learning_rate=1e-3", "optimiser", "learning_rate", 0.001),
        ("loss.learn_log_z=true", "loss", "learn_log_z", True),
        ("loss.noise=uniform", "loss", "noise", "uniform"),
        ('loss.noise="uniform"', "loss", "noise", "uniform"),
    ],
)
def test_settings_go_on_top(setting: str, section: str, key: str, value: object) -> None:
    found = getattr(getattr(load_recipe("ltcb", settings=[setting]), section), key)
    assert found == value
    assert type(found) is type(value)


def test_the_last_setting_wins() -> None:
    assert load_recipe("ltcb", settings=["training.epochs=3", "training.epochs=4"]).training.epochs == 4


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("epochs=3", "settings received 'epochs=3': write it as section.key=value, such as training.epochs=3."),
        (
            "training.epochs",
            "settings received 'training.epochs': write it as section.key=value, such as training.epochs=3.",
        ),
        ("", "settings received '': write it as section.key=value, such as training.epochs=3."),
        (
            "trainin.epochs=3",
            "Unknown section 'trainin': choose one of model, loss, optimiser, training. Did you mean 'training'?",
        ),
        (
            "model.hiden_size=3",
            "Unknown setting in ltcb: [model]: 'hiden_size': choose one of name, embedding_size, hidden_size, "
            "bottleneck_size, order, dropout. Did you mean 'hidden_size'?",
        ),
        ("training.epochs=three", "ltcb: [training] epochs is 'three': it must be of type int."),
        ("training.epochs=3.0", "ltcb: [training] epochs is 3.0: it must be of type int."),
        ("training.epochs=true", "ltcb: [training] epochs is True: it must be of type int."),
        ("training.epochs=", "ltcb: [training] epochs is '': it must be of type int."),
        ("model.dropout=true", "ltcb: [model] dropout is True: it must be of type float."),
        ("loss.log_z=1e12", "loss.log_z is 1000000000000.0: it must be from -100 to 100."),
        ("loss.log_z=nan", "loss.log_z is nan: it must be from -100 to 100."),
        ("loss.learn_log_z=1", "ltcb: [loss] learn_log_z is 1: it must be of type bool."),
        ("loss.noise=3", "ltcb: [loss] noise is 3: it must be of type str."),
        ("model.name=rnn", "settings received 'model.name=rnn': the model has an argument of its own, give it there."),
        ("loss.name=bnce", "settings received 'loss.name=bnce': the loss has an argument of its own, give it there."),
    ],
)
def test_bad_settings_are_told(setting: str, sentence: str) -> None:
    assert refusal("ltcb", settings=(setting,)) == sentence


# Values that cannot be.


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("model.hidden_size=0", "model.hidden_size is 0: it must be at least 1."),
        ("model.embedding_size=-1", "model.embedding_size is -1: it must be at least 1."),
        ("model.bottleneck_size=0", "model.bottleneck_size is 0: it must be at least 1."),
        ("model.order=1", "model.order is 1: it must be at least 2."),
        ("model.dropout=1.0", "model.dropout is 1.0: it must be at least 0 and below 1."),
        ("model.dropout=nan", "model.dropout is nan: it must be at least 0 and below 1."),
        ("loss.num_noise=-1", "loss.num_noise is -1: it must be at least 0."),
        ("loss.noise=zipf", "Unknown noise 'zipf': choose one of unigram, uniform, log-uniform."),
        ("optimiser.name=adam", "Unknown optimiser 'adam': choose one of sgd, rowwise."),
        (
            "optimiser.schedule=half",
            "Unknown optimiser.schedule 'half': choose one of halve, linear, cosine. Did you mean 'halve'?",
        ),
        (
            "optimiser.gradient=token",
            "Unknown optimiser.gradient 'token': choose one of streams, tokens. Did you mean 'tokens'?",
        ),
        ("optimiser.learning_rate=0", "optimiser.learning_rate is 0.0: it must be above 0 and at most 1e+38."),
        ("optimiser.learning_rate=nan", "optimiser.learning_rate is nan: it must be above 0 and at most 1e+38."),
        (
            "optimiser.body_learning_rate=-1",
            "optimiser.body_learning_rate is -1.0: it must be above 0 and at most 1e+38.",
        ),
        ("optimiser.clip_norm=0", "optimiser.clip_norm is 0.0: it must be above 0 and at most 1e+38."),
        ("optimiser.patience=0", "optimiser.patience is 0: it must be at least 1."),
        ("optimiser.warmup_steps=-1", "optimiser.warmup_steps is -1: it must be at least 0."),
        ("training.batch_size=0", "training.batch_size is 0: it must be at least 1."),
        ("training.num_steps=0", "training.num_steps is 0: it must be at least 1."),
        ("training.epochs=0", "training.epochs is 0: it must be at least 1."),
        ("training.evaluations_per_epoch=0", "training.evaluations_per_epoch is 0: it must be at least 1."),
        ("training.max_train_tokens=-1", "training.max_train_tokens is -1: it must be at least 0."),
        ("training.max_valid_tokens=-1", "training.max_valid_tokens is -1: it must be at least 0."),
        ("training.seed=-1", "training.seed is -1: it must be at least 0."),
        ("training.checkpoint_seconds=0", "training.checkpoint_seconds is 0.0: it must be above 0."),
    ],
)
def test_impossible_values_are_told(setting: str, sentence: str) -> None:
    assert refusal("ltcb", settings=(setting,)) == sentence


@pytest.mark.parametrize("loss", ["nce", "snce"])
def test_drawn_noise_needs_noise_words(loss: str) -> None:
    assert refusal("ltcb", loss=loss, settings=("loss.num_noise=0",)) == (
        f"loss.num_noise of {loss} is 0: it must be at least 1."
    )


def test_adaptive_bnce_is_bnce_with_noise_words() -> None:
    assert load_recipe("ltcb", loss="bnce", settings=["loss.num_noise=50"]).loss.num_noise == 50


# Names and files that cannot be.


def test_unknown_names_suggest_the_near_one() -> None:
    assert refusal("ltbc") == (
        f"Unknown recipe 'ltbc': choose one of {', '.join(recipe_names())}. Did you mean 'ltcb'?"
    )
    assert refusal("ltcb", model="lsmt") == (
        "Unknown model 'lsmt': choose one of ffnn, rnn, relu-rnn, lstm, relu-lstm. Did you mean 'lstm'?"
    )
    assert refusal("ltcb", loss="b-nce") == (
        f"Unknown loss 'b-nce': choose one of {', '.join(LOSSES.names)}. Did you mean 'bnce'?"
    )


@pytest.mark.parametrize("name", ["missing.toml", "./missing", "a/b"])
def test_a_missing_file_is_told(name: str) -> None:
    assert refusal(name) == (
        f"The recipe file '{name}' does not exist: give a TOML file or one of {', '.join(recipe_names())}."
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[model", "'{name}' is not valid TOML: "),
        (
            "optimizer = 3",
            "Unknown key in {name}: 'optimizer': choose one of model, loss, optimiser, training, models, ",
        ),
        ("[models.gpt]", "Unknown model in {name}: [models]: 'gpt': choose one of ffnn, rnn, "),
        (
            "[losses.bnc]",
            "Unknown loss in {name}: [losses]: 'bnc': choose one of softmax, nce, snce, ",
        ),
        ("[model]\nwidth = 3", "Unknown setting in {name}: [model]: 'width': choose one of name, "),
        ("[model]\nname = 3", "Unknown model '3': choose one of ffnn, "),
        ("model = 3", "{name}: [model] must be a table of settings, not 3."),
        ("models = 3", "{name}: [models] must be a table of settings, not 3."),
        ("[models]\nrnn = 3", "{name}: [models.rnn] must be a table of settings, not 3."),
        ("[models.rnn]\noptimiser = 3", "{name}: [models.rnn.optimiser] must be a table of settings, not 3."),
        (
            "[models.relu-lstm.optimiser]\nrate = 3",
            "Unknown setting in {name}: [optimiser]: 'rate': choose one of name, ",
        ),
        ("corpus = 3", "{name}: corpus is 3: it must be of type str."),
        ("base = 3", "{name}: base is 3: it must be the name or the path of one recipe."),
        (
            'base = "ltcb"\n[model]\nhidden_size = {a = 1}',
            "{name}: [model] hidden_size is {{'a': 1}}: it must be of type int.",
        ),
        ('base = "nowhere"', "Unknown recipe 'nowhere': choose one of "),
    ],
)
def test_bad_recipes_are_told(tmp_path: Path, text: str, sentence: str) -> None:
    name = write(tmp_path, "a.toml", text)
    assert refusal(name, settings=()).startswith(sentence.format(name=name))


def test_a_recipe_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(str(path)).startswith(f"'{path}' is not valid TOML: ")
    with pytest.raises(UserError, match="is not valid TOML"):
        read_config(path)


@pytest.mark.parametrize("missing", ["recipe", "corpus", "model", "loss", "optimiser", "training"])
def test_a_run_s_config_that_was_cut_short_is_refused(tmp_path: Path, missing: str) -> None:
    whole = to_toml(load_recipe("demo"))
    cut = whole[: whole.index(f"[{missing}]" if f"[{missing}]" in whole else f"{missing} = ")]
    with pytest.raises(UserError, match=f"is cut short or damaged: it has no '{missing}'. Restore it"):
        read_config(write(tmp_path, "config.toml", cut))


def test_a_run_s_config_knows_no_recipe_keys() -> None:
    with pytest.raises(UserError, match=r"Unknown key in config.toml: 'base': choose one of model, loss, "):
        from_tables({"base": "ltcb"}, "config.toml")


def test_configs_are_frozen() -> None:
    for kind in (ModelConfig, LossConfig, OptimiserConfig, TrainingConfig, RunConfig):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(kind(), dataclasses.fields(kind)[0].name, "other")


class TestCorpora:
    def test_demo_cuts_its_own_text_alone(self, tmp_path: Path) -> None:
        assert load_recipe("demo").training.max_train_tokens == 400_000
        assert load_recipe("demo", corpus="docstrings").training.max_train_tokens == 400_000
        assert load_recipe("demo", corpus="corpora/mine").training.max_train_tokens == 0
        assert load_recipe("demo", corpus="corpora/mine").corpus == "corpora/mine"
        own = tmp_path / "own.toml"
        own.write_text('base = "demo"\ncorpus = "corpora/mine"\n')
        assert load_recipe(str(own)).training.max_train_tokens == 0
        own.write_text('base = "demo"\n[corpora.mine]\nepochs = 7\n')
        assert load_recipe(str(own), corpus="mine").training.epochs == 7
        assert load_recipe(str(own), corpus="mine", settings=["training.epochs=2"]).training.epochs == 2

    @pytest.mark.parametrize("name", recipe_names())
    def test_no_recipe_cuts_another_text(self, name: str) -> None:
        assert load_recipe(name, corpus="corpora/mine").training.max_train_tokens == 0

    def test_what_is_no_table_of_settings_is_refused(self, tmp_path: Path) -> None:
        own = tmp_path / "own.toml"
        for text, message in (
            ("corpora = 3", r"\[corpora\] must be a table of settings"),
            ("[corpora]\nmine = 3", r"\[corpora.mine\] must be a table of settings"),
            ('corpus = "mine"\n[corpora.mine]\nepoch = 3', "Unknown setting in .*'epoch'"),
        ):
            own.write_text(text)
            with pytest.raises(UserError, match=message):
                load_recipe(str(own))
