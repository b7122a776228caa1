"""Noise distributions: the alias tables hold exactly the probabilities, and the draws follow them."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bnce
from bnce import Nce, Noise, OutputLayer, UserError
from bnce.noise import Running, alias_table, from_targets, log_uniform, make_noise, uniform, unigram


def probabilities_in(keep_V: np.ndarray, alias_V: np.ndarray) -> np.ndarray:
    """Work out with what probability each word leaves an alias table."""
    return np.bincount(alias_V, weights=1.0 - keep_V, minlength=len(keep_V)) / len(keep_V) + keep_V / len(keep_V)


def assert_table_is_exact(probs_V: np.ndarray) -> None:
    keep_V, alias_V = alias_table(probs_V)
    assert keep_V.min() >= 0.0
    assert keep_V.max() <= 1.0
    # Running sums of up to V, of V terms, are rounded by V · V · eps; a slot holds 1/V of that.
    allowed = len(probs_V) * np.finfo(float).eps
    np.testing.assert_allclose(probabilities_in(keep_V, alias_V), probs_V, rtol=0, atol=allowed)


@pytest.mark.parametrize("V", [1, 2, 3, 1000])
@pytest.mark.parametrize("shape", ["uniform", "zipf", "reversed zipf", "one word"])
def test_alias_table_is_exact(V: int, shape: str) -> None:
    zipf_V = 1.0 / np.arange(1, V + 1)
    weight_V = {
        "uniform": np.ones(V),
        "zipf": zipf_V,
        "reversed zipf": zipf_V[::-1],
        "one word": np.where(np.arange(V) == V // 2, 1.0, 1e-9),
    }[shape]
    assert_table_is_exact(weight_V / weight_V.sum())


def test_uniform_of_any_size() -> None:
    """49 · (1/49) is a hair below 1: every slot then lacks something that no other has to give."""
    for V in range(1, 200):
        assert_table_is_exact(np.full(V, 1.0 / V))


@given(st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=60))
def test_alias_table_is_exact_for_any_weights(weights: list[float]) -> None:
    assert_table_is_exact(np.array(weights) / np.sum(weights))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=60))
def test_alias_table_is_exact_where_sums_meet(counts: list[int]) -> None:
    """Small counts make slots that are full to the last bit, where one giver ends and the next begins."""
    assert_table_is_exact(np.array(counts) / np.sum(counts))


@pytest.mark.parametrize("noise", [log_uniform(50), uniform(7), unigram([5, 0, 1, 100, 3, 3]), uniform(1)], ids=len)
def test_samples_follow_the_probabilities(noise: Noise) -> None:
    num_samples = 200_000
    torch.manual_seed(1)
    words = noise.sample((num_samples,))
    seen_V = torch.bincount(words, minlength=len(noise)).double()
    expected_V = noise.log_probs_V.double().exp() * num_samples
    chi_square = float(((seen_V - expected_V) ** 2 / expected_V).sum())
    # Mean V − 1 and variance 2(V − 1): four deviations above the mean, and the draw is always the same.
    freedom = len(noise) - 1
    assert chi_square <= freedom + 4 * math.sqrt(2 * freedom)


def test_samples_are_independent() -> None:
    """Neighbours repeat as often as chance has it."""
    noise = uniform(10)
    torch.manual_seed(2)
    words = noise.sample((100_000,))
    assert float((words[1:] == words[:-1]).float().mean()) == pytest.approx(0.1, abs=4 * math.sqrt(0.09 / 100_000))


def test_seed_decides_the_draw() -> None:
    noise = log_uniform(1000)
    drawn = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        drawn.append(noise.sample((4, 9)))
    assert drawn[0].shape == (4, 9)
    assert drawn[0].dtype == torch.int64
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_log_prob_looks_up_words_of_any_shape() -> None:
    noise = unigram([1, 3])
    found = noise.log_prob(torch.tensor([[0, 1, 1]]))
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75, 0.75]]).log())


@pytest.mark.parametrize(
    ("counts", "share"),
    [
        ([1, 2, 6, 1, 0, 0, 0], 2 / 10),  # Good-Turing: two words were seen once in ten targets
        ([2, 0, 6], 2 / (8 + 2)),  # none was seen once: Witten-Bell's, of two different words
        ([1, 1, 1, 0], 3 / (3 + 3)),  # all were seen once: likewise
        ([0.1, 0.2, 0.6, 0.1, 0.0], 2 / 10),  # frequencies are counted in units of the rarest
    ],
)
def test_words_never_seen_share_what_is_expected_of_them(counts: list[float], share: float) -> None:
    probs_V = unigram(counts).log_probs_V.exp()
    seen_V = torch.tensor(counts) > 0
    assert float(probs_V[~seen_V].sum()) == pytest.approx(share, rel=1e-5)
    assert len(set(probs_V[~seen_V].tolist())) == 1, "each unseen word gets the same"
    torch.testing.assert_close(probs_V[seen_V], (1 - share) * torch.tensor(counts)[seen_V] / sum(counts))
    flat = log_uniform(len(counts)).for_targets(counts)
    torch.testing.assert_close(flat.log_target_probs().exp(), probs_V, msg="biases start from the same")


def test_counts_without_a_zero_stay_as_they_are() -> None:
    counts_V = np.array([7.0, 1.0, 1.0, 3.0])
    noise = log_uniform(4).for_targets(counts_V)
    assert torch.equal(unigram(counts_V).log_probs_V, torch.from_numpy(np.log(counts_V / 7 / (12 / 7))).float())
    assert torch.equal(noise.log_target_probs(), torch.from_numpy(np.log(counts_V / 12)).float())
    counts_V[:] = 0
    assert torch.isfinite(noise.log_target_probs()).all(), "the noise keeps numbers of its own"


def test_power_flattens() -> None:
    torch.testing.assert_close(unigram([1, 16], power=0.5).log_probs_V.exp(), torch.tensor([0.2, 0.8]))
    torch.testing.assert_close(unigram([1, 16], power=0.0).log_probs_V.exp(), torch.tensor([0.5, 0.5]))


@pytest.mark.parametrize("V", [1, 2, 80_000])
def test_log_uniform_is_zipf_and_sums_to_one(V: int) -> None:
    noise = log_uniform(V)
    assert float(noise.log_probs_V.double().exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(noise.log_probs_V[0].exp()) == pytest.approx(math.log(2) / math.log(V + 1), rel=1e-6)


@pytest.mark.parametrize("make", [np.array, list, torch.tensor, lambda counts: np.array(counts, dtype=np.uint16)])
def test_counts_of_any_kind(make: type) -> None:
    torch.testing.assert_close(unigram(make([1, 3])).log_probs_V.exp(), torch.tensor([0.25, 0.75]))


def test_counts_may_be_read_only_or_half_precision() -> None:
    counts_V = np.array([1, 3])
    counts_V.flags.writeable = False
    assert len(unigram(counts_V)) == 2
    assert len(unigram(torch.tensor([1.0, 3.0], dtype=torch.bfloat16, requires_grad=True))) == 2


def test_a_list_keeps_its_digits() -> None:
    """Counts above 2^24 do not fit float32."""
    ratio = unigram([2.0**24 + 1, 1.0]).log_probs_V.double()
    assert float(ratio[0] - ratio[1]) == pytest.approx(math.log(2.0**24 + 1), abs=2e-6)
    table = Noise([1.0, 2.0**-30])
    assert float(table.log_probs_V[1]) == pytest.approx(-30 * math.log(2), rel=1e-7)


@pytest.mark.parametrize("make", [unigram, Noise])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], r"The noise has the shape \(0,\): give one (count|probability) per class, \(vocab_size,\)\."),
        ([[1, 2]], r"The noise has the shape \(1, 2\): give one "),
        (3.0, r"The noise has the shape \(\): give one "),
        ([1, math.nan], r"The (count|probability) of class 1 is nan: give a finite number of 0 or more per class\."),
        ([1, 2, math.inf], r"of class 2 is inf: give a finite number"),
        ([1, -3, -4], r"of class 1 is -3: give a finite number"),
    ],
)
def test_what_is_no_noise_is_refused(make: Any, values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(values)


def test_a_probability_of_zero_is_refused() -> None:
    with pytest.raises(UserError, match=r"^The probability of class 1 is 0, so it could never be noise: give numbers "):
        Noise([0.5, 0.0])


@pytest.mark.parametrize("noise", [log_uniform(300), uniform(300), unigram([300 - word for word in range(300)])])
@pytest.mark.parametrize("num_distinct", [1, 2, 40, 150])
def test_tries_give_so_many_different_words(noise: Noise, num_distinct: int) -> None:
    num_draws = noise.num_draws(num_distinct)
    probs_V = noise.log_probs_V.double().exp()
    expected = [float((1 - (1 - probs_V) ** number).sum()) for number in (num_draws - 1, num_draws)]
    assert expected[0] < num_distinct <= expected[1] + 1e-6
    torch.manual_seed(1)
    found = [len(noise.sample((num_draws,)).unique()) for _ in range(200)]
    assert max(found) <= noise.max_distinct(num_draws)
    assert sum(found) / 200 == pytest.approx(expected[1], rel=0.02)


def test_at_most_half_of_the_words_are_drawn() -> None:
    assert log_uniform(20).num_draws(8192) == log_uniform(20).num_draws(10)
    with pytest.raises(UserError, match="Running noise draws with replacement only"):
        Running(20).num_draws(3)


def test_noise_that_is_bent_knows_the_targets() -> None:
    counts_V = [50, 30, 0, 20]
    expected_V = unigram(counts_V).log_probs_V
    other = [make_noise(Nce(noise=name), counts_V) for name in ("log-uniform", "uniform")]
    for noise in (unigram(counts_V, 0.75), *other):
        assert not torch.allclose(noise.log_probs_V, expected_V, atol=0.05)
        torch.testing.assert_close(noise.log_target_probs(), expected_V)
        torch.testing.assert_close(noise.double().log_target_probs(), expected_V.double())
    assert unigram(counts_V).log_target_probs() is not None
    assert torch.equal(log_uniform(4).log_target_probs(), log_uniform(4).log_probs_V)


def test_names_make_noise() -> None:
    counts_V = np.array([8, 1, 1])
    assert torch.equal(make_noise(Nce(noise_power=0.5), counts_V).log_probs_V, unigram(counts_V, 0.5).log_probs_V)
    assert torch.equal(make_noise(Nce(noise="uniform"), counts_V).log_probs_V, uniform(3).log_probs_V)
    assert torch.equal(make_noise(Nce(noise="log-uniform"), counts_V).log_probs_V, log_uniform(3).log_probs_V)


def test_a_move_keeps_the_tables_and_no_state_is_saved() -> None:
    noise = log_uniform(20)
    assert noise.state_dict() == {}, "the noise is data: it is rebuilt from the counts"
    moved = copy.deepcopy(noise).to("meta")
    buffers = dict(moved.named_buffers())
    assert set(buffers) == {"log_probs_V", "keep_V", "alias_V"}
    assert all(buffer.is_meta for buffer in buffers.values())
    assert moved.sample((3,)).is_meta, "draws are made where the tables are"
    back = copy.deepcopy(noise).to("cpu")
    assert all(torch.equal(buffer, getattr(noise, name)) for name, buffer in back.named_buffers())


# Counted targets.


@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor([[0, 1], [1, -100], [2, 1]]),
        np.array([0, 1, 1, -100, 2, 1], dtype=np.int32),
        [torch.tensor([0, 1, 1]), torch.tensor([[-100, 2, 1]])],
        (part for part in (torch.tensor([0, 1, 1]), np.array([], dtype=np.int64), [2, 1])),
        [0, 1, 1, 2, 1],
    ],
    ids=["tensor", "array", "list", "generator", "numbers"],
)
def test_targets_are_counted(targets: Any) -> None:
    noise = from_targets(targets, vocab_size=3)
    torch.testing.assert_close(noise.log_probs_V.exp(), torch.tensor([1.0, 3.0, 1.0]) / 5)
    assert noise.bent is None


def test_an_ignore_index_of_one_s_own_is_not_counted() -> None:
    noise = from_targets(torch.tensor([0, 0, 2, 1]), vocab_size=3, ignore_index=0)
    torch.testing.assert_close(noise.log_probs_V.exp(), torch.tensor([0.0, 0.5, 0.5]), rtol=0, atol=1e-6)
    assert torch.equal(noise.log_probs_V, unigram([7, 1, 1], ignore_index=0).log_probs_V)
    assert noise.log_probs_V.isfinite().all(), "a bias starts there"


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.tensor([0, 3]), "targets hold 3, but vocab_size is 3: give ids from 0 to 2."),
        ([torch.tensor([0, -1])], "targets hold -1, but vocab_size is 3: give ids from 0 to 2."),
        (torch.tensor([0.5]), "Targets must be whole numbers, but they are float32."),
        (
            [{"labels": [1]}],
            "Targets must be tensors of word ids, but one is a dict: pick the targets out of a batch, ",
        ),
        ([torch.tensor([-100])], "Counts must not all be zero: count the targets of the training text."),
    ],
)
def test_targets_that_cannot_be_counted(targets: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_targets(targets, vocab_size=3)
    assert str(caught.value).startswith(message)


# Counts of a stream.


def zipf(num_words: int = 40) -> torch.Tensor:
    weight_V = 1.0 / torch.arange(1, num_words + 1)
    return weight_V / weight_V.sum()


def show(noise: Running, probs_V: torch.Tensor, num_steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        noise.observe(torch.multinomial(probs_V, 200, replacement=True, generator=generator).reshape(10, 20))


def distance(noise: Noise, probs_V: torch.Tensor) -> float:
    return float((noise.log_probs_V.exp() - probs_V).abs().sum())


def test_a_running_estimate_starts_uniform_and_finds_the_unigram() -> None:
    noise, probs_V = Running(40, every=64), zipf()
    torch.testing.assert_close(noise.log_probs_V.exp(), torch.full((40,), 1 / 40))
    show(noise, probs_V, 1)
    assert distance(noise, probs_V) < 0.6, "the first step is already better than nothing"
    show(noise, probs_V, 511)
    assert distance(noise, probs_V) < 0.02
    assert float(noise.log_probs_V.double().exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert float((noise.log_probs_V - probs_V.log()).abs().max()) < 0.1, "rare words, too"
    torch.manual_seed(3)
    seen_V = torch.bincount(noise.sample((100_000,)), minlength=40) / 100_000
    assert float((seen_V - noise.log_probs_V.exp()).abs().sum()) < 0.02


def test_it_counts_as_a_plain_loop_does() -> None:
    noise, counts_V, decay = Running(5, decay=0.9, every=3), torch.zeros(5, dtype=torch.float64), 0.9
    for step in range(6):
        target_N = torch.tensor([0, step % 3, step % 3])
        counts_V = counts_V * decay + torch.bincount(target_N, minlength=5)
        noise.observe(target_N)
    different = counts_V.clamp(max=1).sum()
    expected_V = (counts_V + different / 5) / (counts_V.sum() + different)
    torch.testing.assert_close(noise.log_probs_V.double().exp(), expected_V, rtol=1e-6, atol=0)


def test_it_forgets() -> None:
    probs_V, noise = zipf(), Running(40, decay=0.97, every=16)
    show(noise, probs_V, 160)
    show(noise, probs_V.flip(0), 160)
    assert distance(noise, probs_V.flip(0)) < 0.15
    kept = Running(40, decay=1.0, every=16)
    show(kept, probs_V, 160)
    show(kept, probs_V.flip(0), 160)
    torch.testing.assert_close(kept.log_probs_V.exp(), (probs_V + probs_V.flip(0)) / 2, rtol=0, atol=0.01)


def test_ln_p_n_is_renewed_now_and_then() -> None:
    noise, renewed = Running(40, every=12), []
    for step in range(1, 37):
        before_V = noise.log_probs_V.clone()
        show(noise, zipf(), 1, seed=step)
        if not torch.equal(before_V, noise.log_probs_V):
            renewed.append(step)
    assert renewed == [1, 2, 4, 8, 12, 24, 36]


def test_a_state_goes_on_bit_for_bit() -> None:
    unbroken = Running(40, every=8)
    show(unbroken, zipf(), 21)
    resumed = Running(40, every=8)
    resumed.load_state_dict(copy.deepcopy(unbroken.state_dict()))
    copied = copy.deepcopy(unbroken)
    for noise in (unbroken, resumed, copied):
        show(noise, zipf().flip(0), 10, seed=4)
    for noise in (resumed, copied):
        assert torch.equal(noise.log_probs_V, unbroken.log_probs_V)
        torch.manual_seed(1)
        drawn_N = noise.sample((50,))
        torch.manual_seed(1)
        assert torch.equal(drawn_N, unbroken.sample((50,)))


def test_a_move_keeps_the_counts() -> None:
    noise = Running(40)
    show(noise, zipf(), 30)
    before_V, counts_V = noise.log_probs_V.clone(), noise.counts_V.clone()
    noise.to(torch.bfloat16)
    assert torch.equal(noise.log_probs_V, before_V)
    assert torch.equal(noise.counts_V, counts_V)
    assert noise.double().log_probs_V.dtype == torch.float64
    empty = copy.deepcopy(noise).to("meta").to_empty(device="cpu")
    torch.testing.assert_close(empty.log_probs_V.exp().float(), torch.full((40,), 1 / 40))
    assert not empty.counts_V.any()
    with torch.device("meta"):
        built = Running(40)
    assert torch.equal(built.to_empty(device="cpu").log_probs_V, Running(40).log_probs_V)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0: give 1 or more."),
        ({"vocab_size": 3.5}, "vocab_size is 3.5: give a whole number of 1 or more."),
        ({"decay": None}, "decay is None: give a finite number."),
        ({"decay": 0.5}, "decay is 0.5: give a number from 0.9 to 1, where 1 counts all steps."),
        ({"every": 0}, "every is 0: give a number of steps from 1 to 4096."),
    ],
)
def test_a_running_estimate_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        Running(**{"vocab_size": 3, **arguments})
    assert str(caught.value) == message


@pytest.mark.parametrize("make", [uniform, log_uniform, lambda size: from_targets([], size)])
def test_a_number_of_words_is_a_whole_number(make: Any) -> None:
    with pytest.raises(UserError, match=r"vocab_size is 0: give 1 or more\."):
        make(0)
    with pytest.raises(UserError, match=r"vocab_size is 2\.0: give a whole number of 1 or more\."):
        make(2.0)


def test_running_noise_counts_where_there_are_gradients() -> None:
    """A loss without gradients is an evaluation, in whatever mode the layer is."""
    layer = OutputLayer(2, 5, Running(5))
    hidden, targets = torch.zeros(3, 4, 2), torch.ones(3, 4, dtype=torch.long)
    with torch.no_grad():
        layer(hidden, targets)
    assert layer.noise.counts_V.sum() == 0
    layer(hidden, targets)
    assert layer.noise.counts_V[1] > 0


def test_completion_offers_what_is_documented() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition("\n## noise\n")[2].partition("\n## Noise\n")[0]
    assert bnce.noise.__all__ == sorted(set(re.findall(r"`(\w+)\(", section)))
