#!/usr/bin/env python3
"""images_torch.py FOLDER WORKERS SECONDS [pillow|tensor]: images per second of PyTorch's DataLoader with torchvision's transforms:
random_resized_crop 224, flip, normalize, of the JPEGs in the folders of FOLDER. pillow is what ImageFolder does by itself; tensor
decodes with torchvision.io. images.py runs it."""

import sys
import time

import torch
from torchvision import datasets, io
from torchvision.transforms import v2

folder, workers, seconds, kind = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
steps = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True),
         v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
if kind == "pillow":
    data = datasets.ImageFolder(folder, transform=v2.Compose(steps[:2] + [v2.ToImage()] + steps[2:]))
else:
    data = datasets.ImageFolder(folder, transform=v2.Compose(steps),
                                loader=lambda path: io.decode_image(path, mode=io.ImageReadMode.RGB))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=workers, drop_last=True,
                                     persistent_workers=workers > 0, prefetch_factor=4 if workers else None)
done, start, warm = 0, None, 3 * max(workers, 1)
while True:
    for images, _ in loader:
        warm -= 1
        if warm == 0:
            start = time.perf_counter()
        elif warm < 0:
            done += len(images)
            if time.perf_counter() - start > seconds:
                print(done / (time.perf_counter() - start))
                sys.exit()
