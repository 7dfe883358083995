#!/usr/bin/env python3
"""Writes what trainctl compares with this network in PyTorch, into the folder of this file or the one that is given:

    start.safetensors                 the initial weights, by the names of the job's parameters
    data/data.npy, data/label.npy     the batch of the first step
    activations.safetensors           the outputs of the layers for this batch, by the names of the job's layers

    python3 model.py
    trainctl run job.yaml
    trainctl diff latest activations.safetensors --tolerance 1e-5
"""

import collections
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

BATCH, FEATURES = 32, 24

# The names of the modules are the names of the job's layers, so that neither weights nor outputs need a map.
network = nn.Sequential(collections.OrderedDict(
    fc1=nn.Linear(FEATURES, 64),
    act1=nn.GELU(),
    norm=nn.LayerNorm(64),
    fc2=nn.Linear(64, 32),
    act2=nn.SiLU(),
    out=nn.Linear(32, 1),
))


def record_outputs(module):
    """The outputs of all named submodules, filled by the next forward pass."""
    outputs = {}
    for name, part in module.named_modules():
        if name:
            part.register_forward_hook(lambda _, __, output, name=name: outputs.update({name: output.detach().contiguous()}))
    return outputs


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else __file__).resolve()
    folder = folder if folder.is_dir() else folder.parent
    torch.manual_seed(1)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    batch, label = torch.randn(BATCH, FEATURES), torch.randn(BATCH, 1)
    outputs = record_outputs(network)
    loss = nn.functional.mse_loss(network(batch), label)

    (folder / "data").mkdir(exist_ok=True)
    np.save(folder / "data/data.npy", batch.numpy())
    np.save(folder / "data/label.npy", label.numpy())
    save_file({name: value.contiguous() for name, value in network.state_dict().items()}, folder / "start.safetensors")
    save_file(outputs, folder / "activations.safetensors")
    print(f"loss {loss.item():.6f}; outputs of {', '.join(outputs)}")


if __name__ == "__main__":
    main()
