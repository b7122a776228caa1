"""Take the figures of a GPU, the most wanted first, within a limit of minutes. Jobs that are done are not done again.

    python benchmarks/figures_gpu.py --data DIR --work DIR --minutes 28                      # all, in order
    python benchmarks/figures_gpu.py --data DIR --work DIR --minutes 9 --only layer,filter   # and what they need
    python benchmarks/figures_gpu.py --list

DIR has wiki/ and books/ (train-*.txt.xz, valid.txt.xz, test.txt.xz), nbest/ and reading/. Three kinds of jobs: `host`
jobs use no GPU (preparing text) and run beside others; `timed` jobs have the GPU and the machine to themselves, because
what they measure is time; `shared` jobs train models whose time does not matter, several at once. NVIDIA's MPS lets
them share the chip, if it can be started. Outputs are in the work directory; logs in WORK/logs. What is worth keeping
is listed in KEPT and packed into --pack FILE.tgz after every job.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHON = sys.executable
MPS_SECONDS = 5.0
MPS_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"


@dataclass(frozen=True)
class Job:
    """A command of the shell, with $DATA, $WORK, $PYTHON and $HERE; what it needs, and what it may run beside."""

    name: str
    kind: str  # host, timed or shared
    command: str
    needs: tuple[str, ...] = ()
    shares: bool = True  # through MPS, where it is on: a process that crashes ends all that share


def _recogniser(name: str, *needs: str) -> Job:
    told = f"$PYTHON $HERE/recogniser.py --lists $DATA/nbest --work $WORK/recogniser --stage train,score --only {name}"
    return Job(f"recogniser-{name}", "shared", told, ("recogniser-text", *(f"recogniser-{one}" for one in needs)))


def _reading(name: str) -> Job:
    told = (
        f"$PYTHON $HERE/reading.py --reading $DATA/reading --work $WORK/reading --stage train,surprisal --only {name}"
    )
    return Job(f"reading-{name}", "shared", told, ("reading-text",))


def _layer(what: str, options: str = "") -> Job:
    command = f"$PYTHON $HERE/layer.py {what} {options} --out $WORK/layer"
    return Job(f"layer-{what}", "timed", command, shares=False)


def _filter_run(name: str) -> Job:
    train = f"$PYTHON $HERE/filter.py train $WORK/filter --models {name} --device cuda --loss chunk-bnce"
    return Job(f"filter-{name}", "shared", f"{train} --set training.epochs=1", ("wiki-text",))


FILTER_MODELS = ("ffnn", "rnn", "lstm", "relu-lstm")
FILTER_RUNS = (*(f"filter-{name}" for name in FILTER_MODELS), "filter-transformer")
ONE_EPOCH = "--set training.epochs=1 --set training.evaluations_per_epoch=1"
# Recurrent layers step by step, as the kept runs were timed; without the variable where all are timed anew.
ALTERNATIVES = "BNCE_PERSISTENT=0 $PYTHON $HERE/alternatives.py $WORK/filter/corpus --out $WORK/alternatives"
# The losses that the verdicts are about, then the others.
VERDICT = "softmax,chunk-bnce,chunk-softmax"
MAIN = f"{VERDICT},bnce,self-normalised-softmax,adaptive-softmax"
OTHERS = "sampled-softmax-unigram,sampled-softmax,nce,snce,blackout,class-softmax,hierarchical-softmax"
REST = "bnce-1000,chunk-softmax-free,nce-learned-z,negative-sampling,bnce-200,bnce-4000"
NEEDED = ("wiki-text", "kept-alternatives")


def _alternatives(name: str, options: str, needs: tuple[str, ...], num_at_once: int = 1, command: str = "") -> Job:
    """Search with several copies of the command, then train alone what is timed."""
    command = f"{command or ALTERNATIVES} {ONE_EPOCH} {options}"
    searched = f"for copy in $(seq {num_at_once}); do {command} --untimed & sleep 1; done; wait; "
    return Job(name, "timed", (searched if num_at_once > 1 else "") + command, needs)


SPLITS = "--valid $DATA/wiki/valid.txt.xz --test $DATA/wiki/test.txt.xz"

TESTS = ("tests/gpu/test_training.py", "tests/gpu/test_layer_on_gpu.py", "tests/gpu/test_[!lt]*.py")

JOBS = (
    Job(
        "wiki-text",
        "host",
        f"$PYTHON $HERE/filter.py make $WORK/filter --train $DATA/wiki/train-1.txt.xz {SPLITS} --order 0",
    ),
    Job(
        "wiki-shards",
        "host",
        "cd $HERE && $PYTHON -c \"import filter, os, pathlib; work = pathlib.Path(os.environ['WORK'], 'filter');"
        " filter.write_shards(work, 'valid', 1_200_000, 10_000_000);"
        " filter.write_shards(work, 'train', 60_000_000, 10_000_000)\"",
        ("wiki-text",),
    ),
    *(
        Job(
            f"tests-{number}",
            "shared",
            f"cd $HERE/.. && $PYTHON -m pytest --override-ini addopts=-q -p no:cacheprovider {files}",
            shares=False,
        )
        for number, files in enumerate(TESTS, 1)
    ),
    *map(_filter_run, FILTER_MODELS),
    Job(
        "filter-transformer",
        "shared",
        "$PYTHON -m bnce train transformer --corpus $WORK/filter/corpus --out $WORK/filter/runs/transformer"
        " --set training.epochs=1",
        ("wiki-text",),
    ),
    Job(
        "judge",
        "shared",
        "mkdir -p $WORK/filter/judged; cp -n $DATA/judged/lots.json $WORK/filter/judged/;"
        " $PYTHON $HERE/filter.py judge $WORK/filter --device cuda",
        FILTER_RUNS,
    ),
    Job(
        "documents",
        "shared",
        'cd $HERE && SHARDS=$($PYTHON -c "import filter, os, pathlib;'
        " print(filter.write_shards(pathlib.Path(os.environ['WORK'], 'filter'), 'test', 1_000_000, 1_000_000))\")"
        f" && for model in {' '.join(FILTER_MODELS)} transformer; do $PYTHON -m bnce filter $WORK/filter/runs/$model"
        " $SHARDS --out $WORK/filter/out-$model --device cuda --json > $WORK/filter/documents-$model.json; done",
        FILTER_RUNS,
    ),
    # The rest of the text may arrive while the first jobs run; whoever brings it makes the file.
    Job("text-is-there", "host", "until [ -e $DATA/complete ]; do sleep 0.5; done"),
    Job(
        "recogniser-text",
        "host",
        "$PYTHON $HERE/recogniser.py --books $DATA/books --wiki $DATA/wiki --lists $DATA/nbest --work $WORK/recogniser"
        " --stage prepare",
        ("text-is-there",),
    ),
    Job(
        "reading-text",
        "host",
        "mkdir -p $WORK/reading && cp -rn $HERE/results/h200/reading/. $WORK/reading/; $PYTHON $HERE/reading.py"
        " --books $DATA/books --wiki $DATA/wiki --reading $DATA/reading --work $WORK/reading --stage prepare",
        ("text-is-there",),
    ),
    Job(
        "cased-text",
        "host",
        f"$PYTHON -m bnce prepare $DATA/wiki/train-*.txt.xz {SPLITS} --cased --vocab-size 800000 --out $WORK/cased",
        ("text-is-there",),
    ),
    _recogniser("transformer-both"),
    _recogniser("relu-lstm-large-both"),
    *(_reading(f"{name}-1") for name in ("transformer", "relu-lstm", "lstm")),
    *map(_recogniser, ("relu-lstm", "lstm", "transformer", "relu-lstm-large")),
    _recogniser("transformer-adapted", "transformer-both"),
    _recogniser("relu-lstm-large-adapted", "relu-lstm-large-both"),
    *(_reading(f"{name}-{seed}") for seed in (2, 3) for name in ("transformer", "relu-lstm", "lstm")),
    _layer("tables", "--hidden-size 512 --rounds 15"),
    *map(_layer, ("calls", "linear")),
    Job(
        "filter",
        "timed",
        "$PYTHON $HERE/filter.py speed $WORK/filter --model relu-lstm --device cuda --precision bf16 --words 60000000"
        " --alone-documents 20000",
        ("wiki-shards",),
        shares=False,
    ),
    Job(
        "catalogues",
        "timed",
        "$PYTHON $HERE/item_catalogues.py --like $DATA/items/Beauty.txt.xz --sizes 10000000 --timed 100"
        " --losses bnce,chunk-bnce,in-batch,softmax"
        " --out $WORK/catalogues.jsonl",
        shares=False,
    ),
    Job(
        "recurrence",
        "timed",
        '$PYTHON $HERE/recurrence.py --ways "one launch" steps --seconds 57 --out $WORK/layer',
        shares=False,
    ),
    # Runs of earlier times are not trained again.
    Job(
        "kept-alternatives",
        "host",
        "$PYTHON $HERE/kept_runs.py unpack $HERE/results/h200/alternatives-runs.jsonl $WORK/alternatives"
        " --corpus $WORK/filter/corpus",
        ("wiki-text",),
    ),
    _alternatives("alternatives-main", f"--models relu-lstm --rows {MAIN} --seeds 2", NEEDED, 4),
    _alternatives(
        "alternatives-seeds",
        f"--models relu-lstm --rows {VERDICT} --seeds 2,3,4 --drop-models",
        ("alternatives-main",),
    ),
    _alternatives("alternatives-others", f"--models relu-lstm --rows {OTHERS} --seeds 2 --drop-models", NEEDED, 4),
    _alternatives("alternatives-lstm", f"--models lstm --rows {VERDICT} --seeds 2,3,4 --drop-models", NEEDED, 3),
    _alternatives("alternatives-rest", f"--models relu-lstm --rows {REST} --seeds 2 --drop-models", NEEDED, 4),
    _alternatives(
        "cased-alternatives",
        "--recipe news --models relu-lstm --rows chunk-bnce,chunk-softmax --seeds 2,3,4"
        " --set training.max_train_tokens=27000000 --drop-models",
        ("cased-text",),
        2,
        "$PYTHON $HERE/alternatives.py $WORK/cased --out $WORK/cased-alternatives",
    ),
)
KEPT = (
    *("logs", "layer", "catalogues.jsonl"),
    *("filter/judged", "filter/results.jsonl"),
    *(f"filter/documents-{name}.json" for name in (*FILTER_MODELS, "transformer")),
    *(f"recogniser/{name}" for name in ("scores", "trained", "commands.jsonl")),
    *(f"reading/{name}" for name in ("surprisals", "trained", "commands", "dropped.json")),
    *("alternatives", "cased-alternatives"),
)
LARGE = (".safetensors", ".npy", ".zst", ".parquet", ".bin", "vocab.txt", "tensorboard")


class Queue:
    """Runs jobs as the rules of their kinds allow, in the order of the list."""

    def __init__(self, data: Path, work: Path, jobs: list[Job], num_shared: int, packed: Path | None = None) -> None:
        self.work, self.waiting, self.num_shared, self.packed = work, list(jobs), num_shared, packed
        self.running: dict[Job, tuple[subprocess.Popen[bytes], float]] = {}
        source = os.pathsep.join([str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")])
        places = {"DATA": data, "WORK": work, "PYTHON": PYTHON, "HERE": HERE, "PYTHONPATH": source}
        self.environment = {**os.environ, **{name: str(place) for name, place in places.items()}}
        self.failed: set[str] = set()
        for name in ("logs", "done"):
            (work / name).mkdir(parents=True, exist_ok=True)

    def is_done(self, name: str) -> bool:
        """Say whether a job has ended well, now or in an earlier call."""
        return (self.work / "done" / name).exists()

    def can_start(self, job: Job) -> bool:
        """Say whether a job may run beside those that run."""
        kinds = [other.kind for other in self.running]
        if not all(map(self.is_done, job.needs)):
            return False
        if job.kind == "timed":
            return not kinds
        return "timed" not in kinds and (job.kind == "host" or kinds.count("shared") < self.num_shared)

    def run(self, seconds: float) -> None:
        """Run all jobs, and stop what still runs after so many seconds."""
        begin = time.monotonic()
        while self.waiting or self.running:
            if time.monotonic() - begin > seconds:
                self.stop()
                return
            for job in [job for job in self.running if self.running[job][0].poll() is not None]:
                self._end(job, time.monotonic() - begin)
            for job in list(self.waiting):
                if self.failed.intersection(job.needs):
                    self.failed.add(job.name)
                    self.waiting.remove(job)
                elif self.can_start(job):
                    self._start(job, time.monotonic() - begin)
                elif job.kind == "timed" and all(map(self.is_done, job.needs)) and not self._text_is_prepared():
                    continue  # it waits for the host's jobs; what is shared goes on beside these
                elif job.kind == "timed" and all(map(self.is_done, job.needs)):
                    break  # its turn: nothing new starts before it
            time.sleep(0.2)

    def stop(self) -> None:
        """End what runs."""
        for process, _ in self.running.values():
            os.killpg(process.pid, signal.SIGTERM)
        for process, _ in self.running.values():
            process.wait(30)
        left = [job.name for job in (*self.running, *self.waiting)]
        print(f"Time is over. Not done: {', '.join(left)}. The same command goes on.", flush=True)

    def _text_is_prepared(self) -> bool:
        return all(job.kind != "host" for job in (*self.running, *self.waiting))

    def _start(self, job: Job, now: float) -> None:
        alone = () if job.shares else (MPS_VARIABLE,)
        environment = {name: value for name, value in self.environment.items() if name not in alone}
        log = open(self.work / "logs" / f"{job.name}.log", "ab")  # noqa: SIM115 (the job has it)
        process = subprocess.Popen(
            ["bash", "-c", job.command], env=environment, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        self.running[job] = (process, now)
        self.waiting.remove(job)
        print(f"{now:6.0f} s  {job.name} begins", flush=True)

    def _end(self, job: Job, now: float) -> None:
        process, started = self.running.pop(job)
        if process.returncode == 0:
            (self.work / "done" / job.name).touch()
        else:
            self.failed.add(job.name)
            print((self.work / "logs" / f"{job.name}.log").read_text(errors="replace")[-1500:], flush=True)
        if self.packed is not None:  # after every job: the machine may go at any time
            pack(self.work, self.packed)
        print(f"{now:6.0f} s  {job.name} ended with {process.returncode} after {now - started:.0f} s", flush=True)


def choose(names: str) -> list[Job]:
    """Take the jobs of these names or beginnings of names, and what they need before them; all without a name."""
    by_name = {job.name: job for job in JOBS}
    wanted = set()
    for name in names.split(","):
        wanted |= {name} if name in by_name else {part for part in by_name if part.startswith(name)}
    if not wanted:
        raise SystemExit(f"No job's name begins with {names}: {', '.join(by_name)}.")
    while more := {need for name in wanted for need in by_name[name].needs} - wanted:
        wanted |= more
    return [job for job in JOBS if job.name in wanted]


def start_mps(work: Path) -> bool:
    """Start NVIDIA's daemon that lets processes compute on one GPU at the same time, where there is one."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return False
    for variable, name in ((MPS_VARIABLE, "mps"), ("CUDA_MPS_LOG_DIRECTORY", "mps-log")):
        os.environ[variable] = str(work / name)
        (work / name).mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False, capture_output=True, timeout=MPS_SECONDS)
    if done.returncode:
        # With these, programs would take it that processes share the GPU.
        del os.environ[MPS_VARIABLE], os.environ["CUDA_MPS_LOG_DIRECTORY"]
    return done.returncode == 0


