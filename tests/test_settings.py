"""Settings: TOML there and back, changed one by one, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bnce import LOSSES, MODELS, AdaptiveSoftmax, Chunk, Nce, SampledSoftmax, Softmax, UserError
from bnce.recipes import load_recipe
from bnce.registry import Ffnn, Lstm, Record, RowwiseAdamConfig, Transformer
from bnce.settings import RunConfig, Setting, from_tables, read_config, to_tables, to_toml


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
@given(recipe=st.text(), corpus=st.text(), rate=st.floats(1e-300, 1e38), power=st.floats(-10, 10))
def test_round_trip(tmp_path: Path, recipe: str, corpus: str, rate: float, power: float) -> None:
    before = RunConfig(
        recipe=recipe,
        corpus=corpus,
        optimiser=RowwiseAdamConfig(learning_rate=rate),
        loss=Nce(noise_power=power, learn_log_z=True),
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


# --set key=value.


@pytest.mark.parametrize(
    ("setting", "section", "key", "value"),
    [
        ("training.epochs=3", "training", "epochs", 3.0),
        ("training.epochs=0.5", "training", "epochs", 0.5),
        (" training.epochs = 3 ", "training", "epochs", 3.0),
        ("optimiser.learning_rate=1", "optimiser", "learning_rate", 1.0),
        ("optimiser.learning_rate=1e-3", "optimiser", "learning_rate", 0.001),
        ("loss.learn_log_z=true", "loss", "learn_log_z", True),
        ("training.precision=bf16", "training", "precision", "bf16"),
        ('training.precision="bf16"', "training", "precision", "bf16"),
        (("training.epochs", 2), "training", "epochs", 2.0),
    ],
)
def test_settings_go_on_top(setting: Setting, section: str, key: str, value: object) -> None:
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
            "Unknown setting in ltcb: [model]: 'hiden_size': choose one of embedding_size, hidden_size, dropout, "
            "num_layers, bottleneck_size. Did you mean 'hidden_size'?",
        ),
        (
            "model.order=3",
            "Unknown setting in ltcb: [model]: 'order': choose one of embedding_size, hidden_size, dropout, "
            "num_layers, bottleneck_size.",
        ),
        (
            "optimiser.eps=1e-6",
            "Unknown setting in ltcb: [optimiser]: 'eps': choose one of learning_rate, clip_norm, gradient, schedule, "
            "patience, warmup_steps.",
        ),
        (
            "loss.beta=1",
            "Unknown setting in ltcb: [loss]: 'beta': choose one of log_z, learn_log_z, num_noise.",
        ),
        ("training.epochs=three", "training.epochs is 'three': it must be a number."),
        ("training.epochs=true", "training.epochs is True: it must be a number."),
        ("training.epochs=", "training.epochs is '': it must be a number."),
        ("training.batch_size=2.5", "training.batch_size is 2.5: it must be a whole number."),
        ("training.budget_seconds=10 min", "training.budget_seconds is '10 min': it must be a number."),
        ("model.dropout=true", "model.dropout is True: it must be a number."),
        ("loss.log_z=1e12", "loss.log_z is 1000000000000.0: it must be a number <= 100.0."),
        ("loss.learn_log_z=1", "loss.learn_log_z is 1: it must be true or false."),
        ("training.precision=3", "training.precision is 3: it must be text."),
        ("model.name=rnn", "settings received 'model.name=rnn': the model has its own argument, so use that one."),
        ("loss.name=bnce", "settings received 'loss.name=bnce': the loss has its own argument, so use that one."),
        (
            "optimiser.name=adam",
            "Unknown optimiser 'adam': choose one of sgd, rowwise, rowwise-adam. Did you mean 'rowwise-adam'?",
        ),
        (
            "optimiser.schedule=half",
            "Unknown optimiser.schedule 'half': choose one of halve, linear, cosine. Did you mean 'halve'?",
        ),
        (
            "optimiser.gradient=token",
            "Unknown optimiser.gradient 'token': choose one of streams, tokens. Did you mean 'tokens'?",
        ),
    ],
)
def test_bad_settings_are_told(setting: str, sentence: str) -> None:
    assert refusal("ltcb", settings=(setting,)) == sentence


# Values that cannot be.

OUT_OF_RANGE = {
    "a whole number >= 1": """
        model.hidden_size=0 model.embedding_size=-1 model.bottleneck_size=0 optimiser.patience=0
        training.batch_size=0 training.num_steps=0 training.evaluations_per_epoch=0 model.num_layers=0
    """,
    "a whole number >= 0": """
        loss.num_noise=-1 optimiser.warmup_steps=-1 training.max_train_tokens=-1 training.max_valid_tokens=-1
        training.seed=-1
    """,
    "a number >= 0.0": """
        model.dropout=-0.1 model.dropout=nan training.reset_rate=-1 training.budget_seconds=-1
        training.budget_seconds=nan
    """,
    "a number < 1.0": "model.dropout=1.0",
    "a number <= 1.0": "training.reset_rate=1.5",
    "a number >= -100.0": "loss.log_z=-101 loss.log_z=nan",
    "a number > 0.0": """
        optimiser.learning_rate=0.0 optimiser.learning_rate=nan optimiser.clip_norm=0.0 training.epochs=0
        training.epochs=-0.5 training.epochs=nan training.checkpoint_seconds=0.0
    """,
    "a whole number <= 2147483647": "model.hidden_size=9999999999",
    "a number <= 2147483647.0": "training.epochs=inf",
    "a number <= 1e+38": "optimiser.learning_rate=inf training.budget_seconds=inf",
}


@pytest.mark.parametrize(("rule", "settings"), OUT_OF_RANGE.items())
def test_values_out_of_range_are_told(rule: str, settings: str) -> None:
    for setting in settings.split():
        key, value = setting.split("=")
        assert refusal("ltcb", settings=(setting,)) == f"{key} is {value}: it must be {rule}."


@pytest.mark.parametrize("loss", ["nce", "snce", "sampled-softmax"])
def test_drawn_noise_needs_noise_words(loss: str) -> None:
    told = refusal("ltcb", loss=loss, settings=("loss.num_noise=0",))
    assert told == "loss.num_noise is 0: it must be a whole number >= 1."


@pytest.mark.parametrize(
    ("record", "settings", "sentence"),
    [
        (Nce, {"noise": "zipf"}, "Unknown loss.noise 'zipf': choose one of unigram, uniform, log-uniform."),
        (Nce, {"noise_power": 1e300}, "loss.noise_power is 1e+300: it must be a number <= 10.0."),
        (Nce, {"num_noise": 0}, "loss.num_noise is 0: it must be a whole number >= 1."),
        (Chunk, {"beta": 1.5}, "loss.beta is 1.5: it must be a number <= 1.0."),
        (Chunk, {"penalty": -1}, "loss.penalty is -1: it must be a number >= 0.0."),
        (Ffnn, {"order": 1}, "model.order is 1: it must be a whole number >= 2."),
        (RowwiseAdamConfig, {"eps": 0.0}, "optimiser.eps is 0.0: it must be a number >= 1e-20."),
        (AdaptiveSoftmax, {"cutoffs": 3}, "loss.cutoffs is 3: it must be a list."),
        (AdaptiveSoftmax, {"cutoffs": (1, "x")}, "loss.cutoffs is (1, 'x'): it must be a whole number - at `$[1]`."),
        (AdaptiveSoftmax, {"cutoffs": (9, 3)}, "loss.cutoffs is [9, 3]: give rising numbers from 1 on."),
        *(
            (record, {"learn_log_z": True, **settings}, "loss.learn_log_z is on, but {} has no constant Z as it is set")
            for record, settings in ((Softmax, {}), (SampledSoftmax, {}), (Chunk, {"beta": 0.0}))
        ),
    ],
)
def test_what_a_record_is_not_made_with(record: type[Record], settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        record(**settings)
    assert str(caught.value).startswith(sentence.format(record.__struct_config__.tag))


def test_what_is_learned_is_held() -> None:
    assert Softmax(penalty=0.1, learn_log_z=True).normalises
    assert Chunk(beta=0.5).normalises
    assert not Chunk(beta=0, penalty=0).normalises


def test_a_record_shows_what_is_not_as_usual() -> None:
    assert repr(Nce(num_noise=5, log_z=9)) == "Nce(num_noise=5)"
    assert Chunk(beta=1) == Chunk()
    assert Chunk(beta=1).name == "chunk"


# A run's config.toml.


@pytest.mark.parametrize("missing", ["recipe", "corpus", "model", "loss", "optimiser", "training"])
def test_a_run_s_config_that_was_cut_short_is_refused(tmp_path: Path, missing: str) -> None:
    whole = to_toml(load_recipe("demo"))
    cut = whole[: whole.index(f"[{missing}]" if f"[{missing}]" in whole else f"{missing} = ")]
    with pytest.raises(UserError, match=f"is cut short or damaged: it has no '{missing}'. Restore it"):
        read_config(write(tmp_path, "config.toml", cut))


def test_a_run_s_config_knows_no_recipe_keys() -> None:
    with pytest.raises(UserError, match=r"Unknown setting in config.toml: 'base': choose one of recipe, corpus, "):
        from_tables({"base": "ltcb"}, "config.toml")


def test_settings_are_frozen() -> None:
    for record in (RunConfig().model, RunConfig().loss, RunConfig().optimiser, RunConfig().training, RunConfig()):
        with pytest.raises(AttributeError):
            record.seed = 3  # type: ignore[union-attr]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_has_few_settings(model: str, loss: str) -> None:
    tables = to_tables(load_recipe("wiki", model=model, loss=loss, settings=["optimiser.name=rowwise-adam"]))
    assert sum(len(table) for table in tables.values() if isinstance(table, dict)) <= 40


# Numbers that the model chooses where they are 0.


def test_a_run_shows_the_numbers_that_were_chosen() -> None:
    settled = RunConfig(model=Transformer(hidden_size=512)).model
    assert settled == Transformer(hidden_size=512, num_layers=6, num_heads=8, context=20)
    assert RunConfig(model=Lstm()).model == Lstm(num_layers=1)


def test_other_formats_of_what_runs_write(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    deep = RunConfig(model=Lstm(num_layers=6))
    path.write_text(to_toml(deep), encoding="utf-8")
    assert read_config(path) == deep
    for wrong in ("", *(f"format = {value}\n" for value in ('"x"', "1", "2", "true", "3.0"))):
        path.write_text(to_toml(deep).replace("format = 3\n", wrong), encoding="utf-8")
        with pytest.raises(UserError, match=r"has (no )?format.*, but this version of bnce reads format 3: use the"):
            read_config(path)
