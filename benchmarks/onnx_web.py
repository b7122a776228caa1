"""Does an export give the same numbers in a browser's ONNX Runtime? Its WebAssembly is run by Node.js, and compared.

    npm install --prefix WORK onnxruntime-web
    python benchmarks/onnx_web.py WORK RUN...

What the exporter asks the graphs, to compare them with PyTorch, is asked again. Status 1 if an answer differs by 1e-4.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from bnce.export import to_onnx
from bnce.runs.directory import Run

PROGRAM = """
import * as ort from "onnxruntime-web";
import fs from "fs";
ort.env.wasm.numThreads = 1;
const tensor = ([type, dims, data]) => type.includes("int")
    ? new ort.Tensor("int64", BigInt64Array.from(data.map(BigInt)), dims)
    : new ort.Tensor("float32", Float32Array.from(data), dims);
const externalData = [{path: "weights.bin", data: fs.readFileSync("exported/weights.bin")}];
let worst = 0;
for (const [graph, feed, expected] of JSON.parse(fs.readFileSync("questions.json"))) {
    const session = await ort.InferenceSession.create(fs.readFileSync(`exported/${graph}`), {externalData});
    const given = Object.entries(feed).map(([name, one]) => [name, tensor(one)]);
    const answer = await session.run(Object.fromEntries(given));
    expected.forEach(([type, dims, data], place) => {
        const found = answer[session.outputNames[place]];
        if (String(found.dims) !== String(dims)) throw Error(`${graph} gives ${found.dims}, not ${dims}`);
        data.forEach((number, i) => worst = Math.max(worst, Math.abs(Number(found.data[i]) - number)));
    });
}
console.log(worst);
"""
work, *runs = map(Path, sys.argv[1:])
run_graph, questions, differences = to_onnx.run_graph, [], []


def asked(session, feed):
    """Ask a graph, and keep the question and the answer."""
    found = run_graph(session, feed)
    question = {name: written(one) for name, one in feed.items()}
    questions.append((Path(session._model_path).name, question, list(map(written, found))))
    return found


def written(tensor):
    """Write a tensor as JSON has it."""
    return str(tensor.dtype), list(tensor.shape), tensor.flatten().tolist()


to_onnx.run_graph = asked
(work / "ask.mjs").write_text(PROGRAM, encoding="utf-8")
for run in runs:
    shutil.rmtree(work / "exported", ignore_errors=True)
    questions.clear()
    to_onnx.export_onnx(Run.open(run), work / "exported")
    (work / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    answer = subprocess.run(["node", "ask.mjs"], cwd=work, check=True, stdout=subprocess.PIPE, text=True)
    differences.append(float(answer.stdout))
    print(f"{run}: {len(questions)} questions, largest difference {differences[-1]:.1e}")
sys.exit(not all(one < 1e-4 for one in differences))