def pack(work: Path, out: Path) -> None:
    """Pack what is worth keeping, without models and texts."""
    partial = out.with_name(f"{out.name}.partial")
    with tarfile.open(partial, "w:gz") as archive:
        for name in KEPT:
            if (work / name).exists():
                archive.add(work / name, name, filter=lambda info: None if info.name.endswith(LARGE) else info)
    partial.rename(out)


def main() -> None:
    """Run the jobs that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="directory of texts and lists")
    parser.add_argument("--work", type=Path, help="directory for everything that is made")
    parser.add_argument("--only", default="", help="jobs, or how their names begin, divided by commas")
    parser.add_argument("--minutes", type=float, default=28.0, help="stop after N minutes (28)")
    parser.add_argument("--shared", type=int, default=4, help="models that are trained at once (4)")
    parser.add_argument("--no-mps", action="store_true", help="do not start NVIDIA's MPS")
    parser.add_argument("--pack", type=Path, metavar="FILE.tgz", help="pack the results into this file after every job")
    parser.add_argument("--list", action="store_true", help="print the jobs and stop")
    given = parser.parse_args()
    jobs = choose(given.only)
    if given.list:
        print("\n".join(f"{job.kind:7} {job.name}" for job in jobs))
        return
    if given.data is None or given.work is None:
        parser.error("give --data and --work")
    work = given.work.resolve()
    print(f"MPS: {'on' if not given.no_mps and start_mps(work) else 'off'}", flush=True)
    queue = Queue(
        given.data.resolve(),
        work,
        [job for job in jobs if not (work / "done" / job.name).exists()],
        given.shared,
        given.pack,
    )
    try:
        queue.run(60 * given.minutes)
    finally:
        if given.pack is not None:
            pack(work, given.pack)


if __name__ == "__main__":
    main()
