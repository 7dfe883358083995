#!/usr/bin/env python3
"""`safetensors` and `torch` open what trainctl writes, and trainctl opens what they write.

    safetensors_files.py TRAINCTL [--mutants N]

Runs under build/peers (./bootstrap peers), if this Python lacks safetensors or torch. Exits with 77 if that is not there
either, or the machine lacks the xxhash library.
"""
import argparse
import ctypes
import ctypes.util
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

SKIPPED = 77
HERE = pathlib.Path(__file__).resolve().parent

try:
    import torch
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file, save_file
except ImportError as error:
    environment = HERE.parents[1] / "build/peers/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

library = ctypes.util.find_library("xxhash")
if library is None:
    print("SKIPPED: there is no library xxhash")
    sys.exit(SKIPPED)


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxhash = ctypes.CDLL(library)
xxhash.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
xxhash.XXH3_128bits.restype = Hash128


def digest_of(data):
    found = xxhash.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


options = argparse.ArgumentParser()
options.add_argument("trainctl")
options.add_argument("--mutants", type=int, default=200)
options = options.parse_args()
trainctl = str(pathlib.Path(options.trainctl).resolve())

PLAN = ["launch.ranks=4", "parallel.mode=semi_auto_parallel", "parallel.stages=2", "parallel.micro_batches=2",
        "parallel.stage_config={conv: 0, bn: 0, relu: 0, flat: 0, fc: 1, act: 1, out: 1}",
        "parallel.optimizer_shard={level: 2, min_kb: 0}", "train.checkpoint.integrated=true"]


def call(folder, *words, exits=0):
    done = subprocess.run([trainctl, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == exits, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def saved_run(folder):
    shutil.copy(HERE.parent / "checkpoint_files" / "job.yaml", folder)
    call(folder, "run", "job.yaml", *PLAN)
    return folder / "log_output" / "1" / "checkpoints" / "step_00000016"


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def put_together(checkpoint, manifest):
    """Whole tensors, from the pieces of checkpoint.json, as docs/checkpoints.md says."""
    whole = {}
    for tensor in manifest["tensors"]:
        key, shape = f"{tensor['name']}:{tensor['slot']}", tensor["shape"]
        value = torch.zeros(shape)
        for piece in tensor["pieces"]:
            ends = [(o, o + n) for o, n in zip(piece["offset"], piece["shape"])]
            name = key if piece["shape"] == shape else key + "[" + ", ".join(f"{a}:{b}" for a, b in ends) + "]"
            with safe_open(checkpoint / piece["file"], framework="pt") as file:
                value[tuple(slice(a, b) for a, b in ends)] = file.get_tensor(name)
        whole[key] = value
    return whole


def they_open_ours(folder, checkpoint):
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    for file in manifest["files"]:
        assert digest_of((checkpoint / file["name"]).read_bytes()) == file["xxh128"], file
    whole = put_together(checkpoint, manifest)
    call(folder, "checkpoint", "merge", str(checkpoint), "--all", "-o", "all.safetensors")
    merged = load_file(folder / "all.safetensors")
    assert merged.keys() == whole.keys()
    assert all(same(merged[key], whole[key]) for key in whole)
    integrated = load_file(checkpoint / "model.safetensors")
    assert {key.rsplit(":", 1)[1] for key in integrated} == {"weight", "state"}
    assert all(same(integrated[key], whole[key]) for key in integrated)
    with safe_open(folder / "all.safetensors", framework="np") as file:  # numpy's side, and slices
        assert file.metadata()["step"] == "16"
        rows = file.get_slice("fc.weight:weight")[2:5, 1:7]
    assert (rows == whole["fc.weight:weight"][2:5, 1:7].numpy()).all()
    print(f"they open ours: {len(whole)} tensors of {len(manifest['files'])} files")


TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


def we_open_theirs(folder):
    torch.manual_seed(1)
    tensors = {f"t{i}.{dtype}".replace("torch.", ""): (torch.randn(3, 5 + i) * 9).to(dtype) for i, dtype in enumerate(TYPES)}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 4), "näme \"quoted\" \\ \t": torch.ones(2)}
    save_file(tensors, folder / "theirs.safetensors", metadata={"format": "pt", "ü": "☃"})
    shown = json.loads(call(folder, "checkpoint", "show", "theirs.safetensors", "--json"))
    assert shown["metadata"] == {"format": "pt", "ü": "☃"}
    found = {entry["name"]: entry for entry in shown["tensors"]}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name]["shape"] == list(tensor.shape), name
        assert found[name]["bytes"] == tensor.nbytes, name
    call(folder, "checkpoint", "diff", "theirs.safetensors", "theirs.safetensors")

    # The largest difference, in the type's own values, is what torch computes.
    changed = {name: tensor.clone() for name, tensor in tensors.items()}
    for name in [name for name in changed if name.startswith("t")]:
        tensor = changed[name]
        tensor[1, 2] = (~tensor[1, 2]) if tensor.dtype == torch.bool else torch.tensor(3.0).to(tensor.dtype)
    save_file(changed, folder / "changed.safetensors")
    report = json.loads(call(folder, "checkpoint", "diff", "theirs.safetensors", "changed.safetensors", "--json", exits=1))
    largest = {entry["tensor"].rsplit(":", 1)[0]: entry["max_abs"] for entry in report["tensors"]}
    for name in tensors:
        expected = (tensors[name].double() - changed[name].double()).abs().max().item() if tensors[name].numel() else 0
        assert largest[name] == expected, (name, largest[name], expected)
    print(f"we open theirs: {len(tensors)} tensors of {len(TYPES)} types")


