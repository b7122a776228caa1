"""Next-item recommendation: every loss trains, models side by side are as alone, and the ranks are those of scores."""

from __future__ import annotations

import json
import lzma
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks import softmaxes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))  # as the script runs: beside its parts
try:
    import item_catalogues
    import items
    from item_data import BLOCK, Sequences, make_set
    from item_model import LOSSES, Recommender, Shape
    from item_tables import markdown
    from item_training import Trainer, gains
finally:
    sys.path.pop(0)

CPU = torch.device("cpu")
SMALL = ["--epochs", "1", "--batch", "16", "--length", "6", "--size", "8", "--layers", "1", "--device", "cpu"]
TINY = Shape(length=6, size=8, layers=2, heads=2, dropout=0.0)


def made_up(num_users: int) -> list[list[int]]:
    """Give users 3 to 9 of 40 items, none of them twice."""
    made = torch.Generator().manual_seed(1)
    lengths = [3 + user % 7 for user in range(num_users)]
    return [[1 + item for item in torch.randperm(40, generator=made)[:length].tolist()] for length in lengths]


@pytest.fixture
def sequences(tmp_path: Path) -> Path:
    path = tmp_path / "Made.txt.xz"
    with lzma.open(path, "wt", encoding="ascii") as file:
        file.writelines(f"{user} {' '.join(map(str, chosen))}\n" for user, chosen in enumerate(made_up(60)))
    return path


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_loss_is_searched_and_trained(
    sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "items.jsonl"
    asked = [str(sequences), *SMALL, "--search", "--final", "--rates", "0.01,0.02", "--seeds", "1,2", "--out", str(out)]
    items.main([*asked, "--together", "3"])
    lines = lines_of(out)
    assert capsys.readouterr().out == out.read_text(encoding="utf-8")
    for loss in LOSSES:
        search = [line for line in lines if (line["loss"], line["stage"]) == (loss, "search")]
        final = [line for line in lines if (line["loss"], line["stage"]) == (loss, "final")]
        assert [line["rate"] for line in search] == [0.01, 0.02]
        assert [line["seed"] for line in final] == [1, 2]
        best = max(search, key=lambda line: line["valid_ndcg"])  # type: ignore[arg-type,return-value]
        assert {line["rate"] for line in final} == {best["rate"]}
    for line in lines:
        assert line["num_items"] == 40
        assert line["epochs"] == line["epoch"] == 1
        assert 0 <= line["ndcg"] <= line["hr"] <= 1  # type: ignore[operator]
        assert line["left_out"] == 0
    items.main(asked)
    assert capsys.readouterr().out == ""  # all of it is there


def test_models_side_by_side_are_as_alone(sequences: Path, tmp_path: Path) -> None:
    found = []
    for together in ("1", "4"):
        out = tmp_path / f"{together}.jsonl"
        losses = ["--losses", "bce,sampled,adaptive,chunk-bnce", "--rates", "0.01", "--epochs", "3", "--every", "1"]
        items.main([str(sequences), *SMALL, *losses, "--search", "--together", together, "--out", str(out)])
        found.append(sorted(out.read_text(encoding="utf-8").splitlines()))
    assert found[0] == found[1]


def test_time_and_memory_are_measured_alone_and_stand_in_the_table(
    sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "items.jsonl"
    asked = ["--losses", "bnce", "--rates", "0.01", "--timed", "4", "--out", str(out)]
    items.main([str(sequences), *SMALL, *asked, "--search", "--final", "--measure"])
    capsys.readouterr()
    items.main(["--table", str(out)])
    table = capsys.readouterr().out
    alone = next(line for line in lines_of(out) if line["stage"] == "measure")
    assert f"| {alone['ms_per_step']:.2f} |" in table
    assert table.startswith("| Made, 40 items | rate, dropout | HR@10 |")
    assert "| B-NCE | 0.01, 0.4 |" in table


def test_a_table_has_mean_and_deviation() -> None:
    shared = {"set": "Made", "loss": "bnce", "rate": 0.01, "dropout": 0.2, "num_items": 40, "steps_per_epoch": 5}
    figures = [{"hr": hr, "ndcg": hr / 2, "hr_unseen": 2 * hr, "ndcg_unseen": hr} for hr in (0.1, 0.2, 0.3)]
    runs = [{**shared, "stage": "final", "epoch": 4, "ended": "patience", **each} for each in figures]
    runs[1]["ended"] = "epochs"
    alone = {**shared, "stage": "measure", "ms_per_step": 100.0, "peak_memory_bytes": 2**21}
    row = markdown([*runs, alone]).splitlines()[-1]
    assert row == (
        "| B-NCE | 0.01, 0.2 | 0.2000 ± 0.1000 | 0.1000 ± 0.0500 | 0.4000 ± 0.2000 | 0.2000 ± 0.1000 "
        "| 4+ | 100.00 | 2.0 | 2 |"
    )


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--losses", "softmax,chunk", "--search"], "--losses has chunk: choose from softmax, bce,"),
        ([], "give files of users, and --search, --final or --measure"),
        (["--losses", "bnce", "--final"], "no search of bnce on Made"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_trained(
    asked: list[str], told: str, sequences: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        items.main([str(sequences), *SMALL, *asked])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert told in f"{printed.err}{ended.value}"


def test_ranks_are_those_of_scores() -> None:
    score_BV = -torch.arange(20.0).repeat(3, 1)
    hits, gain = gains(score_BV, torch.tensor([[0.0], [-2.0], [-10.0]])).tolist()
    assert hits == 2
    assert gain == pytest.approx(1 + 1 / 2)  # rank 3: 1 / log2(4)
    assert gains(torch.full((1, 20), torch.nan), torch.tensor([[torch.nan]])).tolist() == [0, 0]


def test_ranks_are_among_all_items_but_padding_or_among_those_the_user_has_not_had() -> None:
    data = make_set("Made", [[7, 8, 9, 1, 2, 11], [20, 3, 4, 5]], 6, CPU)
    trainer = Trainer(Recommender(data.counts_V, "softmax", TINY), data.train, 2, "float32")
    trainer.start(0.0, 1)
    with torch.no_grad():
        trainer.model.output.weight.zero_()
        # Padding scores best and is not ranked; then item 1 is the best, item 20 the worst.
        trainer.model.output.bias.copy_(-torch.arange(21.0))
    hits, gain, unseen_hits, unseen_gain = trainer.evaluate(data.test, unseen=True).read()
    assert (hits, gain) == pytest.approx((1 / 2, math.log(2) / math.log(6) / 2))  # items 11 and 5
    # Of those before item 11 the user has had 1, 2, 7, 8 and 9; of those before item 5 the user has had 3 and 4.
    expected = math.log(2) / math.log(7) + math.log(2) / math.log(4)
    assert (unseen_hits, unseen_gain) == pytest.approx((1, expected / 2))
    assert trainer.evaluate(data.valid).read() == pytest.approx(
        [1, (math.log(2) / math.log(3) + math.log(2) / math.log(5)) / 2]
    )


def test_a_batch_lays_users_end_to_end() -> None:
    users = Sequences([[5, 6], [7], [8, 9, 10]], [[6, 1], [2], [9, 10, 3]], length=4, device=CPU)
    batch = users.batch(torch.tensor([2, 3, 0]), 7)  # user 3 has nothing
    assert batch.item_N.tolist() == [8, 9, 10, 5, 6, 0, 0]
    assert batch.target_N.tolist() == [9, 10, 3, 6, 1, -100, -100]
    assert batch.user_N.tolist() == [0, 0, 0, 2, 2, -1, -1]
    assert batch.place_N.tolist() == [1, 2, 3, 2, 3, 0, 0]
    assert users.batch(torch.tensor([2, 0]), 4).item_N.tolist() == [8, 9, 10, 5]
    assert users.capacity(3) == BLOCK


def test_a_user_sees_nothing_of_others() -> None:
    torch.manual_seed(1)
    model = Recommender(torch.ones(41, dtype=torch.int64), "bnce", TINY).eval()
    model.reset()
    known = [chosen[:6] for chosen in made_up(40)]  # more items than a block has places
    users = Sequences(known, known, 6, CPU)
    assert users.num_targets > 2 * BLOCK
    together_ND = model(users.batch(torch.arange(40), 4 * BLOCK))
    begin = 0
    for user, chosen in enumerate(known):
        alone_ND = model(users.batch(torch.tensor([user]), BLOCK))[: len(chosen)]
        torch.testing.assert_close(together_ND[begin : begin + len(chosen)], alone_ND)
        # Nor of what comes later.
        first_ND = model(Sequences([chosen[:1]], [chosen[:1]], 7 - len(chosen), CPU).batch(torch.tensor([0]), BLOCK))
        torch.testing.assert_close(first_ND[:1], alone_ND[:1])
        begin += len(chosen)


@pytest.mark.parametrize("loss", ["gbce", "in-batch", "in-batch-others", "sampled"])
def test_a_rival_is_what_its_formula_says(loss: str) -> None:
    torch.manual_seed(1)
    counts_V = torch.arange(1, 42)
    data = make_set("Made", made_up(30), 6, CPU)
    batch = data.train.batch(torch.arange(30), data.train.capacity(30))
    found = {}
    for sparse in (False, True):
        torch.manual_seed(2)
        model = Recommender(counts_V, loss, TINY, sparse=sparse)
        model.reset()
        torch.manual_seed(3)
        value = model.loss_of(batch)
        value.backward()
        assert model.output.weight.grad is not None
        assert model.output.weight.grad.is_sparse == sparse
        found[sparse] = value.detach(), model.output.weight.grad.to_dense()
    torch.testing.assert_close(found[True], found[False], rtol=1e-4, atol=1e-4)

    valid_N = batch.target_N >= 0
    target_N, user_N = batch.target_N[valid_N], batch.user_N[valid_N]
    torch.manual_seed(3)
    score_NV = model.output.all_scores(model(batch).detach())[valid_N]
    log_p_V = model.output.noise.log_probs_V
    if loss == "gbce":
        torch.manual_seed(3)
        drawn_NK = torch.randint(1, 41, (len(valid_N), 256))[valid_N]
        rate = 256 / 39
        beta = rate * (0.75 * (1 - 1 / rate) + 1 / rate)
        own_N = score_NV.gather(1, target_N.unsqueeze(1)).squeeze(1)
        expected_N = -beta * F.logsigmoid(own_N) - F.logsigmoid(-score_NV.gather(1, drawn_NK)).sum(1)
    elif loss == "sampled":
        torch.manual_seed(3)
        drawn_K = model.output.noise.sample((1000,))
        corrected_NV = score_NV - log_p_V - torch.tensor(1000.0).log()
        expected_N = torch.stack(
            [
                torch.logsumexp(torch.cat([row_V[drawn_K[drawn_K != word]], row_V[word].view(1)]), 0) - row_V[word]
                for row_V, word in zip(corrected_NV, target_N, strict=True)
            ]
        )
    else:
        corrected_NV = score_NV - log_p_V
        losses = []
        for place, word in enumerate(target_N.tolist()):
            is_noise_N = target_N != word
            if loss == "in-batch-others":
                is_noise_N &= user_N != user_N[place]
            own = corrected_NV[place, word]
            losses.append(torch.logsumexp(torch.cat([corrected_NV[place, target_N[is_noise_N]], own.view(1)]), 0) - own)
        expected_N = torch.stack(losses)
    torch.testing.assert_close(found[True][0], expected_N.mean().detach())


def test_rows_train_by_row_as_they_do_alone() -> None:
    data = make_set("Made", made_up(30), 6, CPU)
    found = []
    for _ in range(2):
        model = Recommender(data.counts_V, "bnce", TINY, sparse=True)
        trainer = Trainer(model, data.train, 16, "float32")
        trainer.start(0.01, 1)
        trainer.epoch()
        assert len(trainer.optimisers) == 2
        found.append(trainer.evaluate(data.test).read())
        trainer.start(0.01, 1)  # nothing is left of the run before
        trainer.epoch()
        found.append(trainer.evaluate(data.test).read())
    assert found[0] == found[1] == found[2] == found[3]


def test_a_catalogue_has_the_law_of_the_real_set() -> None:
    real_R = np.array([1, 100, 50, 25, 0, 10, 5, 2, 1, 1])
    np.testing.assert_allclose(item_catalogues.stretch(real_R, 10), np.sort(np.maximum(real_R, 0.5))[::-1])
    law_V = item_catalogues.stretch(real_R, 1000)
    assert (np.diff(law_V) <= 0).all()
    assert law_V[0] > 100  # the head of a longer curve goes on upwards
    # The most popular three tenths have about the same share of all targets.
    assert law_V[:300].sum() / law_V.sum() == pytest.approx(175 / 195.5, rel=0.1)


@pytest.mark.usefixtures("losses_of_its_own")
def test_every_loss_is_measured_with_a_catalogue_and_one_that_needs_too_much_memory_gives_up(
    sequences: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    softmaxes.register()
    make = item_catalogues.Trainer.__init__

    def fail(self: Trainer, model: Recommender, *rest: Any) -> None:
        if model.loss == item_catalogues.PLAIN:
            raise torch.OutOfMemoryError("no room")
        make(self, model, *rest)

    monkeypatch.setattr(item_catalogues.Trainer, "__init__", fail)
    out = tmp_path / "catalogues.jsonl"
    asked = ["--sizes", "50,90", "--batch", "4", "--steps", "2", "--timed", "2", "--size", "8", "--device", "cpu"]
    item_catalogues.main(["--like", str(sequences), *asked, "--out", str(out)])
    lines = lines_of(out)
    both = list(item_catalogues.CATALOGUE_LOSSES)
    assert [(line["num_items"], line["loss"]) for line in lines] == [(size, loss) for size in (50, 90) for loss in both]
    for line in lines:
        assert ("gave_up" in line) == (line["loss"] == "softmax-plain")
        assert "gave_up" in line or line["items_per_second"] > 0  # type: ignore[operator]
    # Rows train by row, so that the state has two numbers per row and not two tables more.
    held = {line["loss"]: line["held_bytes"] for line in lines if line["num_items"] == 90 and "gave_up" not in line}
    assert held["bnce"] == held["gbce"]
    assert held["softmax"] - held["bnce"] == 91 * 4 * (8 + 1) * 2 + 2 * 4 - (91 * (4 + 4) * 2 + 2 * 8)
    capsys.readouterr()
    items.main(["--table", str(out)])
    assert "| 90 | softmax over all items, all positions at once | out of memory | | | |" in capsys.readouterr().out
