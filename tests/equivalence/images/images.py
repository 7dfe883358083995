#!/usr/bin/env python3
"""images.py TRANSFORM_IMAGES: decodes and transforms made-up photos with the engine, and compares them with libjpeg-turbo's djpeg, with
Pillow, and with the formulas of docs/data.md in NumPy. Exit code 77: there is no Pillow."""

import io
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77

try:
    import numpy as np
    from PIL import Image, ImageOps
except ImportError as error:
    environment = pathlib.Path(__file__).resolve().parents[3] / "build/jax/bin/python3"
    if environment.exists() and pathlib.Path(sys.executable) != environment:
        sys.exit(subprocess.run([environment, *sys.argv], check=False).returncode)
    print(f"SKIPPED: python3 has no {error.name}; ./bootstrap jax installs it")
    sys.exit(SKIPPED)

TOOL = sys.argv[1]
WORK = pathlib.Path(tempfile.mkdtemp(prefix="images"))
SEED = 11


# The engine's random numbers, on Python's integers.


def philox(key, low, high):
    mask = 0xFFFFFFFF
    c = [low & mask, low >> 32, high & mask, high >> 32]
    for number in range(10):
        k0, k1 = ((key & mask) + number * 0x9E3779B9) & mask, ((key >> 32) + number * 0xBB67AE85) & mask
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & mask, (a >> 32) ^ c[3] ^ k1, a & mask]
    return c


def stream_key(seed, name):
    words = philox(seed, name, 0x7472616963746C)
    return words[1] << 32 | words[0]


def fnv(name):
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = (hashed ^ byte) * 0x100000001B3 % 2**64
    return hashed


class Rng:
    def __init__(self, sample):
        self.key, self.sample, self.at = stream_key(stream_key(SEED, fnv("dataset.transforms")), 0), sample, 0

    def next(self):
        word = philox(self.key, self.at >> 2, self.sample)[self.at & 3]
        self.at += 1
        return word

    def uniform(self, low=0.0, high=1.0):
        return low + (high - low) * ((self.next() >> 8) * 2.0**-24)

    def integer(self, below):
        return self.next() * below >> 32


# The expected result of each transform.


def drawn_size(rng, height, width, most, scale, ratio):
    found = None
    for _ in range(10):
        area = height * width * rng.uniform(*scale)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if found is None and 0 < w <= most[1] and 0 < h <= most[0]:
            found = h, w
    return found


def resized_box(rng, height, width, scale=(0.08, 1), ratio=(3 / 4, 4 / 3)):
    size = drawn_size(rng, height, width, (height, width), scale, ratio)
    assert size, "the test's photos have a box that fits"
    return rng.integer(height - size[0] + 1), rng.integer(width - size[1] + 1), *size


def pillow_resize(image, size, box=None):
    top, left, h, w = box or (0, 0, *image.shape[:2])
    return np.asarray(Image.fromarray(image[top:top + h, left:left + w]).resize(size[::-1], Image.BILINEAR))


def area_weights(before, after):
    weights = np.zeros((after, before))
    for i in range(after):
        low, high = i * before / after, (i + 1) * before / after
        for j in range(before):
            weights[i, j] = max(0, min(high, j + 1) - max(low, j))
    return weights / weights.sum(1, keepdims=True)


def linear_weights(before, after):
    weights = np.zeros((after, before))
    for i in range(after):
        at = min(max((i + 0.5) * before / after - 0.5, 0), before - 1)
        weights[i, int(at)] += 1 - (at - int(at))
        weights[i, min(int(at) + 1, before - 1)] += at - int(at)
    return weights


def weighted(image, size, weights):
    rows = np.einsum("ih,hwc->iwc", weights(image.shape[0], size[0]), image.astype(float))
    return np.einsum("jw,iwc->ijc", weights(image.shape[1], size[1]), rows)


def rounded(x):
    return np.floor(np.clip(x, 0, 255) + 0.5).astype(np.uint8)


def luma(image):
    return image @ [0.299, 0.587, 0.114]


def turned_hue(image, turn):
    """Through HSV, a pixel at a time as colorsys has it."""
    import colorsys
    out = np.zeros_like(image)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255))
        out[place] = np.array(colorsys.hsv_to_rgb((h + turn) % 1, s, v)) * 255
    return out


def jittered(image, rng, amounts):
    order = [0, 1, 2, 3]
    for i in (3, 2, 1):
        j = rng.integer(i + 1)
        order[i], order[j] = order[j], order[i]
    factors = [rng.uniform(max(0, 1 - a), 1 + a) for a in amounts[:3]] + [rng.uniform(-amounts[3], amounts[3])]
    rng.next()
    for kind in order:
        x, f = image.astype(float), factors[kind]
        if kind == 0:
            x = f * x
        elif kind == 1:
            grey = (image.astype(int) @ [19595, 38470, 7471] + 32768) >> 16
            x = f * x + (1 - f) * grey.mean()
        elif kind == 2:
            x = f * x + (1 - f) * luma(x)[..., None]
        elif f != 0:
            x = turned_hue(x, f)
        image = rounded(x)
    return image


