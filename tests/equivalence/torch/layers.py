#!/usr/bin/env python3
"""layers.py TRAINCTL: layers of model families, with random inputs, compute what the code of transformers computes.

Exits with 77 if PyTorch or transformers is missing."""

import json
import pathlib
import subprocess
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from limits import limit  # noqa: E402

SKIPPED = 77

try:
    import numpy as np
    import torch
    from transformers import LlamaConfig
    from transformers.activations import QuickGELUActivation
    from transformers.masking_utils import sliding_window_overlay
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm, eager_attention_forward
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[3] / "build/peers/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: {sys.executable} has no {error.name}; ./bootstrap peers installs it")
    sys.exit(SKIPPED)

TRAINCTL = str(pathlib.Path(sys.argv[1]).resolve())
BATCH, ROWS, HEADS, KV_HEADS, WIDTH = 2, 40, 4, 2, 16
TOLERANCE = limit(2e-5)  # of the largest value: transformers computes the angles in fp32


def values(layers, wanted):
    """The outputs of these layers in the first step of a run of `layers`, the last of which is followed by a dense layer."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = {"name": "layers", "seed": 3, "loss": "mse", "optimizer": {"type": "sgd", "learning_rate": 0.01}, "train": {"steps": 1},
               "dataset": {"type": "random", "shape": [ROWS, 24], "label_shape": [ROWS, 1], "label_dtype": "f32", "batch": BATCH, "samples": 4},
               "network": [*layers, {"name": "out", "type": "dense", "units": 1}],
               "print": {"tensors": wanted, "format": "npy", "every": 1}, "launch": {"device": "cpu", "log_dir": str(folder / "runs")}}
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        done = subprocess.run([TRAINCTL, "run", folder / "job.yaml"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return [torch.tensor(np.load(folder / f"runs/1/tensors/step.1/{tensor}.npy")) for tensor in wanted]


def heads_of(x, heads):
    """[batch, heads, rows, width]"""
    return x.reshape(BATCH, ROWS, heads, -1).transpose(1, 2)


def dense(name, units, **fields):
    return {"name": name, "type": "dense", "units": units, "inputs": "data", "init": {"type": "normal", "std": 1.0}, **fields}


def rotary(fields, partial=1.0):
    width = int(WIDTH * partial)
    more = {} if partial == 1.0 else {"rotary_dim": width}
    x, y = values([dense("x", HEADS * WIDTH), {"name": "y", "type": "rotary", "heads": HEADS, "base": 10000.0, **more, **fields}], ["x", "y"])
    parameters = {name: value for name, value in fields.items() if name != "scaling"}
    parameters |= {"rope_type": fields.get("scaling", "default"), "rope_theta": 10000.0, "partial_rotary_factor": partial}
    config = LlamaConfig(hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, head_dim=WIDTH, max_position_embeddings=256, rope_parameters=parameters)
    if "scaling" in fields:
        frequencies, magnitude = ROPE_INIT_FUNCTIONS[fields["scaling"]](config, seq_len=ROWS)
    else:
        frequencies, magnitude = 10000.0 ** (-torch.arange(0, width, 2).double() / width), 1.0
    angles = torch.arange(ROWS)[:, None].double() * frequencies
    cosine, sine = (magnitude * torch.cat([f(angles), f(angles)], -1)[None] for f in (torch.cos, torch.sin))
    whole = heads_of(x.double(), HEADS)
    turned, _ = apply_rotary_pos_emb(whole[..., :width], whole[..., :width], cosine, sine)
    return heads_of(y, HEADS), torch.cat([turned, whole[..., width:]], -1)


def attention(window=0, softcap=0.0, scale=0.3, causal=True):
    fields = {"causal": causal, "window": window, "softcap": softcap, "scale": scale}
    q, k, v, y = values([dense("q", HEADS * WIDTH), dense("k", KV_HEADS * WIDTH), dense("v", KV_HEADS * WIDTH),
                         {"name": "y", "type": "attention", "heads": HEADS, "kv_heads": KV_HEADS, "inputs": ["q", "k", "v"], **fields}], ["q", "k", "v", "y"])
    rows, keys = torch.arange(ROWS)[:, None], torch.arange(ROWS)[None]
    seen = (keys <= rows) | (not causal)
    if window:
        seen &= sliding_window_overlay(window)(0, 0, rows, keys)
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    module = types.SimpleNamespace(num_key_value_groups=HEADS // KV_HEADS, training=False)
    theirs, _ = eager_attention_forward(module, heads_of(q, HEADS), heads_of(k, KV_HEADS), heads_of(v, KV_HEADS), mask, scaling=scale,
                                        softcap=softcap or None)
    return y.reshape(theirs.shape), theirs


def norm(theirs, heads, **fields):
    x, y = values([dense("x", HEADS * WIDTH), {"name": "y", "type": "rms_norm", "heads": heads, "eps": 1e-6, **fields}], ["x", "y"])
    return y.reshape(BATCH, ROWS, heads, -1), theirs(HEADS * WIDTH // heads, eps=1e-6)(x.reshape(BATCH, ROWS, heads, -1))


def element(layer, theirs):
    x, y = values([dense("x", WIDTH), {"name": "y", **layer}], ["x", "y"])
    return y, theirs(x)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"factor": 8.0, "short_factor": [1 + 0.1 * i for i in range(8)], "long_factor": [1 + 3.0 * i for i in range(8)]}

CASES = {
    "rotary": lambda: rotary({}),
    "rotary of a quarter of each head": lambda: rotary({}, 0.25),
    "linear": lambda: rotary({"scaling": "linear", "factor": 8.0}),
    "llama3": lambda: rotary({"scaling": "llama3", **LLAMA3}),
    "llama3 of half of each head": lambda: rotary({"scaling": "llama3", **LLAMA3}, 0.5),
    "yarn": lambda: rotary({"scaling": "yarn", **YARN}),
    "yarn with beta_fast and beta_slow": lambda: rotary({"scaling": "yarn", **YARN, "beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn with mscale": lambda: rotary({"scaling": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.0}),
    "yarn with attention_factor": lambda: rotary({"scaling": "yarn", **YARN, "attention_factor": 0.8}),
    "longrope, short": lambda: rotary({"scaling": "longrope", **LONG, "original_max_position_embeddings": 64}),
    "longrope, long": lambda: rotary({"scaling": "longrope", **LONG, "original_max_position_embeddings": 32}),
    "window": lambda: attention(window=7),
    "window of one row": lambda: attention(window=1),
    "window of all rows": lambda: attention(window=ROWS),
    "softcap": lambda: attention(softcap=2.0),
    "softcap, all keys": lambda: attention(softcap=2.0, causal=False),
    "window, softcap, scale": lambda: attention(window=16, softcap=5.0, scale=WIDTH ** -0.5),
    "norm of heads": lambda: norm(Qwen3RMSNorm, HEADS),
    "norm with an offset": lambda: norm(Gemma2RMSNorm, 1, offset=1),
    "norm of heads with an offset": lambda: norm(Gemma2RMSNorm, HEADS, offset=1),
    "quick_gelu": lambda: element({"type": "quick_gelu"}, QuickGELUActivation()),
    "softcap of logits": lambda: element({"type": "softcap", "cap": 3.0}, lambda x: torch.tanh(x / 3.0) * 3.0),
}


def main():
    failed = 0
    for name, run in CASES.items():
        ours, theirs = (x.detach() for x in run())
        assert ours.shape == theirs.shape, (name, ours.shape, theirs.shape)
        difference, largest = float((ours - theirs).abs().max()), float(theirs.abs().max())
        good = difference < TOLERANCE * largest
        failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: largest difference {difference:.2g}, largest value {largest:.2g}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
