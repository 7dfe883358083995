#!/usr/bin/env python3
"""plugins_test.py TRAINCTL [sound | wrong | memory | refused | hosts | plans]: layers of plugins, compiled by the system's compiler against the header.

sound    the example of docs/plugins.md passes `check --plugin`, and its job trains with the losses of one rank
wrong    plugins whose rule, sum, gradient or shape is wrong are found, by the name of what is wrong
memory   so are kernels that write outside of their results, change inputs, leave results unwritten, throw or crash
refused  plugins that cannot be loaded, and jobs that cannot run them, get errors that name the plugin and the next step
hosts    the plugin is copied to each of launch.hosts
plans    under several plans the example trains as PyTorch trains it in float64 (exit code 77: no PyTorch)"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples/plugin"
TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
COMPILER = shutil.which("cc") or shutil.which("gcc")


def require(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")


def compiled(folder, text=None, name="snake", language="c"):
    """The library of this source; the example's if none is given."""
    source = folder / f"{name}.{language}"
    source.write_text(text if text is not None else (EXAMPLE / "snake.c").read_text())
    library = folder / f"{name}.so"
    more = ["-lstdc++"] if language == "cpp" else []
    done = subprocess.run([COMPILER, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-I", ROOT / "engine/ops/plugins", "-o", library, source, "-lm", *more],
                          capture_output=True, text=True)
    require(done.returncode == 0, done.stderr)
    return library


def changed(*replacements):
    """The source of the example with these texts replaced."""
    text = (EXAMPLE / "snake.c").read_text()
    for old, new in replacements:
        require(old in text, f"snake.c has no '{old}'")
        text = text.replace(old, new)
    return text


def trainctl(*words, code=0, **more):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=300, **more)
    said = done.stdout + done.stderr
    require(done.returncode == code, f"trainctl {' '.join(map(str, words))} exited with {done.returncode}, not {code}\n{said}")
    return said


def losses(folder, *overrides):
    said = trainctl("run", folder / "job.yaml", f"launch.log_dir={folder}/logs", "train.log_every=1", *overrides)
    return [float(value) for value in re.findall(r"step: \d+, loss is ([-+.e0-9]+)", said)]


def copied_example(folder):
    shutil.copy(EXAMPLE / "job.yaml", folder)
    return compiled(folder)


def sound(folder):
    library = copied_example(folder)
    said = trainctl("check", "--plugin", library)
    for part in ("snake: sound", "row_dot: sound", "valid (2 ops", "n 2, 3, 4 ways"):
        require(part in said, f"no '{part}' in {said}")
    require("valid" in trainctl("check", folder / "job.yaml"), "the job is valid")
    shown = trainctl("show", "graph", folder / "job.yaml")
    require("row_dot" in shown and "snake@" in shown, shown)
    schema = trainctl("schema", "--plugin", library)
    require('"snake"' in schema and "Factor of the periodic part." in schema, schema[:500])
    one = losses(folder, "launch.ranks=1", "parallel.strategies=null", "train.steps=10")
    cut = losses(folder, "train.steps=10")
    require(len(one) == 10 and max(abs(a - b) / abs(a) for a, b in zip(one, cut, strict=True)) < 1e-5, f"{one} {cut}")
    trainctl("verify", folder / "job.yaml", f"launch.log_dir={folder}/logs", "train.steps=3")
    more = compiled(folder, (ROOT / "tests/plugins/more_ops.c").read_text(), name="more")
    said = trainctl("check", "--plugin", more)
    require(all(f"{op}: sound" in said for op in ("rows_of", "halves", "row_softmax")) and "n 2" not in said, said)
    (folder / "more.yaml").write_text("""name: more
plugins: [./more.so]
dataset: {type: random, shape: [16], label_shape: [4], label_dtype: f32, samples: 64, batch: 16}
network:
  - {name: fc, type: dense, units: 24}
  - {name: both, type: halves, mode: cos, outputs: [first, second]}
  - {name: rows, type: row_softmax, inputs: both.second}
  - {name: out, type: dense, units: 4}
loss: mse
optimizer: {type: sgd, learning_rate: 0.5}
""")
    runs = [re.findall(r"step: \d+, loss is (\S+)", trainctl("run", folder / "more.yaml", "train.steps=6", f"launch.log_dir={folder}/more", "launch.device=cpu", *plan))
            for plan in ([], ["launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.micro_batches=2", "parallel.strategies={both: [[1, 2]], rows: [[4, 1]]}"])]
    require(len(runs[0]) == 6 and max(abs(float(a) - float(b)) for a, b in zip(*runs, strict=True)) < 2e-4, f"{runs}")
    cut = trainctl("check", folder / "more.yaml", "launch.ranks=2", "parallel.mode=semi_auto_parallel", "parallel.strategies={rows: [[1, 2]]}", code=2)
    require("a row is divided by its sum" in cut, cut)
    job = (folder / "logs/1/job.yaml").read_text()
    digest = re.search(r"snake\.so#sha256=([0-9a-f]{64})", job)
    require(digest is not None, job)
    print(f"sound: losses of 10 steps agree; {digest[0]}")


