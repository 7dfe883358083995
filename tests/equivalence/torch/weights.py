#!/usr/bin/env python3
"""weights.py TRAINCTL [gpt2 | llama | resnet50 ...]: models of transformers, and ResNet-50 with the names of torchvision, are
imported, compared, trained for 20 steps under another plan and optimizer, exported, loaded again and compared.

Runs under build/peers (./bootstrap peers), if this Python lacks PyTorch. What lacks a package is said to be SKIPPED; exits
with 77 if all is."""

import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import numpy as np
    import safetensors.torch
    import torch
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[3] / "build/peers/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

try:
    import transformers
except ImportError:
    transformers = None

from resnet50 import ResNet50

TOLERANCE = limit(1e-5)  # of the largest value
PLAN = ["launch.ranks=2", "parallel={mode: data_parallel, optimizer_shard: {level: 3}}",
        "optimizer={type: adam, learning_rate: 0.001}"]
STEPS, BATCH, LENGTH, VOCAB = 20, 4, 32, 101
TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
torch.manual_seed(1)
torch.set_num_threads(2)


def run(*words):
    done = subprocess.run([TRAINCTL, *map(str, words)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


class Case:
    """A job made of a template, in a folder of its own."""

    def __init__(self, template, folder, tensor, fields):
        self.template, self.folder, self.tensor = template, folder, tensor
        self.job = folder / f"{template}.yaml"
        run("init", template, "-o", self.job)
        self.fields = [*fields, "precision=fp32", "launch.device=cpu", f"launch.log_dir={folder / 'runs'}",
                       "optimizer={type: sgd, learning_rate: 0.01}", "train.checkpoint={}"]

    def imported(self, file):
        print(run("checkpoint", "import", file, "--map", self.template, "--job", self.job, "-o", self.folder / "start", *self.fields), end="")
        return self.folder / "start"

    def predicted(self, checkpoint):
        """The tensor's value for every sample, from the forward-only program."""
        file = self.folder / "predicted.npy"
        file.unlink(missing_ok=True)
        run("predict", self.job, "--checkpoint", checkpoint, "--layer", self.tensor, "-o", file, *self.fields)
        return np.load(file)

    def trained(self, start, steps, *changes):
        """The run's folder, the losses of its steps, and the tensor's value in the last one."""
        every = f"print={{tensors: [{self.tensor}], format: npy, every: 1}}"
        run("run", self.job, "--resume-from", start, *self.fields, f"train.steps={steps}", "train.log_every=1", every, *changes)
        folder = max((self.folder / "runs").glob("[0-9]*"), key=lambda run: int(run.name))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in rows if "kind" not in row and "loss" in row]
        return folder, losses, np.load(folder / f"tensors/step.{steps}/{self.tensor}.npy")

    def exported(self, what, name, *options):
        file = self.folder / name
        print(run("checkpoint", "export", what, "--map", self.template, "-o", file, *options), end="")
        return file


def compare(what, ours, theirs, tolerance=TOLERANCE):
    theirs = theirs.detach().numpy()
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    difference = float(np.abs(ours - theirs).max())
    largest = float(np.abs(theirs).max())
    print(f"{what}: largest difference {difference:.2g}, largest value {largest:.2g}")
    assert difference < tolerance * largest, what


def require_falling(what, losses):
    print(f"{what}: loss {losses[0]:.4f} at the first of {len(losses)} steps, {losses[-1]:.4f} at the last")
    assert losses[-1] < 0.95 * losses[0], losses


def language(template, config, fields, make, folder):
    tokens = np.random.default_rng(3).integers(0, VOCAB, BATCH * LENGTH + 1).astype(np.uint16)
    tokens.tofile(folder / "tokens.bin")
    dataset = f"{{type: tokens, path: {folder / 'tokens.bin'}, length: {LENGTH}, batch: {BATCH}, shuffle: false}}"
    case = Case(template, folder, "head", [f"dataset={dataset}", f"validation={{dataset: {{path: {folder / 'tokens.bin'}}}}}", *fields])
    data = torch.tensor(tokens[:-1].astype(np.int64)).reshape(BATCH, LENGTH)

    model = make(config).eval()
    for parameter in model.parameters():  # no rows of ones and zeros, which hide a wrong order
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder / "hf", max_shard_size="60KB")
    assert len(list((folder / "hf").glob("*.safetensors"))) > 1
    start = case.imported(folder / "hf")
    compare(f"{template}: imported", case.predicted(start), model(data).logits)

    folder_20, losses, _ = case.trained(start, STEPS, *PLAN)
    assert len(losses) == STEPS, losses
    require_falling(f"{template}: imported and trained on", losses)
    (folder / "out").mkdir()
    (folder / "out/config.json").write_text(json.dumps(model.config.to_dict()))
    case.exported(folder_20, "out/model.safetensors")
    again, report = make.from_pretrained(folder / "out", output_loading_info=True)
    missing = {name for name in report["missing_keys"] if not config.tie_word_embeddings or "lm_head" not in name}
    assert not missing and not report["unexpected_keys"], report
    compare(f"{template}: exported after {STEPS} steps", case.predicted(folder_20), again.eval()(data).logits)
    moved = float((model(data).logits - again(data).logits).detach().abs().max())
    assert moved > 1e-3, f"{STEPS} steps moved the logits by {moved} alone"

    rounded = safetensors.torch.load_file(case.exported(folder_20, "bf16.safetensors", "--dtype", "bf16"))
    whole = safetensors.torch.load_file(folder / "out/model.safetensors")
    assert all(torch.equal(rounded[name], tensor.to(torch.bfloat16)) for name, tensor in whole.items())
    assert rounded.keys() == whole.keys()


