#!/usr/bin/env python3
"""torch_diff_test.py TRAINCTL: examples/torch_diff, as docs/verify.md shows it: trainctl diff finds a run equal to a script in PyTorch,
and names the first layer that computes something else.

Exits with 77 if PyTorch is missing."""

import importlib.util
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
LAYERS = ["fc1", "act1", "norm", "fc2", "act2", "out"]
# Replacements in the job, by the first layer whose output then differs from PyTorch's.
MISTAKES = {
    ("act1, type: gelu", "act1, type: gelu, approximate: tanh"): "act1",
    ("norm, type: layer_norm", "norm, type: layer_norm, eps: 0.01"): "norm",
    ("act2, type: silu", "act2, type: gelu"): "act2",
}


def python_with_torch():
    missing = [name for name in ("torch", "safetensors", "numpy") if importlib.util.find_spec(name) is None]
    if not missing:
        return sys.executable
    environment = ROOT / "build/peers/bin/python3"
    if environment.exists():
        return str(environment)
    print(f"SKIPPED: {sys.executable} has no {missing[0]}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)


def run(folder, *words, code=0):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout


def compare(folder, *options, code=0):
    return json.loads(run(folder, TRAINCTL, "diff", "latest", "activations.safetensors", "--json", *options, code=code))


def main():
    python = python_with_torch()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "torch_diff"
        shutil.copytree(ROOT / "examples/torch_diff", folder)
        said = run(folder, python, "model.py")
        losses = [float(re.search(r"loss ([\d.]+)", said).group(1))]
        losses.append(float(re.search(r"loss is ([\d.]+)", run(folder, TRAINCTL, "run", "job.yaml")).group(1)))
        assert abs(losses[0] - losses[1]) < 1e-4, losses
        found = compare(folder, "--tolerance", "1e-5")
        assert found["equal"] and not found["notes"], found
        # Rows that two ranks share and the kernels of another library: equal within rounding, so bits differ.
        exact = compare(folder, code=1)
        assert all(each["distance"] < 1e-6 for each in exact["tensors"]), exact
        assert all(each["tensor"] in LAYERS for each in exact["tensors"]), exact

        correct = (folder / "job.yaml").read_text()
        for (right, wrong), layer in MISTAKES.items():
            assert correct.count(right) == 1, right
            (folder / "job.yaml").write_text(correct.replace(right, wrong))
            run(folder, TRAINCTL, "run", "job.yaml")
            found = compare(folder, "--tolerance", "1e-5", code=1)
            assert found["first"]["tensor"] == layer, (wrong, found["first"])
            # Layers before it are equal, and every layer after it differs.
            assert {each["tensor"] for each in found["tensors"]} == set(LAYERS[LAYERS.index(layer):]), found
        (folder / "job.yaml").write_text(correct.replace("tensors: [fc1, act1,", "tensors: ["))
        run(folder, TRAINCTL, "run", "job.yaml")
        assert compare(folder, "--tolerance", "1e-5")["notes"] == ["the run has not printed act1", "the run has not printed fc1"]
        (folder / "job.yaml").write_text(correct)
        script = (folder / "model.py").read_text()
        assert script.count("save_file(outputs,") == 1
        (folder / "model.py").write_text(script.replace("save_file(outputs,", "del outputs['fc2']\n    save_file(outputs,"))
        run(folder, python, "model.py")
        run(folder, TRAINCTL, "run", "job.yaml")
        assert compare(folder, "--tolerance", "1e-5")["notes"] == ["the file has no fc2, which the run has printed"]
    print(f"a run is equal to PyTorch's, and {len(MISTAKES)} wrong layers are named")


main()
