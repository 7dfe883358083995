#!/usr/bin/env python3
"""on_gpus.py TRAINCTL ARGUMENTS: the command with launch.device=cuda in place of cpu, if this machine has as many GPUs as the job has ranks.

It stands in for trainctl in tests that compare CPU runs with PyTorch (oracles.sh), so that they compare runs on GPUs. A job of more ranks
runs on the CPU as before. ON_GPUS_LOG names a file that gets one line per command: the device and the number of ranks."""

import os
import pathlib
import re
import sys

trainctl, words = sys.argv[1], sys.argv[2:]
files = [pathlib.Path(word) for word in words if word.endswith((".yaml", ".json")) and os.path.isfile(word)]
text = files[0].read_text() if files else ""
ranks = re.findall(r"""(?:launch\.ranks=|["']?ranks["']?: *)(\d+)""", " ".join(words)) or re.findall(r"""["']?ranks["']?: *(\d+)""", text)
gpus = len(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(","))
fits = words[:1] and words[0] in ("run", "evaluate", "predict", "generate") and int(ranks[-1] if ranks else 1) <= gpus
if fits and files:
    words = [word for word in words if word != "launch.device=cpu"] + ["launch.device=cuda"]
if log := os.environ.get("ON_GPUS_LOG"):
    with open(log, "a") as file:
        print("cuda" if fits and files else "cpu", ranks[-1] if ranks else 1, " ".join(words[:2]), file=file)
os.execv(trainctl, [trainctl, *words])
