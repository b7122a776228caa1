"""Documents in blocks, and their draw into splits."""

from __future__ import annotations

import pytest

from bnce.text import blocks
from bnce.text.blocks import Cut, gather


def test_documents_end_on_a_line_of_their_own() -> None:
    (block,) = gather([["a b", "c"], ["ü"]], "valid")
    assert block == ("valid", 0, 2, "a b\nc\n\0\nü\n\0\n".encode())


def test_blocks_hold_whole_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 3)
    found = list(gather([["ab"], ["c", "d"], ["efgh"], ["i"]], None))
    assert [(block.first_document, block.num_documents) for block in found] == [(0, 2), (2, 1), (3, 1)]
    assert b"".join(block.text for block in found).replace(b"\n\0\n", b"|") == b"ab|c\nd|efgh|i|"


def test_what_no_text_may_hold_is_replaced() -> None:
    (block,) = gather([["a\0b"], ["c \ud800"]], "train")
    assert block.text.decode() == "a\ufffdb\n\0\nc ?\n\0\n"


@pytest.mark.parametrize("fractions", [{"valid": 0.1, "test": 0.2}, {"test": 0.5}, {}])
def test_cut_keeps_its_fractions(fractions: dict[str, float]) -> None:
    drawn = [Cut(1, fractions)(index) for index in range(10_000)]
    for split, fraction in fractions.items():
        assert drawn.count(split) == pytest.approx(10_000 * fraction, rel=0.1)
    assert drawn.count("train") == 10_000 - sum(drawn.count(split) for split in fractions)


def test_cut_depends_on_the_seed_alone() -> None:
    def draws(seed: int) -> list[str]:
        return [Cut(seed, {"valid": 0.5})(index) for index in range(100)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