def gpt2(folder):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4)
    fields = [f"vars={{layers: 2, heads: 4, d: 48, length: {LENGTH}, vocab: {VOCAB}}}"]
    language("gpt2", config, fields, transformers.GPT2LMHeadModel, folder)


def llama(folder):
    config = transformers.LlamaConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
                                      num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=LENGTH,
                                      rms_norm_eps=1e-5, tie_word_embeddings=False)
    fields = [f"vars={{layers: 2, heads: 6, kv_heads: 2, d: 48, hidden: 80, length: {LENGTH}, vocab: {VOCAB}}}"]
    language("llama", config, fields, transformers.LlamaForCausalLM, folder)


def write_idx(file, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    file.write_bytes(header + array.astype(np.uint8).tobytes())


def make_resnet():
    try:
        import torchvision
    except ImportError:
        return ResNet50(1, 10)
    model = torchvision.models.resnet50(num_classes=10)
    model.conv1 = torch.nn.Conv2d(1, 64, 7, 2, 3, bias=False)  # the images are grey
    return model


def resnet50(folder):
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (8, 64, 64))
    (folder / "images").mkdir()
    for part in ("train", "t10k"):
        write_idx(folder / f"images/{part}-images-idx3-ubyte", images)
        write_idx(folder / f"images/{part}-labels-idx1-ubyte", random.integers(0, 10, 8))
    dataset = f"{{type: mnist, path: {folder / 'images'}, batch: 8, shuffle: false, transforms: [{{rescale: {{scale: 0.0078125, shift: -1.0}}}}, hwc2chw]}}"
    case = Case("resnet50", folder, "fc", [f"dataset={dataset}", "validation={dataset: {split: test}}", "vars.classes=10"])
    data = torch.tensor(images / 128 - 1, dtype=torch.float32).unsqueeze(1)

    model = make_resnet()
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 1:
            tensor.copy_(torch.rand(tensor.shape) + 0.5)
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    start = case.imported(folder / "model.safetensors")
    compare("resnet50: imported, running statistics", case.predicted(start), model.eval()(data))
    folder_1, _, logits = case.trained(start, 1)
    compare("resnet50: imported, statistics of the batch", logits, model.train()(data))
    # That forward pass moved torch's running statistics as ours, too: they leave with the weights.
    saved = safetensors.torch.load_file(case.exported(folder_1, "step_1.safetensors"))
    assert saved.keys() == model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if "running" in name and ("layer" not in name or "layer4.2" in name):
            compare(f"resnet50: {name} after step 1", saved[name].numpy(), buffer)

    folder_20, losses, _ = case.trained(start, STEPS, *PLAN)
    require_falling("resnet50: imported and trained on", losses)
    again = make_resnet()
    again.load_state_dict(safetensors.torch.load_file(case.exported(folder_20, "step_20.safetensors")), strict=True)
    compare(f"resnet50: exported after {STEPS} steps", case.predicted(folder_20), again.eval()(data))


CASES = {"gpt2": gpt2, "llama": llama, "resnet50": resnet50}


def main():
    done = 0
    for name in sys.argv[2:] or CASES:
        if name != "resnet50" and transformers is None:
            print(f"SKIPPED: {name}: {sys.executable} has no transformers; ./bootstrap peers installs it")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            CASES[name](pathlib.Path(scratch))
        done += 1
    if done == 0:
        sys.exit(SKIPPED)
    print("the same numbers in both directions")


main()