# The planted changes, and parts of what check says about them.
WRONG = {
    "a rule that lets an output be cut by a dim that its kernel sums over":
        ([('"rn,rn->r()"', '"rn,ab->r()"')], ["row_dot", "rn,ab->r()", "dim 0", "row_dot"]),
    "a letter in place of a dim of size 1":
        ([('"rn,rn->r()"', '"rn,rn->rn"')], ["row_dot", "rule 'rn,rn->rn'", "dim 1 of", "size 24"]),
    "a parameter that is not cut with its features":
        ([("n,n->", "n,p->")], ["snake", "letter 'n'", "dim 1 of input x", "is not that of one rank"]),
    "a sum over the rows that is missing":
        ([("da[i % features] +=", "da[i % features] =")], ["snake", "backward", "the gradient of parameter a", "differences of forward give"]),
    "a mean in place of a sum, which terms of ranks do not add up to":
        ([("y[r] = (float)sum;", "y[r] = (float)(sum / columns);"), ("dx[k] = dy[k / columns] * other[k]", "dx[k] = dy[k / columns] * other[k] / columns")],
         ["row_dot", "letter 'n' (dim 1 of input x, dim 1 of input z)", "the output is not that of one rank", "added up"]),
    "a gradient with a wrong factor":
        ([("dy[i] * (1 + power * twice)", "dy[i] * (1 + 2 * power * twice)")], ["snake", "the gradient of input x is wrong", "differences of forward give"]),
    "a gradient that is 0.1 % too large":
        ([("dy[i] * (1 + power * twice)", "dy[i] * (1 + power * twice) * 1.001f")], ["snake", "the gradient of input x is 1.001 times as large as differences of forward"]),
    "a gradient of the wrong sign":
        ([("dx[k] = dy[k / columns] * other[k]", "dx[k] = -dy[k / columns] * other[k]")], ["row_dot", "(-1 times as much)"]),
    "a softmax-like op whose rule lets its rows be cut":
        ([("y[i] = x[i] + power * s * s / of_feature;", "y[i] = x[i] + power * s * s / of_feature + x[i - i % features];"),
          ("* (1 + power * twice);", "* (1 + power * twice);\n    if (dx != NULL) dx[i - i % features] += dy[i];")],
         ["snake", "letter 'n'", "uncuttable"]),
    "an output shape that is too large":
        ([("outputs[0].dims[1] = 1;", "outputs[0].dims[1] = 2;"), ('"rn,rn->r()"', '"rn,rn->rt"')], ["row_dot", "forward", "the output", "not written"]),
    "an output shape that is too small":
        ([("outputs[0].dims[1] = 1;", "outputs[0].dims[0] = 1; outputs[0].dims[1] = 1;"), ('"rn,rn->r()"', '"rn,rn->()()"')],
         ["row_dot", "it writes after the end of the output"]),
    "an adds that is ignored":
        ([("(call->input_grads[0].adds ? dx[i] : 0) + ", "")], ["snake", "with adds = 1", "the gradient of input x"]),
    "a rule with a wrong number of operands":
        ([('"rn,rn->r()"', '"rn->r()"')], ["row_dot", "it has 1 inputs and parameters, but the op has 2"]),
    "a gradient that is wrong if it is wanted alone":
        ([("if (da != NULL) da[i", "if (da != NULL && dx != NULL) da[i")], ["snake", "the gradient of parameter a", "no other gradient is wanted"]),
}

