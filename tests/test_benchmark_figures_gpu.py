"""benchmarks/figures_gpu.py: which jobs run beside which, what is left out, and what happens when time is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import figures_gpu
from benchmarks.figures_gpu import Job, Queue

# Each job notes its beginning and its end.
WORDS = "echo {0}+ >> $WORK/order; sleep {1}; echo {0}- >> $WORK/order"


def job(name: str, kind: str, *needs: str, seconds: float = 0.1) -> Job:
    return Job(name, kind, WORDS.format(name, seconds), needs)


def order(work: Path) -> list[str]:
    return (work / "order").read_text(encoding="ascii").split()


def test_a_timed_job_runs_alone_and_what_is_shared_runs_together(tmp_path: Path) -> None:
    jobs = [
        job("text", "host", seconds=0.5),
        job("time", "timed"),
        job("a", "shared", "text", seconds=0.5),
        job("b", "shared", "text", seconds=0.5),
        job("c", "shared", "text"),
        job("later", "timed", "b"),
    ]
    Queue(tmp_path, tmp_path, jobs, num_shared=2).run(60)
    found = order(tmp_path)
    for name in ("time", "later"):
        assert found.index(f"{name}-") == found.index(f"{name}+") + 1, "nothing beside it"
    assert found.index("time+") > found.index("text-"), "preparing text would disturb it"
    assert found.index("b+") < found.index("a-"), "two at once"
    assert found.index("c+") > min(found.index("a-"), found.index("b-")), "not three"
    assert sorted(path.name for path in (tmp_path / "done").iterdir()) == sorted(one.name for one in jobs)


def test_what_needs_a_failed_job_is_left_out_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        Job("bad", "shared", "echo the reason; exit 3"),
        job("after", "shared", "bad"),
        job("last", "timed", "after"),
        job("other", "timed"),
    ]
    Queue(tmp_path, tmp_path, jobs, num_shared=2).run(60)
    assert order(tmp_path) == ["other+", "other-"]
    told = capsys.readouterr().out
    assert "the reason" in told
    assert "bad ended with 3" in told


def test_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = Queue(tmp_path, tmp_path, [job("quick", "timed"), job("long", "timed", seconds=60)], num_shared=1)
    queue.run(1.5)
    assert "Not done: long." in capsys.readouterr().out
    assert queue.is_done("quick")
    assert not queue.is_done("long")


def test_results_without_models_are_packed_after_every_job(tmp_path: Path) -> None:
    packed = tmp_path / "kept.tgz"
    later = Job("later", "timed", f"tar tzf {packed} > $WORK/seen")
    into = "mkdir -p $WORK/layer $WORK/elsewhere; cd $WORK"
    made = Job("made", "timed", f"{into}; touch layer/figures layer/model.safetensors elsewhere/file.json")
    Queue(tmp_path, tmp_path, [made, later], num_shared=1, packed=packed).run(60)
    seen = (tmp_path / "seen").read_text(encoding="ascii")
    assert "layer/figures" in seen.split()
    assert "model.safetensors" not in seen
    assert "elsewhere" not in seen


def test_every_job_can_be_chosen_with_what_it_needs() -> None:
    names = [one.name for one in figures_gpu.JOBS]
    assert len(set(names)) == len(names)
    for place, one in enumerate(figures_gpu.JOBS):
        assert one.kind in ("host", "timed", "shared")
        assert set(one.needs) <= set(names[:place]), one.name
    needed = ["wiki-text", "kept-alternatives", "alternatives-main", "alternatives-seeds"]
    assert [one.name for one in figures_gpu.choose("alternatives-seeds")] == needed
    with pytest.raises(SystemExit, match="No job's name begins with nothing"):
        figures_gpu.choose("nothing")
