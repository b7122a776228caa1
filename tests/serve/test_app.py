"""The endpoints: the library's numbers as JSON, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import math
import mmap
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

from .conftest import MakeClient, check_answer, make_model

PAGES = {
    "/": "text/html",
    "/page.css": "text/css",
    "/page.js": "text/javascript",
    "/docs": "text/html",
    "/docs.js": "text/javascript",
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
    check_answer("ScoreAnswer", answer)
    expected = model.score(SENTENCES, normalised=mode == "normalised")
    for number, (found, scored) in enumerate(zip(answer["sentences"], expected, strict=True)):
        assert found["text"] == number
        assert found["words"] == scored.words
        assert found["oov"] == scored.oov.tolist()
        np.testing.assert_allclose(found["log10_probs"], scored.log10_probs, atol=1e-6)
        assert found["log10_prob"] == pytest.approx(scored.log10_prob, abs=1e-5)
        assert "exact_log10_probs" not in found
    assert answer["totals"]["num_oov"] == 3
    assert answer["totals"]["log10_prob"] == pytest.approx(sum(scored.log10_prob for scored in expected), abs=1e-5)
    assert answer["log_z"] == (9.0 if mode == "unnormalised" else None)


def test_unknown_words_are_spelt_if_asked(make_client: MakeClient) -> None:
    model = make_model(spelt=["zebras"])
    client = make_client(model)
    spelt = post(client, "/score", {"sentences": SENTENCES, "spell": True, "exact": True})
    check_answer("ScoreAnswer", spelt)
    for key, normalised in (("log10_prob", False), ("exact_log10_prob", True)):
        expected = model.score(SENTENCES, normalised=normalised, spell=True)
        for found, scored in zip(spelt["sentences"], expected, strict=True):
            assert found[key] == pytest.approx(scored.log10_prob, abs=1e-5)
    assert spelt["totals"]["num_oov"] == 0
    assert spelt["totals"]["bits_per_byte"] == pytest.approx(
        -spelt["totals"]["log10_prob"] / math.log10(2) / spelt["totals"]["num_bytes"]
    )
    plain = post(client, "/score", {"sentences": SENTENCES})
    assert (plain["totals"]["num_oov"], plain["totals"]["bits_per_byte"]) == (3, None)


def test_exact_values_beside_the_unnormalised(client: TestClient, model: Model) -> None:
    answer = post(client, "/score", {"sentences": SENTENCES, "exact": True})
    check_answer("ScoreAnswer", answer)
    plain, exact = (model.score(SENTENCES, normalised=normalised) for normalised in (False, True))
    for found, one, other in zip(answer["sentences"], plain, exact, strict=True):
        np.testing.assert_allclose(found["log10_probs"], one.log10_probs, atol=1e-6)
        np.testing.assert_allclose(found["exact_log10_probs"], other.log10_probs, atol=1e-6)
        # ln Z(context), computed by the network itself.
        scorer = model.scorer()
        states = [scorer.start()]
        for word in one.ids[:-1]:
            states += scorer.advance(states[-1:], [word])
        log_z = [float(scorer.log_normaliser(state.states)[state.place]) for state in states]
        np.testing.assert_allclose(found["log_z"], log_z, atol=1e-5)
    every = [value for found in answer["sentences"] for value in found["log_z"]]
    assert answer["log_z_mean"] == pytest.approx(sum(every) / len(every))
    assert answer["exact_totals"]["log10_prob"] == pytest.approx(sum(s.log10_prob for s in exact), abs=1e-5)


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
        np.testing.assert_allclose(found["log10_probs"], scored.log10_probs, atol=1e-5)
    hypotheses = [{"text": text} for text in texts]
    (utterance,) = post(client, "/rescore", {"utterances": [{"hypotheses": hypotheses}]})["utterances"]
    totals = [sentence["log10_prob"] * math.log(10) for sentence in answer["sentences"]]
    assert [hypothesis["new_lm"] for hypothesis in utterance["hypotheses"]] == pytest.approx(totals, rel=1e-5)


@pytest.mark.parametrize("normalised", [False, True])
def test_next_words_are_the_librarys(client: TestClient, model: Model, normalised: bool) -> None:
    expected = model.next_words("w3 Zebra", 4, normalised=normalised)
    asked = {"prompt": "w3 Zebra", "k": 4, "normalised": normalised}
    by_post = post(client, "/next", asked)
    check_answer("NextAnswer", by_post)
    assert client.get("/next", params=asked).json() == by_post
    assert by_post["words"] == ["w3", "zebra"]
    assert [word["word"] for word in by_post["next"]] == [word.word for word in expected]
    assert [word["prob"] for word in by_post["next"]] == pytest.approx([word.prob for word in expected])
    everything = post(client, "/next", {"k": 100})["next"]
    assert len(everything) == len(model.vocabulary)
    assert sum(word["prob"] for word in everything) == pytest.approx(1)


@pytest.mark.parametrize("mode", ["unnormalised", "normalised"])
def test_hypotheses_are_rescored(client: TestClient, model: Model, mode: str) -> None:
    utterances = [
        {"id": "one", "hypotheses": [{"text": "w3 w4", "am": -5.0, "lm": -2.0}, {"text": "w3 zebra", "am": -4.5}]},
        {"id": "two", "hypotheses": [{"text": ""}, {"text": "w9 w9 w9", "am": 1.0}, {"text": "w9 w9 w9", "am": 1.0}]},
    ]
    weights = {"am_weight": 0.7, "old_lm_weight": 0.2, "lm_weight": 1.3, "word_penalty": 0.5, "oov_penalty": 0.25}
    weights["rank_weight"] = 0.3
    answer = post(client, "/rescore", {"utterances": utterances, **weights, "mode": mode})
    check_answer("RescoreAnswer", answer)
    for given, found in zip(utterances, answer["utterances"], strict=True):
        assert found["id"] == given["id"]
        hypotheses: Any = given["hypotheses"]
        words = [hypothesis["text"].split() for hypothesis in hypotheses]
        scored = model.score_words(words, normalised=mode == "normalised", share_prefixes=True)
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


def test_health_and_metrics(client: TestClient) -> None:
    health = client.get("/healthz").json()
    check_answer("HealthAnswer", health)
    assert (health["run"], health["log_z"], health["self_normalised"]) == ("small", 9.0, True)
    post(client, "/score", {"sentences": ["w3 w4", "w5"]})
    client.post("/score", content=b"{")
    client.get("/score/../secret")
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = response.text.splitlines()
    assert 'bnce_requests_total{endpoint="/score",status="200"} 1' in lines
    assert 'bnce_requests_total{endpoint="/score",status="415"} 1' in lines
    # Whatever is asked for, the names of endpoints are ours.
    assert 'bnce_requests_total{endpoint="other",status="404"} 1' in lines
    assert "bnce_words_total 5" in lines
    assert "bnce_batch_questions_sum 2" in lines
    assert "bnce_waiting_requests 0" in lines
    sample = re.compile(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+')
    assert all(sample.fullmatch(line) or re.match(r"# (HELP|TYPE) [a-z_]+ ", line) for line in lines)
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def measured(client: TestClient) -> dict[str, float]:
    """Read the server's counts by their names."""
    lines = client.get("/metrics").text.splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