MEMORY = {
    "a result that depends on what was in its memory":
        ([("!call->input_grads[1].adds", "0")], 2, ["snake", "backward", "the gradient of parameter a", "depend on what was in its memory"]),
    "an element that is not written":
        ([("for (int64_t r = 0; r < rows; ++r)", "for (int64_t r = 1; r < rows; ++r)")], 2, ["row_dot", "1 elements of the output, the first at [0, 0]"]),
    "a write behind the output":
        ([("y[r] = (float)sum;", "y[r] = y[r + 1] = (float)sum;")], 2, ["row_dot", "forward: it writes after the end of the output"]),
    "a read behind an input":
        ([("double sum = 0;", "double sum = x[(r + 1) * columns];")], 2, ["row_dot", "beside its operands"]),
    "a write into an input":
        ([("y[r] = (float)sum;", "y[r] = (float)sum;\n    ((float*)x)[r] = 0;")], 2, ["row_dot", "it changes input x"]),
    "an error of a kernel":
        ([("double sum = 0;", 'double sum = 0;\n    if (rows > 0) return trainctl_fail(call, "too many rows");')], 2, ["forward of op row_dot", "too many rows"]),
    "a crash":
        ([("double sum = 0;", "double sum = 0;\n    *(volatile int*)8 = 1;")], 3, ["snake.so: forward of op row_dot", "it crashed with SIGSEGV"]),
    "an abort":
        ([("double sum = 0;", "double sum = 0;\n    abort();"), ("#include <math.h>", "#include <math.h>\n#include <stdlib.h>")], 3,
         ["snake.so: forward of op row_dot", "it crashed with SIGABRT"]),
}


def find_planted(folder, cases):
    for number, (what, (replacements, code, parts)) in enumerate(cases.items()):
        library = compiled(folder / "", changed(*replacements), name="snake")
        said = trainctl("check", "--plugin", library, code=code)
        for part in parts:
            require(part in said, f"{what}: no '{part}' in\n{said}")
        found = [line for line in said.splitlines() if ": sound (" not in line]
        print(f"{number + 1}. {what}: {found[0][:170]}", flush=True)


def wrong(folder):
    find_planted(folder, {what: (replacements, 2, parts) for what, (replacements, parts) in WRONG.items()})


def memory(folder):
    find_planted(folder, MEMORY)
    throwing = compiled(folder, '#include <stdexcept>\n#include "trainctl_plugin.h"\n'
                        'static int forward(const trainctl_call*) { throw std::runtime_error("no tables"); }\n'
                        'static trainctl_input in[] = {{"x", 0, 0}};\nstatic trainctl_shape shape;\nstatic trainctl_example example;\nstatic trainctl_op op;\n'
                        'static trainctl_plugin_info info = {TRAINCTL_PLUGIN_ABI, sizeof(trainctl_op), &op, 1};\n'
                        'TRAINCTL_EXPORT const trainctl_plugin_info* trainctl_plugin(void) {\n'
                        '  shape.ndim = 2; shape.dims[0] = shape.dims[1] = 12;\n  example.inputs = &shape;\n  op.name = "thrower"; op.doc = "Throws.";\n'
                        '  op.inputs = in; op.num_inputs = op.num_outputs = 1; op.rule = "ab->ab"; op.forward = forward;\n'
                        '  op.examples = &example; op.num_examples = 1;\n  return &info;\n}\n', name="thrower", language="cpp")
    said = trainctl("check", "--plugin", throwing, code=2)
    require("forward of op thrower" in said and "it threw: no tables" in said, said)
    copied_example(folder)
    compiled(folder, changed(("double sum = 0;", "double sum = 0;\n    *(volatile int*)8 = 1;")))
    said = trainctl("run", folder / "job.yaml", f"launch.log_dir={folder}/logs", code=5)
    require("snake.so: forward of op row_dot: it crashed with SIGSEGV" in said, said)
    compiled(folder, changed(("double sum = 0;", 'double sum = 0;\n    if (rows > 0) return trainctl_fail(call, "too many rows");')))
    said = trainctl("run", folder / "job.yaml", f"launch.log_dir={folder}/logs", code=5)
    require("forward of op row_dot: too many rows" in said, said)


