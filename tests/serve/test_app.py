"""The endpoints: the library's numbers as JSON, and one sentence for whatever is wrong."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run_command
from run_files import write_mixture
from small_corpus import VOCAB_SIZE, random_ids, small_run
from starlette.testclient import TestClient

from bnce import Model, Normaliser, load
from bnce.scoring.results import LN_10
from tests.scoring.models import ONE

from .conftest import MakeClient, make_model

PAGES = {
    "/": "text/html",
    "/page.css": "text/css",
    "/page.js": "text/javascript",
}
SENTENCES = ["w3 w4 zebra", "", "W5 . w6", "ünï", "w2 w2 w2 w2"]


def post(client: TestClient, path: str, body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
def test_scores_are_the_librarys(client: TestClient, model: Model, mode: str) -> None:
    answer = post(client, "/score", {"sentences": SENTENCES, "mode": mode})
    expected = model.score(SENTENCES, mode=mode)
    for number, (found, scored) in enumerate(zip(answer["sentences"], expected, strict=True)):
        assert found["text"] == number
        assert found["words"] == scored.words
        assert found["oov"] == scored.oov.tolist()
        np.testing.assert_allclose(found["log10_probs"], scored.log_probs / LN_10, atol=1e-6)
        assert found["log10_prob"] == pytest.approx(scored.log_prob / LN_10, abs=1e-5)
        assert "exact_log10_probs" not in found
    assert answer["totals"]["num_oov"] == 3
    assert answer["totals"]["log10_prob"] == pytest.approx(
        sum(scored.log_prob / LN_10 for scored in expected), abs=1e-5
    )
    assert answer["log_z"] == (9.0 if mode == "unnormalised" else None)


def test_unknown_words_are_spelt_if_asked(make_client: MakeClient) -> None:
    model = make_model(spelt=["zebras"])
    client = make_client(model)
    spelt = post(client, "/score", {"sentences": SENTENCES, "spell": True, "exact": True})
    for key, mode in (("log10_prob", "unnormalised"), ("exact_log10_prob", "normalised")):
        expected = model.score(SENTENCES, mode=mode, spell=True)
        for found, scored in zip(spelt["sentences"], expected, strict=True):
            assert found[key] == pytest.approx(scored.log_prob / LN_10, abs=1e-5)
    assert spelt["totals"]["num_oov"] == 0
    assert spelt["totals"]["bits_per_byte"] == pytest.approx(
        -spelt["totals"]["log10_prob"] / math.log10(2) / spelt["totals"]["num_bytes"]
    )
    plain = post(client, "/score", {"sentences": SENTENCES})
    assert (plain["totals"]["num_oov"], plain["totals"]["bits_per_byte"]) == (3, None)


def test_exact_values_beside_the_unnormalised(client: TestClient, model: Model) -> None:
    answer = post(client, "/score", {"sentences": SENTENCES, "exact": True})
    plain, exact = (model.score(SENTENCES, mode=mode) for mode in ("unnormalised", "normalised"))
    for found, one, other in zip(answer["sentences"], plain, exact, strict=True):
        np.testing.assert_allclose(found["log10_probs"], one.log_probs / LN_10, atol=1e-6)
        np.testing.assert_allclose(found["exact_log10_probs"], other.log_probs / LN_10, atol=1e-6)
        # ln Z(context), computed by the network itself.
        scorer = model.scorer()
        states = [scorer.start()]
        for word in one.ids[:-1]:
            states += scorer.advance(states[-1:], [word])
        modes = ("unnormalised", "normalised")
        constant, exact_scores = (scorer.score(states, [0] * len(states), mode) for mode in modes)
        log_z = 9.0 + constant - exact_scores
        np.testing.assert_allclose(found["log_z"], log_z, atol=1e-5)
    every = [value for found in answer["sentences"] for value in found["log_z"]]
    assert answer["log_z_mean"] == pytest.approx(sum(every) / len(every))
    assert answer["exact_totals"]["log10_prob"] == pytest.approx(sum(s.log_prob / LN_10 for s in exact), abs=1e-5)


def test_texts_are_cut_into_sentences(client: TestClient) -> None:
    answer = post(client, "/score", {"texts": ["w3 . w4 !\nw5", "", "w6 w7"]})
    assert [(found["text"], found["words"][:-1]) for found in answer["sentences"]] == [
        (0, ["w3", "."]),
        (0, ["w4", "!"]),
        (0, ["w5"]),
        (2, ["w6", "w7"]),
    ]
    for nothing in ({"texts": []}, {"texts": [" \n"]}, {"sentences": []}):
        answer = post(client, "/score", {**nothing, "exact": True})
        assert answer["sentences"] == []
        assert (answer["totals"]["ppl"], answer["log_z_mean"]) == (None, None)


def test_a_long_text_is_scored_like_a_short_one(client: TestClient, model: Model) -> None:
    """Beside the loop, and in several batches."""
    texts = [" ".join(f"w{2 + (place * 7 + number) % 28}" for place in range(200)) for number in range(60)]
    answer = post(client, "/score", {"sentences": texts})
    assert answer["totals"]["num_words"] == 12_000
    for found, scored in zip(answer["sentences"], model.score(texts), strict=True):
        np.testing.assert_allclose(found["log10_probs"], scored.log_probs / LN_10, atol=1e-5)
    hypotheses = [{"text": text} for text in texts]
    (utterance,) = post(client, "/rescore", {"utterances": [{"hypotheses": hypotheses}]})["utterances"]
    totals = [sentence["log10_prob"] * math.log(10) for sentence in answer["sentences"]]
    assert [hypothesis["new_lm"] for hypothesis in utterance["hypotheses"]] == pytest.approx(totals, rel=1e-5)


@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
def test_hypotheses_are_rescored(client: TestClient, model: Model, mode: str) -> None:
    utterances = [
        {"id": "one", "hypotheses": [{"text": "w3 w4", "am": -5.0, "lm": -2.0}, {"text": "w3 zebra", "am": -4.5}]},
        {"id": "two", "hypotheses": [{"text": ""}, {"text": "w9 w9 w9", "am": 1.0}, {"text": "w9 w9 w9", "am": 1.0}]},
    ]
    weights = {"am_weight": 0.7, "old_lm_weight": 0.2, "lm_weight": 1.3, "word_penalty": 0.5, "oov_penalty": 0.25}
    weights["rank_weight"] = 0.3
    answer = post(client, "/rescore", {"utterances": utterances, **weights, "mode": mode})
    for given, found in zip(utterances, answer["utterances"], strict=True):
        assert found["id"] == given["id"]
        hypotheses: Any = given["hypotheses"]
        words = [hypothesis["text"].split() for hypothesis in hypotheses]
        scored = model.score_words(words, mode=mode, share=True)
        new = [found.log_probs.sum() for found in scored]
        totals = [
            0.7 * hypothesis.get("am", 0)
            + 0.2 * hypothesis.get("lm", 0)
            + 1.3 * score
            - 0.5 * len(spoken)
            - 0.25 * ("zebra" in hypothesis["text"])
            - 0.3 * math.log(place)
            for place, (hypothesis, score, spoken) in enumerate(zip(hypotheses, new, words, strict=True), 1)
        ]
        assert [hypothesis["new_lm"] for hypothesis in found["hypotheses"]] == pytest.approx(new, abs=1e-5)
        assert [hypothesis["total"] for hypothesis in found["hypotheses"]] == pytest.approx(totals, abs=1e-5)
        assert found["best"] == int(np.argmax(totals))
    assert answer["utterances"][0]["hypotheses"][1]["num_oov"] == 1
    assert post(client, "/rescore", {"utterances": []})["utterances"] == []


def test_totals_are_the_librarys_where_the_model_cuts_words_otherwise(make_client: MakeClient) -> None:
    cutting = make_model(normaliser=Normaliser(True, "words", "lines"))
    hypothesis = "state-of-the-art"  # seven words to the model, one to the recogniser
    body = {"utterances": [{"hypotheses": [{"text": hypothesis, "am": -2.0}]}], "word_penalty": 3.0}
    (found,) = post(make_client(cutting), "/rescore", body)["utterances"][0]["hypotheses"]
    (expected,) = cutting.rescore([(hypothesis, -2.0)], word_penalty=3.0)
    assert found["num_words"] == 1
    assert found["total"] == pytest.approx(expected.total, abs=1e-5)


@pytest.mark.parametrize("mode", ["unnormalised", "normalised", None])
def test_next_words_are_the_librarys(client: TestClient, model: Model, mode: str | None) -> None:
    expected = model.next_words("w3 Zebra", 4, mode=mode)
    answer = post(client, "/next", {"prompt": "w3 Zebra", "k": 4, "mode": mode})
    assert (answer["mode"], answer["words"]) == (mode or "unnormalised", ["w3", "zebra"])
    assert [word["word"] for word in answer["next"]] == [word.word for word in expected]
    assert [word["prob"] for word in answer["next"]] == pytest.approx([word.prob for word in expected])
    everything = post(client, "/next", {"k": 100, "mode": "normalised"})["next"]
    assert len(everything) == len(model.vocabulary)
    assert sum(word["prob"] for word in everything) == pytest.approx(1)


def test_health_and_metrics(client: TestClient) -> None:
    health = client.get("/health").json()
    assert (health["run"], health["log_z"], health["self_normalised"]) == ("small", 9.0, True)
    post(client, "/score", {"sentences": ["w3 w4", "w5"]})
    client.post("/score", content=b"{")
    client.get("/score/../secret")
    lines = client.get("/metrics").text.splitlines()
    assert 'bnce_requests_total{endpoint="/score",status="200"} 1.0' in lines
    assert 'bnce_requests_total{endpoint="other",status="415"} 1.0' in lines
    # Whatever is asked for, the names of endpoints are ours.
    assert 'bnce_requests_total{endpoint="other",status="404"} 1.0' in lines
    assert "bnce_words_total 5.0" in lines
    assert "bnce_batch_questions_sum 2.0" in lines
    assert "bnce_waiting_requests 0.0" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_a_token_is_asked_for_where_there_is_one(make_client: MakeClient, model: Model) -> None:
    client = make_client(model, token="0123456789abcdef")
    for path in (*PAGES, "/openapi.json"):
        assert client.get(path).status_code == 200
    assert client.get("/health").json() == {"status": "ok"}
    for path in ("/metrics", "/next", "/nothing"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert refused.json()["detail"].startswith("This server needs a token: send the header")
    client.headers["authorization"] = "Bearer 0123456789abcdef"
    assert client.get("/health").json()["run"] == "small"
    assert client.get("/metrics").status_code == 200
    assert post(client, "/score", {"sentences": ["w3"]})["totals"]["num_words"] == 1


def test_a_softmax_run_has_exact_values_alone(make_client: MakeClient) -> None:
    model = make_model(loss="softmax")
    client = make_client(model)
    health = client.get("/health").json()
    assert (health["self_normalised"], health["log_z"]) == (False, None)
    refusals = [
        ("/score", {"sentences": ["w3"]}),
        ("/rescore", {"utterances": [{"hypotheses": [{"text": "w3"}]}]}),
        ("/next", {}),
    ]
    for path, body in refusals:
        assert post(client, path, body)["mode"] == "normalised"
        response = client.post(path, json={**body, "mode": "unnormalised"})
        assert response.status_code == 422
        assert 'was trained with the softmax and has no constant Z: send "' in response.json()["detail"]
    answer = post(client, "/score", {"sentences": ["w3 w4"], "mode": "normalised", "exact": True})
    np.testing.assert_allclose(
        answer["sentences"][0]["log10_probs"], model.score(["w3 w4"], mode="normalised")[0].log_probs / LN_10, atol=1e-6
    )
    assert "log_z_mean" not in answer


def test_a_run_that_normalises_itself_answers_in_both_ways(make_client: MakeClient) -> None:
    client = make_client(make_model(loss="adaptive-softmax"))
    (found,) = post(client, "/score", {"sentences": ["w3 w4"], "mode": "unnormalised", "exact": True})["sentences"]
    assert found["log10_probs"] == pytest.approx(found["exact_log10_probs"], abs=1e-6)
    assert post(client, "/next", {"prompt": "w3", "k": 5})["next"]


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/score", {"sentences": ["w3"] * 2001}, 413, "sentences: List should have at most 2000 items"),
        ("/score", {"sentences": ["w3 " * 40_000] * 2}, 413, "more than 65,536 words, or 4,096 with the softmax"),
        ("/score", {"sentences": ["w3 " * 5000], "exact": True}, 413, "more than 65,536 words"),
        ("/score", {}, 422, "Give either 'sentences' (each string one sentence) or 'texts'"),
        ("/score", {"sentences": [], "texts": []}, 422, "Give either 'sentences'"),
        ("/score", {"sentences": ["w3"], "mood": "good"}, 422, "mood: there is no such field; see /openapi.json"),
        ("/score", {"sentences": ["w3"], "mode": "checked"}, 422, "mode: Input should be 'unnormalised' or"),
        ("/score", {"sentences": [None]}, 422, "sentences.0: Input should be a valid string"),
        ("/score", {"sentences": "w3"}, 422, "sentences: Input should be a valid list"),
        ("/score", ["w3"], 422, "the body: "),
        ("/rescore", {"utterances": [{"hypotheses": []}]}, 422, "utterances.0.hypotheses: List should have at least 1"),
        ("/rescore", {"utterances": [{"hypotheses": [{"text": "w3"}] * 2001}]}, 413, "at most 2000 items"),
        (
            "/rescore",
            {"utterances": [{"hypotheses": [{"text": "", "am": 1e9}]}], "am_weight": 1e308},
            422,
            "not a finite number",
        ),
        ("/rescore", {"utterances": [], "lm_weight": "loud"}, 422, "lm_weight: Input should be a valid number"),
        ("/next", {"k": 101}, 422, "k: Input should be less than or equal to 100"),
        ("/next", {"k": 0}, 422, "k: Input should be greater than or equal to 1"),
        # Other types are not made into the right one.
        ("/next", {"k": True}, 422, "k: Input should be a valid "),
        ("/next", {"k": "5"}, 422, "k: Input should be a valid "),
        ("/rescore", {"utterances": [], "lm_weight": True}, 422, "lm_weight: Input should be a valid "),
        ("/rescore", {"utterances": [{"hypotheses": [{"text": "w3", "am": False}]}]}, 422, "Input should be a valid "),
        ("/score", {"sentences": ["w3"], "spell": "no"}, 422, "spell: Input should be a valid "),
        ("/score", {"sentences": ["w3"], "spell": True}, 422, "has no spelling model"),
    ],
)
def test_refusals(client: TestClient, path: str, body: Any, status: int, told: str) -> None:
    response = client.post(path, json=body)
    assert (response.status_code, list(response.json())) == (status, ["detail"])
    assert told in response.json()["detail"]
    assert post(client, "/score", {"sentences": ["w3"]})["totals"]["num_words"] == 1
    whole_numbers = {"utterances": [], "lm_weight": 1, "am_weight": 0}
    assert post(client, "/rescore", whole_numbers)["utterances"] == []


@pytest.mark.parametrize(
    ("content", "status", "told"),
    [
        (b"", 422, "the body: Field required"),
        (b"null", 422, "the body: "),
        (b"{", 400, "The body is not JSON: "),
        (b'{"sentences": ["w3"', 400, "The body is not JSON: "),
        (b"\x00\x01\x02", 400, "The body is not JSON: "),
        (b'{"sentences": ["\xff"]}', 400, "parsing the body"),
        (b'{"sentences": ' + b"[" * 100_000, 400, "parsing the body"),
        (b'{"sentences": ["\\ud800"]}', 422, "sentences.0: the text has half of a surrogate pair"),
        (b'{"sentences": ["a\\u0000"]}', 422, "sentences.0: the text has a NUL"),
        (b'{"utterances": [], "lm_weight": NaN}', 422, "see /openapi.json."),
        (b'{"sentences": ["' + b"w" * 2**18 + b'"]}', 413, "The body is larger than 262144 bytes"),
    ],
)
def test_bodies_that_are_no_request(client: TestClient, content: bytes, status: int, told: str) -> None:
    path = "/rescore" if b"utterances" in content else "/score"
    response = client.post(path, content=content, headers={"content-type": "application/json; charset=utf-8"})
    assert response.status_code == status, response.text
    assert told in response.json()["detail"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("path", ["/health", "/"])
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    for name in ("content-type", "cache-control"):
        assert head.headers[name] == get.headers[name]


def test_a_failure_is_told_without_its_insides(
    make_client: MakeClient, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("secret insides")

    client = make_client(model)
    monkeypatch.setattr(model, "next_words_after", fail)
    response = client.post("/next", json={})
    assert (response.status_code, response.json()) == (500, {"detail": "The server failed; see its log."})
    assert post(client, "/score", {"sentences": ["w3"]})["totals"]["num_words"] == 1


def test_pages_need_nothing_from_outside(client: TestClient) -> None:
    for path, kind in PAGES.items():
        response = client.get(path)
        assert response.status_code == 200
        assert response.headers["content-type"].split(";")[0] == kind
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert not re.search(r"(https?:)?//[a-z]", re.sub(r"^\s*//.*$", "", response.text, flags=re.MULTILINE))
        # What the policy would block: code and styles inside the page.
        assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", response.text)


def test_a_mixture_is_served_as_a_run_is(make_client: MakeClient, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    run, arpa = small_run(tmp_path / "run"), tmp_path / "bigram.arpa"
    (tmp_path / "text.txt").write_text("".join(f"w{number} " for number in random_ids(2000)), encoding="utf-8")
    run_command("ngram", tmp_path / "text.txt", "--vocab", run, "--order", 2, "--out", arpa)
    mixture, ngram = load(write_mixture(tmp_path / "mix.toml", [run, arpa], [0.6, 0.4])), load(arpa)
    client = make_client(mixture)
    health = client.get("/health").json()
    assert (health["kind"], health["log_z"], health["self_normalised"]) == ("mixture", None, True)
    assert health["vocab_size"] == VOCAB_SIZE
    sentences = ["w3 w4 zebra", "w5", ""]
    for mode in ("unnormalised", "normalised"):
        answer = client.post("/score", json={"sentences": sentences, "mode": mode}).json()
        expected = mixture.score(sentences, mode=mode)
        for found, sentence in zip(answer["sentences"], expected, strict=True):
            assert found["log10_probs"] == pytest.approx((sentence.log_probs / LN_10).tolist(), abs=1e-5)
            assert found["oov"] == sentence.oov.tolist()
    both = client.post("/score", json={"sentences": sentences, "exact": True}).json()
    assert (both["log_z"], both["log_z_mean"]) == (None, None)
    assert "log_z" not in both["sentences"][0]
    assert both["exact_totals"]["log10_prob"] == pytest.approx(sum(one.log_prob / LN_10 for one in expected), abs=1e-4)
    utterances = [{"id": "a", "hypotheses": [{"text": "w3 w4"}, {"text": "w9 w9 w9"}]}]
    (rescored,) = client.post("/rescore", json={"utterances": utterances}).json()["utterances"]
    assert rescored["best"] == mixture.rescore(["w3 w4", "w9 w9 w9"])[0].place
    words = post(client, "/next", {"prompt": "w3", "k": 4})["next"]
    assert [word["word"] for word in words] == [word.word for word in mixture.next_words("w3", 4)]
    alone = make_client(ngram)
    assert alone.get("/health").json()["kind"] == "n-gram"
    assert alone.post("/score", json={"sentences": ["w3"]}).status_code == 200


def test_a_new_kind_of_model_is_served(make_client: MakeClient) -> None:
    """One that answers the three questions, as anybody may write it."""
    client = make_client(ONE)
    (sentence,) = client.post("/score", json={"sentences": ["a b zebra"]}).json()["sentences"]
    np.testing.assert_allclose(10 ** np.array(sentence["log10_probs"]), [0.5, 0.125, 0.125, 0.25], rtol=1e-6)
    assert sentence["oov"] == [False, False, True, False]
    hypotheses = [{"text": "b"}, {"text": "a", "am": -0.1}]
    answer = client.post("/rescore", json={"utterances": [{"hypotheses": hypotheses}]}).json()
    assert answer["utterances"][0]["best"] == 1
    assert [one["word"] for one in client.post("/next", json={"prompt": "a", "k": 2}).json()["next"]] == ["a", "</s>"]