def test_a_histogram_counts_up_to_its_bounds(client: TestClient) -> None:
    for num_sentences in (1, 1, 2, 3, 5000 // 8):
        post(client, "/score", {"sentences": ["w3"] * num_sentences})
    counts = measured(client)
    parts = "bnce_batch_questions"
    found = [counts[f'{parts}_bucket{{le="{bound}"}}'] for bound in (1, 2, 4, 512, 1024, "+Inf")]
    assert found == [2, 3, 4, 4, 5, 5]
    assert (counts[f"{parts}_sum"], counts[f"{parts}_count"]) == (632, 5)
    assert counts['bnce_request_seconds_bucket{endpoint="/score",le="30.0"}'] == 5


def test_memory_is_that_of_this_process(client: TestClient) -> None:
    before = measured(client)["process_resident_memory_bytes"]
    held = mmap.mmap(-1, 2**26)  # not from what this process has freed
    for place in range(0, len(held), mmap.PAGESIZE):
        held[place] = 1
    assert 2**25 < measured(client)["process_resident_memory_bytes"] - before < 2**28
    held.close()


@pytest.mark.parametrize(
    ("mode", "max_batch", "num_passes"),
    [("unnormalised", 10, 5), ("unnormalised", 50, 1), ("normalised", 160, 5), ("normalised", 800, 1)],
)
def test_exact_answers_take_up_more_of_a_batch(
    make_client: MakeClient, model: Model, mode: str, max_batch: int, num_passes: int
) -> None:
    """Of ten sentences of five tokens each, `</s>` counted; an exact token counts sixteen times."""
    client = make_client(model, max_batch=max_batch)
    post(client, "/score", {"sentences": ["w3 w3 w3 w3"] * 10, "mode": mode})
    assert measured(client)["bnce_batch_questions_count"] == num_passes


@pytest.mark.parametrize(("max_batch", "num_parts"), [(7, 4), (9, 3), (10, 2), (100, 1)])
def test_hypotheses_are_cut_into_parts_that_fit_a_batch(
    make_client: MakeClient, model: Model, max_batch: int, num_parts: int
) -> None:
    """Of 3, 3, 3, 9 and 1 tokens with `</s>`; a part is larger only where one hypothesis is."""
    hypotheses = [{"text": " ".join(["w3"] * length)} for length in (2, 2, 2, 8, 0)]
    for mode, cost in (("unnormalised", 1), ("normalised", 16)):
        client = make_client(model, max_batch=cost * max_batch)
        post(client, "/rescore", {"utterances": [{"hypotheses": hypotheses}], "mode": mode})
        assert measured(client)["bnce_batch_questions_sum"] == num_parts


def test_a_token_is_asked_for_where_there_is_one(make_client: MakeClient, model: Model) -> None:
    client = make_client(model, token="0123456789abcdef")
    for path in (*PAGES, "/openapi.json"):
        assert client.get(path).status_code == 200
    assert client.get("/healthz").json() == {"status": "ok"}
    for path in ("/metrics", "/next", "/nothing"):
        refused = client.get(path)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer realm="bnce"')
        assert refused.json()["detail"].startswith("This server needs a token: send the header")
    client.headers["authorization"] = "Bearer 0123456789abcdef"
    assert client.get("/healthz").json()["run"] == "small"
    assert client.get("/metrics").status_code == 200
    assert post(client, "/score", {"sentences": ["w3"]})["totals"]["num_words"] == 1


def test_a_name_that_is_not_ours_is_refused(client: TestClient) -> None:
    for host in ("evil.example", "localhost.evil.example", "192.0.2.1:8000"):
        refused = client.get("/healthz", headers={"host": host})
        assert refused.status_code == 421
        assert refused.json()["detail"].startswith(
            f"'{host}' is not an allowed host name of this server: start it with allowed_host"
        )
    assert client.get("/healthz", headers={"host": "127.0.0.1:8000"}).status_code == 200


def test_a_softmax_run_has_exact_values_alone(make_client: MakeClient) -> None:
    model = make_model(loss="softmax")
    client = make_client(model)
    health = client.get("/healthz").json()
    assert (health["self_normalised"], health["log_z"]) == (False, None)
    refusals = [
        ("/score", {"sentences": ["w3"]}),
        ("/rescore", {"utterances": [{"hypotheses": [{"text": "w3"}]}]}),
        ("/next", {"normalised": False}),
    ]
    for path, body in refusals:
        response = client.post(path, json=body)
        assert response.status_code == 422
        assert 'was trained with the softmax and has no constant Z: send "' in response.json()["detail"]
    answer = post(client, "/score", {"sentences": ["w3 w4"], "mode": "normalised", "exact": True})
    np.testing.assert_allclose(
        answer["sentences"][0]["log10_probs"], model.score(["w3 w4"], normalised=True)[0].log10_probs, atol=1e-6
    )
    assert "log_z_mean" not in answer


def test_a_run_that_normalises_itself_answers_in_both_ways(make_client: MakeClient) -> None:
    client = make_client(make_model(loss="adaptive-softmax"))
    (found,) = post(client, "/score", {"sentences": ["w3 w4"], "mode": "unnormalised", "exact": True})["sentences"]
    assert found["log10_probs"] == pytest.approx(found["exact_log10_probs"], abs=1e-6)
    assert post(client, "/next", {"prompt": "w3", "k": 5})["next"]


MANY = {"sentences": 3, "hypotheses": 2, "words": 8, "exact_words": 5, "sentence_words": 4, "next": 6}


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/score", {"sentences": ["w3"] * 4}, 413, "The request has 4 sentences: this server accepts at most 3"),
        ("/score", {"texts": ["w3 . w4 . w5 . w6"]}, 413, "The request has 4 sentences"),
        (
            "/score",
            {"sentences": ["w3 w4 w5"] * 3},
            413,
            "The request has 9 words or more: this server accepts at most 8",
        ),
        ("/score", {"sentences": ["w3 w4 w5"] * 2, "exact": True}, 413, "6 words for normalised probabilities"),
        ("/score", {"sentences": ["w3 w4 w5"] * 2, "mode": "normalised"}, 413, "6 words for normalised"),
        ("/score", {"sentences": ["w3 w3 w3 w3 w3"]}, 413, "5 words in one sentence: this server accepts at most 4"),
        ("/score", {}, 422, "Give either 'sentences' (each string one sentence) or 'texts'"),
        ("/score", {"sentences": [], "texts": []}, 422, "Give either 'sentences'"),
        ("/score", {"sentences": ["w3"], "mood": "good"}, 422, "mood: there is no such field; see /docs"),
        ("/score", {"sentences": ["w3"], "mode": "checked"}, 422, "mode: Input should be 'unnormalised' or"),
        ("/score", {"sentences": [None]}, 422, "sentences.0: Input should be a valid string"),
        ("/score", {"sentences": "w3"}, 422, "sentences: Input should be a valid list"),
        ("/score", ["w3"], 422, "the body: "),
        ("/rescore", {"utterances": [{"hypotheses": []}]}, 422, "utterances.0.hypotheses: List should have at least 1"),
        ("/rescore", {"utterances": [{"hypotheses": [{"text": "w3"}] * 3}]}, 413, "3 hypotheses"),
        ("/rescore", {"utterances": [], "lm_weight": "loud"}, 422, "lm_weight: Input should be a valid number"),
        ("/next", {"k": 7}, 422, "k is 7: this server returns at most 6 next words."),
        ("/next", {"k": 0}, 422, "k: Input should be greater than or equal to 1"),
        ("/next", {"prompt": "w3 " * 5, "k": 1}, 413, "5 words in one sentence"),
        # Other types are not made into the right one.
        ("/next", {"k": True}, 422, "k: Input should be a valid "),
        ("/next", {"k": "5"}, 422, "k: Input should be a valid "),
        ("/next", {"normalised": 1}, 422, "normalised: Input should be a valid "),
        ("/rescore", {"utterances": [], "lm_weight": True}, 422, "lm_weight: Input should be a valid "),
        ("/rescore", {"utterances": [{"hypotheses": [{"text": "w3", "am": False}]}]}, 422, "Input should be a valid "),
        ("/score", {"sentences": ["w3"], "spell": "no"}, 422, "spell: Input should be a valid "),
        ("/score", {"sentences": ["w3"], "spell": True}, 422, "has no spelling model"),
    ],
)
def test_refusals(make_client: MakeClient, model: Model, path: str, body: Any, status: int, told: str) -> None:
    client = make_client(model, **{f"max_{name}": most for name, most in MANY.items()})
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
        (b'{"sentences": ["\xff"]}', 400, "The body is not UTF-8: byte 0xff at offset 16"),
        (json.dumps({"sentences": ["w3"]}).encode("utf-16"), 400, "The body is not UTF-8: byte 0xff at offset 0"),
        (b'{"sentences": ["\\ud800"]}', 422, "sentences.0: Value error, the text has half of a surrogate pair"),
        (b'{"utterances": [], "lm_weight": NaN}', 422, "see /docs."),
        (b'{"sentences": ["' + b"w" * 2**20 + b'"]}', 413, "The body is larger than 1048576 bytes"),
    ],
)
def test_bodies_that_are_no_request(client: TestClient, content: bytes, status: int, told: str) -> None:
    path = "/rescore" if b"utterances" in content else "/score"
    response = client.post(path, content=content, headers={"content-type": "application/json; charset=utf-8"})
    assert response.status_code == status, response.text
    assert told in response.json()["detail"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("charset", ["utf-16", '"UTF-16LE"', "latin-1", ""])
def test_a_body_that_is_declared_in_another_encoding(client: TestClient, charset: str) -> None:
    body = json.dumps({"sentences": ["w3"]})
    for content in (body.encode(), body.encode("utf-16-le")):
        headers = {"content-type": f"application/json;charset={charset}"}
        response = client.post("/score", content=content, headers=headers)
        assert response.status_code == 415
        told = charset.strip('"').lower()
        assert response.json()["detail"] == f"The body is declared as {told}: send JSON in UTF-8."


@pytest.mark.parametrize("path", ["/healthz", "/", "/metrics", "/none", "/score"])
def test_head_is_get_without_the_body(client: TestClient, path: str) -> None:
    head, get = client.head(path), client.get(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    for name in ("content-type", "cache-control"):
        assert head.headers[name] == get.headers[name]


def test_other_paths_methods_and_kinds(client: TestClient) -> None:
    assert client.get("/score").json()["detail"] == "'/score' does not accept GET: see /docs."
    assert client.get("/score").status_code == 405
    assert client.get("/etc/passwd").json()["detail"].startswith("There is nothing at '/etc/passwd'")
    form = client.post("/score", data={"sentences": "w3"})
    assert (form.status_code, form.json()["detail"][:25]) == (415, "The body must be JSON: se")
    query = client.get("/next", params={"k": "many"})
    assert (query.status_code, query.json()["detail"][:27]) == (422, "k: Input should be a valid ")


def test_a_failure_is_told_without_its_insides(
    make_client: MakeClient, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("secret insides")

    client = make_client(model)
    monkeypatch.setattr(model, "next_words_after", fail)
    response = client.get("/next")
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


def test_the_interface_is_described(client: TestClient) -> None:
    api = client.get("/openapi.json").json()
    assert set(api["paths"]) == {"/score", "/rescore", "/next", "/healthz", "/metrics"}
    refusals = api["paths"]["/score"]["post"]["responses"]
    assert {"200", "400", "401", "408", "413", "415", "421", "422", "503", "504"} == set(refusals)
    assert refusals["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorAnswer")


def test_a_total_that_is_not_finite_is_refused(make_client: MakeClient, model: Model) -> None:
    huge = {"utterances": [{"hypotheses": [{"text": "w3", "am": 1e308}]}], "am_weight": 1e308}
    answer = make_client(model).post("/rescore", json=huge)
    assert answer.status_code == 422
    assert "The total of a hypothesis is not a finite number with am_weight 1e+308" in answer.text


def test_a_mixture_is_served_as_a_run_is(make_client: MakeClient, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    run, arpa = small_run(tmp_path / "run"), tmp_path / "bigram.arpa"
    (tmp_path / "text.txt").write_text("".join(f"w{number} " for number in random_ids(2000)), encoding="utf-8")
    run_command("ngram", tmp_path / "text.txt", "--vocab", run, "--order", 2, "--out", arpa)
    mixture, ngram = load(write_mixture(tmp_path / "mix.toml", [run, arpa], [0.6, 0.4])), load(arpa)
    client = make_client(mixture)
    health = client.get("/healthz").json()
    assert (health["kind"], health["log_z"], health["self_normalised"]) == ("mixture", None, True)
    assert health["vocab_size"] == VOCAB_SIZE
    sentences = ["w3 w4 zebra", "w5", ""]
    for mode in ("unnormalised", "normalised"):
        answer = client.post("/score", json={"sentences": sentences, "mode": mode}).json()
        expected = mixture.score(sentences, normalised=mode == "normalised")
        for found, sentence in zip(answer["sentences"], expected, strict=True):
            assert found["log10_probs"] == pytest.approx(sentence.log10_probs.tolist(), abs=1e-5)
            assert found["oov"] == sentence.oov.tolist()
    both = client.post("/score", json={"sentences": sentences, "exact": True}).json()
    assert (both["log_z"], both["log_z_mean"]) == (None, None)
    assert both["exact_totals"]["log10_prob"] == pytest.approx(sum(one.log10_prob for one in expected), abs=1e-4)
    utterances = [{"id": "a", "hypotheses": [{"text": "w3 w4"}, {"text": "w9 w9 w9"}]}]
    (rescored,) = client.post("/rescore", json={"utterances": utterances}).json()["utterances"]
    assert rescored["best"] == mixture.rescore(["w3 w4", "w9 w9 w9"])[0].place
    words = client.get("/next", params={"prompt": "w3", "k": 4}).json()["next"]
    assert [word["word"] for word in words] == [word.word for word in mixture.next_words("w3", 4)]
    alone = make_client(ngram)
    assert alone.get("/healthz").json()["kind"] == "n-gram"
    assert alone.post("/score", json={"sentences": ["w3"]}).status_code == 200