def refused(folder):
    copied_example(folder)
    job = folder / "job.yaml"

    def refuse(words, parts, code=2):
        said = trainctl("check", job, *words, code=code)
        for part in parts:
            require(part in said, f"{words}: no '{part}' in\n{said}")

    refuse(["plugins=[./other.so]"], ["plugins", "other.so", "No such file"])
    refuse(["plugins=[/dev/zero]"], ["/dev/zero is not a regular file"])
    (folder / "text.so").write_text("no library")
    refuse(["plugins=[./text.so]"], ["text.so cannot be loaded", "cc -shared"])
    compiled(folder, "int nothing;\n", name="empty")
    refuse(["plugins=[./empty.so]"], ["empty.so does not export the function trainctl_plugin"])
    compiled(folder, changed((".abi = TRAINCTL_PLUGIN_ABI", ".abi = 99")), name="newer")
    refuse(["plugins=[./newer.so]"], ["version 99 of the interface", "trainctl_plugin.h"])
    compiled(folder, changed(('.name = "row_dot"', '.name = "softmax"')), name="taken")
    refuse(["plugins=[./taken.so]"], ["trainctl has an op or layer named 'softmax'", "rename"])
    compiled(folder, changed(('double sum = 0;', 'double sum = 0.0;')), name="second")
    refuse(["plugins=[./snake.so, ./second.so]"], ["plugins[1]", "'snake' is used by plugin"])
    compiled(folder, changed(('"power"', '"name"')), name="field")
    refuse(["plugins=[./field.so]"], ["the attribute 'name' has the name of a field"])
    refuse([f"plugins=['./snake.so#sha256={'0' * 64}']"], ["different contents than the job states"])
    refuse(["plugins=['./snake.so#sha256=12']"], ["64 lower-case hexadecimal digits"])
    refuse(["plugins=[]"], ["plugins"])
    refuse(["plugins=null"], ["unknown layer type 'snake'"])
    refuse(["launch.device=cuda"], ["has no forward_cuda for 'snake'", "launch.device: cpu"])
    refuse(["precision=bf16", "launch.device=cuda"], ["snake"])
    text = job.read_text()
    for old, new, parts in (("power: 0.5", "power: 11", ["power", "10"]), ("power: 0.5", "powr: 1", ["powr", "did you mean 'power'"]),
                            ("type: snake, power: 0.5", "type: snak", ["unknown layer type 'snak'", "did you mean 'snake'"]),
                            ("[wave, right]", "[wave]", ["row_dot takes 2 inputs"]),
                            ("units: 24, inputs: data", "units: 12, inputs: data", ["two matrices of the same shape"])):
        job.write_text(text.replace(old, new))
        refuse(["parallel.strategies=null"], parts)
    job.write_text(text)
    trainctl("check", "--plugin", folder / "missing.so", code=2)
    require("JOB.yaml" in trainctl("check", code=2), "check needs a job or a plugin")
    pinned = re.search(r"SHA-256 ([0-9a-f]{64})", trainctl("check", "--plugin", folder / "snake.so"))[1]
    trainctl("check", job, f"plugins=['./snake.so#sha256={pinned}']")
    print("refused: every error names the plugin and the next step")


SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
HOME=%s/$1; export HOME; mkdir -p $HOME; shift
unset XDG_CACHE_HOME; exec sh -c "$*"
"""


def hosts(folder):
    """Folders of this machine as hosts (as in tests/cli/fake_hosts_test.cpp)."""
    library = copied_example(folder)
    (folder / "ssh").write_text(SSH % folder)
    (folder / "ssh").chmod(0o755)
    one = losses(folder, "launch.ranks=1", "parallel.strategies=null", "train.steps=6")
    there = losses(folder, "launch.hosts=[a:2, b:2]", f"launch.ssh={folder}/ssh", "launch.interface=lo", "train.steps=6")
    require(len(there) == 6 and max(abs(a - b) / abs(a) for a, b in zip(one, there, strict=True)) < 1e-5, f"{one} {there}")
    digest = hashlib.sha256(library.read_bytes()).hexdigest()
    for host in ("a", "b"):
        copies = [path for path in (folder / host / ".cache/trainctl/copies").iterdir() if path.is_file()]
        require([hashlib.sha256(path.read_bytes()).hexdigest() for path in copies] == [digest], f"{host}: {copies}")
    print("hosts: each has a copy of the plugin, and the losses of one rank")


def plans(folder):
    try:
        import numpy as np
        import safetensors.torch
        import torch
    except ImportError as error:
        print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
        sys.exit(SKIPPED)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    library = compiled(folder)
    batch, samples, steps, power, width = 16, 64, 12, 0.5, 12
    data, label = (torch.randn(samples, n).float().double() for n in (8, 1))
    start = {"left.weight": torch.randn(width, 8), "left.bias": torch.randn(width), "wave.a": 1 + 0.3 * torch.randn(width),
             "right.weight": torch.randn(width, 8), "right.bias": torch.randn(width)}
    start = {name: (0.25 * value if "wave" not in name else value).float().double() for name, value in start.items()}

    weights = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer, expected = torch.optim.SGD(weights.values(), lr=0.01), []
    for step in range(steps):
        rows = slice(step * batch % samples, step * batch % samples + batch)
        x, left = data[rows], data[rows] @ weights["left.weight"].T + weights["left.bias"]
        wave = left + power * torch.sin(weights["wave.a"] * left) ** 2 / weights["wave.a"]
        score = (wave * (x @ weights["right.weight"].T + weights["right.bias"])).sum(1, keepdim=True)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(score, label[rows])
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    (folder / "data").mkdir()
    np.save(folder / "data/data.npy", data.numpy().astype(np.float32))
    np.save(folder / "data/label.npy", label.numpy().astype(np.float32))
    safetensors.torch.save_file({name: value.float().contiguous() for name, value in start.items()}, folder / "start.safetensors")
    cuts = {"wave": [[1, 2], [2]], "score": [[2, 2], [2, 2]]}
    all_plans = {
        "one rank": ({}, 1), "data": ({"mode": "data_parallel", "micro_batches": 2}, 2),
        "sharded": ({"mode": "data_parallel", "optimizer_shard": {"level": 3, "min_kb": 0}}, 4),
        "cut": ({"mode": "semi_auto_parallel", "strategies": cuts}, 4),
        "cut, in micro-batches, recomputed": ({"mode": "semi_auto_parallel", "micro_batches": 2, "strategies": cuts, "recompute": ["wave", "score"]}, 4),
        "by columns in three": ({"mode": "semi_auto_parallel", "strategies": {"wave": [[1, 3], [3]], "score": [[1, 3], [1, 3]]}}, 3),
        "pipeline": ({"mode": "semi_auto_parallel", "stages": 2, "micro_batches": 4, "stage_config": {"left": 0, "wave": 0, "right": 0, "score": 1}}, 2),
        "auto": ({"mode": "auto_parallel"}, 4)}
    for name, (parallel, ranks) in all_plans.items():
        job = {"name": "plugin", "plugins": [str(library)], "loss": "mse", "optimizer": {"type": "sgd", "learning_rate": 0.01},
               "network": [{"name": "left", "type": "dense", "units": width}, {"name": "wave", "type": "snake", "power": power},
                           {"name": "right", "type": "dense", "units": width, "inputs": "data"}, {"name": "score", "type": "row_dot", "inputs": ["wave", "right"]}],
               "dataset": {"type": "npy", "path": str(folder / "data"), "fields": {"data": "data.npy", "label": "label.npy"}, "batch": batch, "shuffle": False,
                           "label_dtype": "f32"},
               "weights": {"from": str(folder / "start.safetensors"), "map": "job"}, "train": {"steps": steps, "checkpoint": {"integrated": True}},
               "parallel": parallel, "launch": {"ranks": ranks, "device": "cpu", "log_dir": str(folder / name)}}
        (folder / "job.yaml").write_text(json.dumps(job))
        trainctl("run", folder / "job.yaml")
        saved = safetensors.torch.load_file(max((folder / name / "1/checkpoints").glob("*/model.safetensors")))
        rows = [json.loads(line) for line in (folder / name / "1/metrics.jsonl").read_text().splitlines()]
        got = [row["loss"] for row in rows if "step" in row and "kind" not in row]
        of_losses = max(abs(a - b) / abs(b) for a, b in zip(got, expected, strict=True))
        of_weights = max(float((saved.get(key, saved.get(key + ":weight")).double().reshape(value.shape) - value.detach()).abs().max()) for key, value in weights.items())
        print(f"{name}: losses differ by {of_losses:.2g}, weights by {of_weights:.2g}", flush=True)
        require(of_losses < 2e-5 and of_weights < 2e-5, name)


def main():
    if COMPILER is None:
        print("SKIPPED: there is no C compiler")
        sys.exit(SKIPPED)
    cases = {"sound": sound, "wrong": wrong, "memory": memory, "refused": refused, "hosts": hosts, "plans": plans}
    for name in sys.argv[2:] or cases:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            cases[name](pathlib.Path(folder))


main()
