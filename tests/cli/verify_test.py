#!/usr/bin/env python3
"""verify, its certificates, diff and audits, in runs of real processes.

    tests/cli/verify_test.py build/release/bin/trainctl              the short form, as CTest runs it
    tests/cli/verify_test.py build/release/bin/trainctl --templates  verifies the templates that bring their data
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

TRAINCTL = os.path.abspath(sys.argv[1])
TEMPLATES = ["llama", "llama_long", "moe", "gpt2", "resnet50", "dpo", "finetune_chat", "finetune_classifier", "classifier", "mlp"]
OTHER_PLANS = {"llama": ["parallel.tensor=2", "launch.ranks=4"], "gpt2": ["launch.ranks=64", "parallel.stages=2", "parallel.micro_batches=4",
                                                                     "parallel.tensor=4", "dataset.batch=64"]}


class Folder:
    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="trainctl-verify-")

    def file(self, *names):
        return os.path.join(self.path, *names)

    def run(self, *words, code=0, **more):
        env = {**os.environ, "XDG_RUNTIME_DIR": self.path, "TMPDIR": self.path, "COLUMNS": "160", **more}
        done = subprocess.run([TRAINCTL, *words], cwd=self.path, capture_output=True, text=True, env=env, timeout=900)
        assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done


JOB = """
name: verified
seed: 3
dataset: {type: random, shape: [12], label_dtype: f32, samples: 96, batch: 24}
network:
  - {name: fc1, type: dense, units: 32}
  - {name: act1, type: tanh}
  - {name: fc2, type: dense, units: 16}
  - {name: out, type: dense, units: 1}
loss: mse
optimizer: {type: sgd, learning_rate: 0.05, momentum: 0.9}
train: {epochs: 3, fingerprints: 1, checkpoint: {every_steps: 4, keep: 2}}
parallel: {mode: data_parallel, optimizer_shard: {level: 1, min_kb: 0}}
launch: {ranks: 2, device: cpu}
"""


def certificates(folder):
    """A certificate is written, stored with the checkpoints of the same job alone, and reported."""
    said = folder.run("verify", "job.yaml").stdout
    assert "is verified: 10 checks passed" in said, said
    path = re.search(r"certificate: (\S+)", said).group(1)
    certificate = json.load(open(folder.file(path)))
    assert certificate["passed"] and certificate["ranks"] == 2 and len(certificate["checks"]) == 10, certificate
    page = open(folder.file(path.replace(".json", ".html"))).read()
    assert "verified" in page and "slope" in page and "<script" not in page
    folder.run("run", "job.yaml")
    assert "verified on" in folder.run("checkpoint", "show", "1").stdout
    shown = json.loads(folder.run("checkpoint", "show", "1", "--json").stdout)
    assert shown["certificate"]["digest"] == certificate["digest"]
    folder.run("run", "job.yaml", "train.epochs=2", "train.log_every=2")  # the digest is that of the plan and the numbers
    assert "verified on" in folder.run("checkpoint", "show", "2").stdout
    folder.run("run", "job.yaml", "launch.ranks=1", "train.epochs=1")
    assert "verified on" not in folder.run("checkpoint", "show", "3").stdout
    broken = folder.run("verify", "job.yaml", "optimizer.learning_rate=1e30", code=5)  # nothing can be compared then
    assert "NOT verified" in broken.stdout, broken.stdout


def differences(folder):
    """Runs 4 and 5 are the same; 6 differs from step 1 on; 7 has another plan."""
    for more in ([], [], ["optimizer.momentum=0.8"], ["launch.ranks=1"]):
        folder.run("run", "job.yaml", "train.epochs=1", *more)
    assert "all tensors are equal" in folder.run("diff", "4", "5").stdout
    # The momentum of the first step is its gradient, so the second update is the first one that differs.
    found = json.loads(folder.run("diff", "4", "6", "--json", code=1).stdout)
    assert found["first"]["step"] == 2 and found["first_loss"]["step"] == 3, found["first"]
    assert found["first"]["kind"] == "momentum" and found["first"]["tensor"].startswith("fc1."), found["first"]
    assert all(each["step"] >= 2 for each in found["tensors"])
    folder.run("diff", "4", "7", code=1)
    wide = folder.run("run", "job.yaml", "train.epochs=1", "network.fc2.units=20").stdout
    wide = re.search(r"log_output/(\d+)", wide).group(1)
    found = json.loads(folder.run("diff", "4", wide, "--json", code=1).stdout)["first"]
    assert (found["step"], found["kind"]) == (0, "weight") and found["tensor"].startswith("fc2."), found
    folder.run("diff", "4", "7", "--tolerance", "1e-4")
    folder.run("diff", "4", "6", "--html", "diff.html", code=1)
    assert "fc1.weight" in open(folder.file("diff.html")).read()


def safetensors(path, tensors):
    """A file of f32 tensors: name -> (shape, values)."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)