# Photos.


def picture(height, width, seed):
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    image = np.zeros((height, width, 3))
    for _ in range(8):
        fy, fx, phase = random.normal(0, 0.05, 2).tolist() + [random.uniform(0, 6)]
        image += np.cos(fy * y + fx * x + phase)[..., None] * random.uniform(-30, 30, 3)
    for _ in range(4):
        edge = (y * random.normal() + x * random.normal() > random.normal() * height)[..., None]
        image += edge * random.uniform(-50, 50, 3)
    return np.clip(image + 128 + random.normal(0, 4, image.shape), 0, 255).astype(np.uint8)


def jpeg(image, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", **{"quality": 85, **options})
    return file.getvalue()


def png(image, **options):
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, "PNG", **options)
    return file.getvalue()


def engine(transforms, files):
    """The result for each file, by the engine."""
    paths = [WORK / f"{i}.img" for i in range(len(files))]
    for path, file in zip(paths, files):
        path.write_bytes(file)
    run = subprocess.run([TOOL, transforms, WORK, str(SEED), *paths], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(files) and all(line[0].isdigit() for line in lines), run.stdout
    return [np.load(WORK / f"{i}.npy") for i in range(len(files))]


FAILED = []


def compare(what, seen, wanted, most, share=0.0):
    """Each difference is at most `most`; at most a share of the values may differ by more."""
    worst = over = 0.0
    for a, b in zip(seen, wanted, strict=True):
        assert a.shape == b.shape, (what, a.shape, b.shape)
        difference = np.abs(a.astype(float) - b.astype(float))
        worst, over = max(worst, difference.max()), max(over, (difference > most).mean())
    ok = over <= share
    print(f"{'ok    ' if ok else 'FAILED'} {what}: {worst:.3g} of {most:g} at most" + (f", {over:.2%} more" if share else ""))
    if not ok:
        FAILED.append(what)


def decoding():
    images = [picture(h, w, i) for i, (h, w) in enumerate([(97, 131), (64, 64), (33, 200), (250, 190)])]
    files = [jpeg(image, subsampling=sampling, progressive=progressive)
             for image in images for sampling in (0, 1, 2) for progressive in (False, True)]
    files += [jpeg(image[..., 0]) for image in images]
    decoded = engine("[]", files)
    compare("JPEG, beside Pillow", decoded, [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files], 1)
    if shutil.which("djpeg"):
        reference = []
        for file in files:
            ppm = subprocess.run(["djpeg", "-rgb", "-ppm"], input=file, capture_output=True, check=True).stdout
            reference.append(np.asarray(Image.open(io.BytesIO(ppm)).convert("RGB")))
        compare("JPEG, beside djpeg", decoded, reference, 1)
    else:
        print("no djpeg here (libjpeg-turbo-progs)")
    modes = ["RGB", "RGBA", "L", "LA", "P", "1"]
    files = [png(Image.fromarray(images[0]).convert(mode)) for mode in modes]
    compare("PNG, beside Pillow", engine("[]", files),
            [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files], 0)
    turned = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        turned += [jpeg(images[0], exif=exif), png(images[2], exif=exif)]
    compare("EXIF's orientation, beside Pillow", engine("[]", turned),
            [np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(file)))) for file in turned], 1)
    cmyk = io.BytesIO()
    Image.fromarray(images[0]).convert("CMYK").save(cmyk, "JPEG", quality=90)
    compare("CMYK, beside Pillow", engine("[]", [cmyk.getvalue()]),
            [np.asarray(Image.open(io.BytesIO(cmyk.getvalue())).convert("RGB"))], 1)


def resizing(images, files):
    for size in [(24, 40), (224, 160), (97, 131), (300, 17), (1, 1)]:
        bracket = f"[{size[0]}, {size[1]}]"
        compare(f"resize {bracket} antialias, beside Pillow", engine(f"[{{resize: {{size: {bracket}, method: antialias}}}}]", files),
                [pillow_resize(image, size) for image in images], 1)
        compare(f"resize {bracket} antialias of f32, beside Pillow", engine(f"[{{type_cast: f32}}, {{resize: {{size: {bracket}, method: antialias}}}}]", files),
                [np.stack([np.asarray(Image.fromarray(image[..., c].astype(np.float32)).resize(size[::-1], Image.BILINEAR))
                           for c in range(3)], -1) for image in images], 1e-3)
        compare(f"resize {bracket} area", engine(f"[{{resize: {{size: {bracket}, method: area}}}}]", files),
                [rounded(weighted(image, size, area_weights)) for image in images], 1, 0)
        compare(f"resize {bracket} bilinear", engine(f"[{{resize: {bracket}}}]", files),
                [weighted(image, size, linear_weights) for image in images], 1e-3)


