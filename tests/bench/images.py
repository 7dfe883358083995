#!/usr/bin/env python3
"""images.py BENCH_IMAGES [SECONDS]: images a second of one core, from made-up photos to normalized crops of 224 x 224, beside
libjpeg-turbo's tjbench on the same files (it decodes, no more), and Pillow and torchvision where python3 has them."""

import io
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time


def tjbench(files, seconds):
    """Images a second of decoding alone. tjbench prints megapixels a second of one file."""
    if not shutil.which("tjbench"):
        return print("no tjbench here (libjpeg-turbo-progs)")
    each = []
    for file in files[:12]:
        with tempfile.TemporaryDirectory() as folder:  # it writes what it decoded beside its input
            copy = shutil.copy(file, folder)
            out = subprocess.run(["tjbench", copy, "-nowrite", "-quiet", "-rgb", "-benchtime", str(seconds / 6), "-warmup", "0.1"],
                                 capture_output=True, text=True, check=True).stdout
        width, height, rate = re.search(r"(\d+)\s+(\d+)\s+([\d.]+)\s*$", out.strip().splitlines()[-1]).groups()
        each.append(int(width) * int(height) / (float(rate) * 1e6))
    print(f"{'tjbench: decode':<60} {len(each) / sum(each):8.0f} images/s")


def rate(what, files, seconds, run):
    best = 0
    for _ in range(3):
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds / 3:
            for file in files:
                run(file)
            count += len(files)
        best = max(best, count / (time.perf_counter() - start))
    print(f"{what:<60} {best:8.0f} images/s")


def pillow(files, seconds):
    try:
        import numpy as np
        import PIL.Image
    except ImportError as error:
        return print(f"python3 has no {error.name}")
    mean, scale = np.float32([0.485, 0.456, 0.406]), np.float32(1) / np.float32([0.229, 0.224, 0.225])

    def run(file):
        image = PIL.Image.open(io.BytesIO(file)).convert("RGB")
        height, width = random.randint(120, image.height), random.randint(160, image.width)
        top, left = random.randint(0, image.height - height), random.randint(0, image.width - width)
        image = image.resize((224, 224), PIL.Image.BILINEAR, (left, top, left + width, top + height))
        return np.ascontiguousarray(((np.asarray(image, dtype=np.float32) / 255 - mean) * scale).transpose(2, 0, 1))

    rate("Pillow and NumPy: decode, crop, resize, normalize, chw", files, seconds, run)
    rate("Pillow: decode", files, seconds, lambda file: PIL.Image.open(io.BytesIO(file)).convert("RGB"))


def torchvision(files, seconds):
    try:
        import PIL.Image
        import torch
        from torchvision import transforms
    except ImportError as error:
        return print(f"python3 has no {error.name}")
    torch.set_num_threads(1)
    chain = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                                transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    rate("torchvision: the same chain", files, seconds, lambda file: chain(PIL.Image.open(io.BytesIO(file)).convert("RGB")))


def main():
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.argv[1], "--write", folder, str(seconds)], check=True)
        paths = sorted(pathlib.Path(folder).glob("*.jpg"))
        sys.stdout.flush()
        tjbench(paths, seconds)
        files = [path.read_bytes() for path in paths]
        pillow(files, seconds)
        torchvision(files, seconds)


main()