def we_resume_from_their_files(folder, checkpoint):
    """Every rank's file written anew by safetensors: other order, other header, the same tensors."""
    before = folder / "before"
    shutil.copytree(checkpoint, before)
    for file in checkpoint.glob("rank.*.safetensors"):
        save_file(load_file(file), file, metadata={"format": "pt"})
    text = (checkpoint / "checkpoint.json").read_text()
    manifest = json.loads(text)
    for file in manifest["files"]:
        data = (checkpoint / file["name"]).read_bytes()
        old = f'"bytes":{file["bytes"]},"xxh128":"{file["xxh128"]}"'
        assert old in text
        text = text.replace(old, f'"bytes":{len(data)},"xxh128":"{digest_of(data)}"')
    text = "".join(text.splitlines(True)[:-1])
    text += f'"checksum": "{digest_of(text.encode())}"}}\n'
    (checkpoint / "checkpoint.json").write_text(text)
    call(folder, "checkpoint", "verify", str(checkpoint))
    call(folder, "checkpoint", "diff", str(before), str(checkpoint))
    call(folder, "run", "job.yaml", *PLAN, "train.epochs=3", "--resume-from", str(before))
    call(folder, "run", "job.yaml", *PLAN, "train.epochs=3", "--resume-from", str(checkpoint))
    call(folder, "checkpoint", "diff", "2", "3")
    print("we resume from files that safetensors wrote, with the same bits")


def opens(path):
    try:
        with safe_open(path, framework="pt") as file:
            return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
    except (SafetensorError, OSError, ValueError):
        return None


def mutant(head, draw):
    """The header's text with a few changes of the kind that the format's rules are about."""
    text = bytearray(head)
    for _ in range(draw.randint(1, 2)):
        at = draw.randrange(len(text))
        kind = draw.randrange(6)
        if kind == 0:
            text[at] = draw.choice(b'0123456789{}[],:" F')
        elif kind == 1:
            del text[at]
        elif kind == 2:
            text[at:at] = draw.choice([b"0", b",", b" ", b"-", b"1e3", b"[]", b"\\u0000", b'"x":1,', b"\xff"])
        elif kind == 3:
            blank = draw.choice([i for i, c in enumerate(text) if c in b",:{}[]"])
            text[blank:blank] = draw.choice([b" ", b"\n", b"\t  ", b"\f"])
        elif kind == 4:
            letters = [i for i, c in enumerate(text) if chr(c).isalpha()]
            text[draw.choice(letters)] = draw.choice(b"abkvFI_") if letters else 0
        else:
            numbers = [i for i, c in enumerate(text) if chr(c).isdigit()]
            if numbers:
                text[draw.choice(numbers)] = draw.choice(b"0123456789")
    return bytes(text)


def we_accept_nothing_that_they_refuse(folder):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int32), "c": torch.zeros(1, dtype=torch.int64)}
    save_file(tensors, folder / "sound.safetensors", metadata={"k": "v"})
    data = (folder / "sound.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    head, body = data[8:8 + size], data[8 + size:]
    draw = random.Random(5)
    accepted = refused = stricter = 0
    for number in range(options.mutants):
        text = mutant(head.rstrip(), draw)
        length = draw.choice([len(text)] * 9 + [draw.choice([0, 1, len(text) - 1, len(text) + 1, 2**40, 2**63])])
        path = folder / "mutant.safetensors"
        path.write_bytes(struct.pack("<Q", length) + text + body)
        theirs = opens(path)
        done = subprocess.run([trainctl, "checkpoint", "show", str(path), "--json"], capture_output=True, text=True)
        assert done.returncode in (0, 3), (number, done.returncode, done.stderr)
        if done.returncode == 0:
            ours = {entry["name"]: entry["shape"] for entry in json.loads(done.stdout)["tensors"]}
            assert ours == theirs, (number, text, ours, theirs)
            accepted += 1
        elif theirs is None:
            refused += 1
        else:
            stricter += 1
            print(f"  refused by us alone: {done.stderr.strip().split(': ', 1)[-1]}")
    print(f"mutants: {accepted} accepted by both, {refused} refused by both, {stricter} refused by us alone")


with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    saved = saved_run(scratch)
    they_open_ours(scratch, saved)
    we_open_theirs(scratch)
    we_resume_from_their_files(scratch, saved)
    we_accept_nothing_that_they_refuse(scratch)
