"""Checkpoints as arrays: reads checkpoint.json and the safetensors files that it names (docs/checkpoints.md)."""
from __future__ import annotations

import json
import os
import pathlib
import struct
from typing import Any, Dict, List, Tuple, Union

import numpy as np

_TYPES = {"F32": np.float32, "I32": np.int32, "BF16": np.uint16}


def _as_array(data: bytes, dtype: str, shape: List[int]) -> "np.ndarray":
    array = np.frombuffer(data, dtype=_TYPES[dtype]).reshape(shape)
    if dtype == "BF16":  # numpy has no bf16: the f32 of the same value
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array


class _File:
    """A safetensors file: an 8-byte length, a JSON header, data."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        with open(path, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            self.header = json.loads(file.read(length))
        self.begin = 8 + length

    def read(self, key: str) -> Tuple["np.ndarray", str]:
        entry = self.header[key]
        first, end = entry["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self.begin + first)
            return _as_array(file.read(end - first), entry["dtype"], entry["shape"]), entry["dtype"]


class Checkpoint:
    def __init__(self, folder: Union[str, "os.PathLike[str]"]):
        self.folder = pathlib.Path(folder)
        self.manifest: Dict[str, Any] = json.loads((self.folder / "checkpoint.json").read_text())

    @property
    def step(self) -> int:
        return self.manifest["step"]

    @property
    def metrics(self) -> Dict[str, float]:
        """Values of the validation after this step."""
        return self.manifest.get("metrics") or {}

    @property
    def classes(self) -> List[str]:
        return self.manifest.get("classes") or []

    def names(self, slot: str = "weight") -> List[str]:
        return [tensor["name"] for tensor in self.manifest["tensors"] if tensor["slot"] == slot]

    def tensor(self, name: str, slot: str = "weight") -> "np.ndarray":
        """A whole tensor, joined from the pieces of the ranks. slot: weight, state (running statistics), or a name of the optimizer's."""
        entry = next((t for t in self.manifest["tensors"] if t["name"] == name and t["slot"] == slot), None)
        if entry is None:
            raise KeyError(f"{self.folder} has no {slot} of {name}")
        files: Dict[str, _File] = {}
        whole = np.empty(entry["shape"], np.int32 if entry["dtype"] == "I32" else np.float32)
        for piece in entry["pieces"]:
            file = files.setdefault(piece["file"], _File(self.folder / piece["file"]))
            first, shape = piece["offset"], piece["shape"]
            key = f"{name}:{slot}"
            if shape != entry["shape"]:
                key += "[" + ", ".join(f"{a}:{a + n}" for a, n in zip(first, shape)) + "]"
            values, _ = file.read(key)
            whole[tuple(slice(a, a + n) for a, n in zip(first, shape))] = values
        return whole

    def numpy(self) -> Dict[str, "np.ndarray"]:
        """All weights and running statistics by name."""
        return {tensor["name"]: self.tensor(tensor["name"], tensor["slot"]) for tensor in self.manifest["tensors"]
                if tensor["slot"] in ("weight", "state")}

    def torch(self) -> Dict[str, Any]:
        """The same as torch tensors."""
        import torch
        return {name: torch.from_numpy(array) for name, array in self.numpy().items()}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.folder)!r}, step {self.step})"