def cutting(images, files):
    boxes, flipped = [], []
    for i, image in enumerate(images):
        rng = Rng(i)
        boxes.append(resized_box(rng, *image.shape[:2]))
        flipped.append(rng.uniform() < 0.5)
    assert any(flipped) and not all(flipped)
    cut = [pillow_resize(image, (24, 32), box) for image, box in zip(images, boxes)]
    compare("random_resized_crop", engine("[{random_resized_crop: [24, 32]}]", files), cut, 1)
    cut = [image[:, ::-1] if flip else image for image, flip in zip(cut, flipped)]
    compare("random_resized_crop, horizontal_flip", engine("[{random_resized_crop: [24, 32]}, horizontal_flip]", files), cut, 1)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    tail = "to_float, {normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}, hwc2chw"
    normal = lambda pixels: [((image / 255 - mean) / deviation).transpose(2, 0, 1) for image in pixels]
    chain = "random_resized_crop: [24, 32]}, horizontal_flip"
    whole = engine(f"[{{{chain}, {tail}]", files)
    compare("to_float, normalize, hwc2chw after them", whole, normal(cut), 1 / 255 / 0.224 + 1e-5)
    compare("the same, of the engine's pixels", whole, normal(engine(f"[{{{chain}]", files)), 4e-6)

    def centre(image, h, w):
        top, left = (image.shape[0] - h) // 2, (image.shape[1] - w) // 2
        large = np.pad(image, ((100, 100), (100, 100), (0, 0)))
        return large[100 + top:100 + top + h, 100 + left:100 + left + w]

    compare("center_crop", engine("[{center_crop: [110, 60]}]", files), [centre(image, 110, 60) for image in images], 0)
    padded = []
    for i, image in enumerate(images):
        rng = Rng(i)
        top, left = rng.integer(image.shape[0] + 8 - 50 + 1), rng.integer(image.shape[1] + 8 - 60 + 1)
        padded.append(np.pad(image, ((4, 4), (4, 4), (0, 0)))[top:top + 50, left:left + 60])
    compare("random_crop with padding", engine("[{random_crop: {size: [50, 60], padding: 4}}]", files), padded, 0)
    compare("pad", engine("[{center_crop: [20, 30]}, {pad: {padding: 3, value: 7}}]", files),
            [np.pad(centre(image, 20, 30), ((3, 3), (3, 3), (0, 0)), constant_values=7) for image in images], 0)


def colouring(images, files):
    names = ["brightness", "contrast", "saturation", "hue"]
    start = [image for image in engine("[{center_crop: [40, 50]}]", files)]
    for amounts in [(0.6, 0, 0, 0), (0, 0.6, 0, 0), (0, 0, 0.9, 0), (0, 0, 0, 0.5), (0.4, 0.4, 0.4, 0.2)]:
        fields = ", ".join(f"{name}: {amount}" for name, amount in zip(names, amounts))
        wanted = [jittered(image, Rng(i), amounts) for i, image in enumerate(start)]
        compare(f"color_jitter {fields}", engine(f"[{{center_crop: [40, 50]}}, {{color_jitter: {{{fields}}}}}]", files), wanted, 1, 0.002 if 0 not in amounts else 0)
    erased = []
    for i, image in enumerate(start):
        rng, image = Rng(i), image.astype(float)
        hits = rng.uniform() < 0.7
        size = drawn_size(rng, 40, 50, (39, 49), (0.02, 0.33), (0.3, 3.3)) or (0, 50)
        top, left = rng.integer(40 - size[0] + 1), rng.integer(50 - size[1] + 1)
        if hits:
            image[top:top + size[0], left:left + size[1]] = 9
        erased.append(image)
    compare("random_erasing of u8", engine("[{center_crop: [40, 50]}, {random_erasing: {p: 0.7, value: 9}}]", files), erased, 0)
    compare("random_erasing of f32, channels first", engine("[{center_crop: [40, 50]}, {rescale: {scale: 1}}, hwc2chw, {random_erasing: {p: 0.7, value: 9}}]", files),
            [image.transpose(2, 0, 1) for image in erased], 0)


def main():
    images = [picture(h, w, 100 + i) for i, (h, w) in enumerate([(97, 131), (64, 64), (333, 200), (250, 490), (120, 80), (51, 60)])]
    files = [png(image) for image in images]
    try:
        decoding()
        resizing(images, files)
        cutting(images, files)
        colouring(images, files)
    finally:
        shutil.rmtree(WORK)
    print(f"{len(FAILED)} failed: {', '.join(FAILED)}" if FAILED else "all as the references have it")
    sys.exit(1 if FAILED else 0)


main()
