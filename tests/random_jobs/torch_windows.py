"""Layers of random networks (torch_layers.py) whose windows move over rows, images and volumes: convolutions, pools and resizing."""

import math

import torch

f = torch.nn.functional


def some_sizes(rng, shape):
    return [rng.randint(1, n + 1) for n in shape]


class Windows:
    def conv1d(self, x):
        if len(self.shapes[x]) != 2 or self.shapes[x][1] < 3:
            return None
        c, n = self.shapes[x]
        groups = self.rng.choice([g for g in range(1, c + 1) if c % g == 0])
        channels, stride, mode = groups * self.rng.choice([1, 2, 3]), self.rng.choice([1, 2]), self.rng.choice(["zeros", "reflect", "replicate", "circular"])
        name = f"conv1d{len(self.layers)}"
        self.weight(f"{name}.weight", channels, c // groups, 1, 3)
        self.weight(f"{name}.bias", channels, scale=0.1)

        def run(w, v):
            v = f.pad(v, (1, 1), mode="constant" if mode == "zeros" else mode)
            return f.conv1d(v, w[f"{name}.weight"].reshape(channels, c // groups, 3), w[f"{name}.bias"], stride=stride, groups=groups)

        return self.add("conv1d", run, [x], (channels, (n - 1) // stride + 1), name=name, channels=channels, kernel=3, padding=1, stride=stride,
                        groups=groups, padding_mode=mode)

    def conv_transpose1d(self, x):
        if len(self.shapes[x]) != 2 or math.prod(self.shapes[x]) > 60:
            return None
        c, n = self.shapes[x]
        groups = self.rng.choice([g for g in range(1, c + 1) if c % g == 0])
        channels, stride, dilation = groups * self.rng.choice([1, 2]), self.rng.choice([1, 2]), self.rng.choice([1, 2, 3])
        more = self.rng.choice(range(max(stride, dilation)))
        name = f"conv_transpose1d{len(self.layers)}"
        self.weight(f"{name}.weight", c, channels // groups, 1, 3)
        self.weight(f"{name}.bias", channels, scale=0.1)
        return self.add("conv_transpose1d", lambda w, v: f.conv_transpose1d(v, w[f"{name}.weight"][:, :, 0], w[f"{name}.bias"], stride, 1, more, groups, dilation), [x],
                        (channels, (n - 1) * stride + 2 * dilation - 1 + more), name=name, channels=channels, kernel=3, stride=stride, padding=1, output_padding=more,
                        groups=groups, dilation=dilation)

    def pool1d(self, x):
        if len(self.shapes[x]) != 2 or self.shapes[x][1] < 4:
            return None
        ceil, padding, largest = self.rng.random() < 0.5, self.rng.choice([0, 1]), self.rng.random() < 0.5
        if self.rng.random() < 0.3:
            size = self.rng.randint(1, self.shapes[x][1] + 1)
            g = f.adaptive_max_pool1d if largest else f.adaptive_avg_pool1d
            return self.add("adaptive_max_pool1d" if largest else "adaptive_avg_pool1d", lambda w, v: g(v, size), [x], (self.shapes[x][0], size), size=size)
        run = (lambda w, v: f.max_pool1d(v, 3, 2, padding, 1, ceil)) if largest else (lambda w, v: f.avg_pool1d(v, 3, 2, padding, ceil))
        out = run(None, torch.zeros(1, *self.shapes[x])).shape[1:]
        return self.add("max_pool1d" if largest else "avg_pool1d", run, [x], out, kernel=3, stride=2, padding=padding, ceil_mode=ceil)

    def volume(self, x):
        """A tensor [c, depth, height, width] of the elements of x; None if they do not divide."""
        size, rng = math.prod(self.shapes[x]), self.rng
        options = [(c, d, h, size // (c * d * h)) for c in (1, 2, 4) for d in (2, 3, 4) for h in (2, 3, 4) if size % (c * d * h) == 0 and 1 < size // (c * d * h) < 9]
        return self.reshape(x, rng.choice(options)) if options and size <= 120 else None

    def conv_transpose3d(self, x):
        x = self.volume(x)
        if x is None:
            return None
        c, rng = self.shapes[x][0], self.rng
        groups = rng.choice([1, c])
        fields = rng.choice([{"kernel": 2, "stride": 2}, {"kernel": 3, "padding": 1}, {"kernel": [3, 2, 3], "stride": [2, 1, 2], "padding": [1, 0, 1], "output_padding": [1, 0, 1]},
                             {"kernel": [2, 3, 1], "stride": [1, 2, 1], "dilation": [2, 1, 1]},
                             {"kernel": [1, 2, 2], "stride": [1, 1, 2], "dilation": [1, 2, 3], "output_padding": [0, 1, 2]}])
        channels, kernel = groups * rng.choice([1, 2]), fields["kernel"] if isinstance(fields["kernel"], list) else [fields["kernel"]] * 3
        name = f"conv_transpose3d{len(self.layers)}"
        self.weight(f"{name}.weight", c, channels // groups * kernel[0], *kernel[1:])
        self.weight(f"{name}.bias", channels, scale=0.1)

        def run(w, v):
            weight = w[f"{name}.weight"].reshape(c, channels // groups, *kernel)
            return f.conv_transpose3d(v, weight, w[f"{name}.bias"], fields.get("stride", 1), fields.get("padding", 0), fields.get("output_padding", 0), groups, fields.get("dilation", 1))

        with torch.no_grad():
            zeros = {f"{name}.weight": self.start[f"{name}.weight"], f"{name}.bias": self.start[f"{name}.bias"]}
            out = run(zeros, torch.zeros(1, *self.shapes[x], dtype=torch.float64)).shape[1:]
        return self.add("conv_transpose3d", run, [x], out, name=name, channels=channels, groups=groups, **fields)

    def pool3d(self, x):
        x = self.volume(x)
        if x is None:
            return None
        largest, ceil, padding = self.rng.random() < 0.5, self.rng.random() < 0.5, self.rng.choice([0, [1, 0, 1]])
        if self.rng.random() < 0.3:
            size = some_sizes(self.rng, self.shapes[x][1:])
            g = f.adaptive_max_pool3d if largest else f.adaptive_avg_pool3d
            return self.add("adaptive_max_pool3d" if largest else "adaptive_avg_pool3d", lambda w, v: g(v, size), [x], (self.shapes[x][0], *size), size=size)
        counted = {} if largest else {"count_include_pad": self.rng.random() < 0.5}
        g = f.max_pool3d if largest else f.avg_pool3d
        run = lambda w, v: g(v, 2, [1, 2, 1], padding, ceil_mode=ceil, **counted)  # noqa: E731
        out = run(None, torch.zeros(1, *self.shapes[x])).shape[1:]
        return self.add("max_pool3d" if largest else "avg_pool3d", run, [x], out, kernel=2, stride=[1, 2, 1], padding=padding, ceil_mode=ceil, **counted)

    def conv2d(self, x):
        if len(self.shapes[x]) != 3 or min(self.shapes[x][1:]) < 3:
            return None
        c, h, width = self.shapes[x]
        channels, mode = self.rng.choice([1, 2, 4]), self.rng.choice(["zeros", "reflect", "replicate", "circular"])
        name = f"conv2d{len(self.layers)}"
        self.weight(f"{name}.weight", channels, c, 3, 3)
        self.weight(f"{name}.bias", channels, scale=0.1)

        def run(w, v):
            return f.conv2d(f.pad(v, (1, 1, 1, 1), mode="constant" if mode == "zeros" else mode), w[f"{name}.weight"], w[f"{name}.bias"])

        return self.add("conv2d", run, [x], (channels, h, width), name=name, channels=channels, kernel=3, padding=1, padding_mode=mode)

    def conv_transpose2d(self, x):
        if len(self.shapes[x]) != 3 or math.prod(self.shapes[x]) > 150:
            return None
        c, h, width = self.shapes[x]
        stride, more, channels = self.rng.choice([1, 2]), self.rng.choice([0, 1]), self.rng.choice([1, 2, 3])
        groups = 2 if c % 2 == 0 and self.rng.random() < 0.5 else 1
        more, channels = more if stride == 2 else 0, channels * groups
        name = f"conv_transpose2d{len(self.layers)}"
        self.weight(f"{name}.weight", c, channels // groups, 3, 2)
        self.weight(f"{name}.bias", channels, scale=0.1)
        out = (channels, (h - 1) * stride + 1 + more, (width - 1) * stride + 2 + more)
        return self.add("conv_transpose2d", lambda w, v: f.conv_transpose2d(v, w[f"{name}.weight"], w[f"{name}.bias"], stride, (1, 0), more, groups), [x], out,
                        name=name, channels=channels, kernel=[3, 2], stride=stride, padding=[1, 0], output_padding=more, groups=groups)

    def conv3d(self, x):
        shape = self.shapes[x]
        if len(shape) != 3 or min(shape) < 2 or shape[0] < 3:
            return None
        groups = 2 if shape[0] % 2 == 0 else 1
        depth, dilation = shape[0] // groups, self.rng.choice([1, 2])
        volume = self.reshape(x, (groups, depth, *shape[1:]))
        name, channels = f"conv3d{len(self.layers)}", groups * self.rng.choice([1, 2])
        self.weight(f"{name}.weight", channels, 3, 2, 2)
        self.weight(f"{name}.bias", channels, scale=0.1)
        out = (channels, depth, shape[1] - 1, shape[2] - 1)

        def run(w, v):
            return f.conv3d(v, w[f"{name}.weight"].reshape(channels, 1, 3, 2, 2), w[f"{name}.bias"], 1, (dilation, 0, 0), (dilation, 1, 1), groups)

        return self.add("conv3d", run, [volume], out, name=name, channels=channels, kernel=[3, 2, 2], padding=[dilation, 0, 0], dilation=[dilation, 1, 1], groups=groups)

    def pool(self, x):
        if len(self.shapes[x]) != 3 or min(self.shapes[x][1:]) < 3:
            return None
        c, h, width = self.shapes[x]
        kind = self.rng.choice(["max", "max", "avg", "adaptive_avg", "adaptive_max"])
        if kind.startswith("adaptive"):
            size = [self.rng.randint(1, h - 1), self.rng.randint(1, width)]
            g = f.adaptive_avg_pool2d if kind == "adaptive_avg" else f.adaptive_max_pool2d
            return self.add(f"{kind}_pool2d", lambda w, v: g(v, size), [x], (c, *size), size=size)
        dilation = [self.rng.choice([1, 1, 2]), 1] if kind == "max" and h >= 4 else [1, 1]
        stride, ceil = self.rng.choice([1, 2]), self.rng.random() < 0.4
        if kind == "max":
            run, fields = lambda w, v: f.max_pool2d(v, 2, stride, 1 if dilation == [1, 1] else 0, dilation, ceil), {"dilation": dilation}
        else:
            run, fields = lambda w, v: f.avg_pool2d(v, 2, stride, 1, ceil), {}
        padding = 0 if dilation != [1, 1] else 1
        with torch.no_grad():
            out = run(None, torch.zeros(1, c, h, width)).shape[1:]
        return self.add(f"{kind}_pool2d", run, [x], out, kernel=2, stride=stride, padding=padding, ceil_mode=ceil, **fields)

    def resize(self, x):
        shape = self.shapes[x]
        if len(shape) < 2 or math.prod(shape) > 150:
            return None
        mode = self.rng.choice(["nearest", *{2: ["linear"], 3: ["bilinear", "bicubic"], 4: ["trilinear"]}[len(shape)]])
        corners = {"align_corners": self.rng.random() < 0.5} if mode != "nearest" else {}
        if len(shape) == 3 and self.rng.random() < 0.2:
            return self.add("upsample", lambda w, v: f.interpolate(v, scale_factor=(2, 1)), [x], (shape[0], 2 * shape[1], shape[2]), factor=[2, 1])
        if self.rng.random() < 0.5:
            out = [shape[0], *[2 * n for n in shape[1:]]]
            return self.add("interpolate", lambda w, v: f.interpolate(v, scale_factor=2.0, mode=mode, **corners), [x], out, scale=2, mode=mode, **corners)
        size = [n + self.rng.choice([1, 2, 3]) if n < 3 else n + self.rng.choice([-1, 1, 2]) for n in shape[1:]]
        return self.add("interpolate", lambda w, v: f.interpolate(v, size=size, mode=mode, **corners), [x], (shape[0], *size), size=size, mode=mode, **corners)