def read_npy(path):
    raw = open(path, "rb").read()
    size = struct.unpack("<H", raw[8:10])[0]
    shape = [int(n) for n in re.search(rb"\(([\d, ]*)\)", raw[10:10 + size]).group(1).split(b",") if n.strip()]
    return shape, list(struct.unpack(f"<{(len(raw) - 10 - size) // 4}f", raw[10 + size:]))


def activations(folder):
    """Outputs that another program saved are compared in the order of the network; the first one that differs is named."""
    done = folder.run("run", "job.yaml", "train.epochs=1", "print={tensors: [fc1, act1, fc2], format: npy}")
    run = re.search(r"log_output/(\d+)", done.stdout + done.stderr).group(1)
    own = {name: read_npy(folder.file("log_output", run, "tensors", "step.1", name + ".npy")) for name in ["fc1", "act1", "fc2"]}
    safetensors(folder.file("same.safetensors"), own)
    folder.run("diff", run, "same.safetensors")
    for name in ["act1", "fc2"]:
        own[name] = (own[name][0], [value * 1.001 for value in own[name][1]])
    safetensors(folder.file("other.safetensors"), own)
    found = json.loads(folder.run("diff", run, "other.safetensors", "--json", code=1).stdout)
    assert found["first"]["tensor"] == "act1" and abs(found["first"]["distance"] - 1e-3) < 1e-5, found["first"]
    folder.run("diff", run, "other.safetensors", "--tolerance", "2e-3")


def audits(folder):
    """A bit that is wrong on one rank from step 6 on is named by the audit of step 8; a sound run passes its audits."""
    folder.run("run", "job.yaml", "train.epochs=3", "train.audit_every=4", "train.fingerprints=0")
    failed = folder.run("run", "job.yaml", "train.epochs=3", "train.audit_every=4", "train.fingerprints=0", code=5,
                        TRAINCTL_TEST_FAULT="1:6:flip")
    said = failed.stdout + failed.stderr
    assert "audit: step 8 produced different bits on core" in said and "weight/" in said and "rank 1" in said, said
    run = re.findall(r"log_output/(\d+)", said)[-1]
    saved = sorted(os.listdir(folder.file("log_output", run, "audits")))
    assert saved == ["step_8.rank_1.first.safetensors", "step_8.rank_1.replay.safetensors"], saved
    folder.run("checkpoint", "show", folder.file("log_output", run, "audits", saved[0]))


def templates():
    worst = 0
    for name in TEMPLATES:
        folder = Folder()
        folder.run("init", name, "-o", "job.yaml")
        for more in [[], OTHER_PLANS.get(name)]:
            if more is None:
                continue
            begin = time.monotonic()
            done = subprocess.run([TRAINCTL, "verify", "job.yaml", "--json", *more], cwd=folder.path, capture_output=True, text=True)
            seconds = time.monotonic() - begin
            worst = max(worst, seconds)
            certificate = json.loads(done.stdout) if done.stdout else {"checks": [], "passed": False}
            left = [f"{c['name']} {c['status']}: {c['summary']}" for c in certificate["checks"] if c["status"] != "passed"]
            print(f"{name} {' '.join(more)}: {'verified' if certificate['passed'] else 'NOT verified'} in {seconds:.1f} s",
                  certificate.get("changes"), *left, done.stderr[-2000:], sep="\n    ", flush=True)
            assert certificate["passed"], done.stdout[-6000:]
    print(f"the slowest took {worst:.1f} s")


if sys.argv[2:] == ["--templates"]:
    templates()
else:
    scratch = Folder()
    open(scratch.file("job.yaml"), "w").write(JOB)
    certificates(scratch)
    differences(scratch)
    activations(scratch)
    audits(scratch)
    print("certificates, differences, activations and audits are as stated")
