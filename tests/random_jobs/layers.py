"""Layers of the job file, drawn at random in shapes that fit, many of them odd.

Layers keeps the shape of each tensor with the rows of one micro-batch as dim 0, and the letters of each layer's operands as
the planner's rules have them, from which job.py draws cuts.
"""

import math

SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 8, 11, 12, 13, 16, 16, 17, 24, 31, 32, 33, 48, 64]
SMALL_SIZES = [1, 1, 2, 3, 4, 6, 8]
LARGE_SIZES = SIZES + [63, 65, 96, 127, 128, 129, 160, 255, 256, 257, 384]
EVEN_SIZES = [4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200, 256]
HUGE_SIZES = [1000, 1023, 1024, 2048, 2048, 2050, 2304]
LETTERS = "abcdefgh"


def reshape_limits(before, after):
    """For each dim of `before`, what its cuts must divide: its outermost part, if that is also the outermost of a later dim."""
    limits, i, o = [1] * len(before), 0, 0
    while i < len(before) or o < len(after):
        starts, whole_in, whole_out = (i, o), 1, 1
        while True:  # a run of dims with the same number of elements
            if whole_in <= whole_out and i < len(before) or o == len(after):
                whole_in, i = whole_in * before[i], i + 1
            else:
                whole_out, o = whole_out * after[o], o + 1
            if whole_in == whole_out:
                break
        limits[starts[0]:i] = run_limits(before[starts[0]:i], after[starts[1]:o])
    return limits


def run_limits(before, after):
    limits, used = [1] * len(before), set()
    at, left = [-1, -1], [1, 1]
    while True:
        for side, dims in enumerate((before, after)):
            while left[side] == 1 and at[side] + 1 < len(dims):
                at[side] += 1
                left[side] = dims[at[side]]
        if left == [1, 1]:
            return limits
        size, ends = min(left), {("in", at[0]), ("out", at[1])}
        if size == 1 or left[0] % size or left[1] % size:
            return [1] * len(before)
        if not ends & used:
            limits[at[0]] = size
        used |= ends
        left = [left[0] // size, left[1] // size]


class Layers:
    def __init__(self, rng, rows, sizes=None, most_elements=1 << 13):
        self.rng, self.rows, self.sizes, self.most_elements = rng, rows, sizes or SIZES, most_elements
        self.layers = []    # as in the job file
        self.modules = {}
        self.flat = []      # all layers, with modules unrolled
        self.shapes = {}    # of layers' outputs by name, and of data
        self.rules = {}     # layer -> (letters of each operand, letters that stay whole, and of reshapes what cuts divide)
        self.made_by = {}   # one of several outputs -> its layer
        self.weights = {}   # layer with an own weight that others may share -> its shape
        # True if micro-batches compute different numbers than whole batches: statistics over rows.
        self.mixes_rows = False
        self.same_rows = set()  # tensors with equal rows, whose variance over rows is only rounding
        self.flat_sums = set()  # tensors whose sums are 0 or 1 except for rounding, so that a sum of them is only rounding
        self.integer_data = False
        self.vocabulary = 0
        self.at = "data"

    # Shapes and names.

    @property
    def shape(self):
        return self.shapes[self.at]

    def size(self):
        return self.rng.choice(self.sizes)

    def fits(self, shape):
        return math.prod(shape) <= self.most_elements * max(1, self.rows // 16)

    def put(self, type, out, rule, inputs=None, weight=None, **fields):
        """Adds a layer after `inputs`, by default after the last one; returns its name. `weight`: the shape of its weight, if
        its units do not tell."""
        name = f"{type}{len(self.flat)}"
        layer = {"name": name, "type": type, **fields}
        inputs = inputs or [self.at]
        before = self.flat[-1]["name"] if self.flat else "data"
        if inputs != [before] or self.rng.random() < 0.1:
            layer["inputs"] = inputs
        self.layers.append(layer)
        return self.know(name, type, out, rule, inputs, units=fields.get("units"), vocab=fields.get("vocab"),
                         turned=fields.get("transpose_b"), p=fields.get("p"), weight=weight)

    def know(self, name, type, out, rule, inputs, **fields):
        self.flat.append({"name": name, "type": type, "inputs": inputs, **fields})
        self.shapes[name], self.rules[name], self.at = tuple(out), rule, name
        if all(i in self.same_rows for i in inputs) and not fields.get("p"):
            self.same_rows.add(name)
        keeps_sums = ("reshape", "flatten", "transpose", "squeeze", "unsqueeze", "scale")
        if type in ("layer_norm", "group_norm", "batch_norm", "softmax") or (type in keeps_sums and inputs[0] in self.flat_sums):
            self.flat_sums.add(name)
        return name

    def letters(self, shape, used=""):
        return "".join([c for c in LETTERS if c not in used][:len(shape)])

    def elementwise(self, type, **fields):
        row = self.letters(self.shape)
        return self.put(type, self.shape, ([row], ""), **fields)

    # Layers, one per function; each returns False if the shape does not suit it.

    def dense(self, units=None, bias=None, **fields):
        if len(self.shape) < 2:
            return False
        features, units = self.shape[-1], units or self.size()
        bias = self.rng.random() < 0.7 if bias is None else bias
        owners = [name for name, shape in self.weights.items() if shape == (units, features)]
        if owners and "init" not in fields and self.rng.random() < 0.5:
            fields["share"] = self.rng.choice(owners)
        elif self.rng.random() < 0.2:
            fields.setdefault("init", self.rng.choice([{"type": "normal", "std": 0.05}, {"type": "normal", "std": 0.3},
                                                       {"type": "normal", "std": 0.5, "depth": 3}, {"type": "uniform", "bound": 0.2},
                                                       {"type": "kaiming_normal", "nonlinearity": "relu"}, "xavier_uniform"]))
        out = self.shape[:-1] + (units,)
        if not self.fits(out):
            return False
        rows = self.letters(out[:-1])
        rule = ([rows + "k", "nk"] + (["n"] if bias else []), "")
        name = self.put("dense", out, rule, units=units, **({} if bias else {"bias": False}), **fields)
        if "share" not in fields:
            self.weights[name] = (units, features)
        return True

    def matmul(self):
        if len(self.shape) < 2:
            return False
        out = self.shape[:-1] + (self.size(),)
        if not self.fits(out):
            return False
        turned = self.rng.random() < 0.3
        rule = ([self.letters(out[:-1]) + "k", "nk" if turned else "kn"], "")
        self.put("matmul", out, rule, units=out[-1], **({"transpose_b": True} if turned else {}))
        return True

    def activation(self):
        type = self.rng.choice(["relu", "relu", "sigmoid", "tanh", "gelu", "gelu"])
        fields = {"approximate": "tanh"} if type == "gelu" and self.rng.random() < 0.5 else {}
        return bool(self.elementwise(type, **fields))

    # Functions in orders that stay within their domains, and do not grow.
    FUNCTIONS = [[("silu", {})], [("leaky_relu", {})], [("leaky_relu", {"negative_slope": 0.3})], [("softplus", {})],
                 [("softplus", {"beta": 3, "threshold": 2})], [("clip", {"min": -1.5, "max": 2})], [("clip", {"max": 0.5})], [("abs", {})], [("softcap", {"cap": 1.5})], [("quick_gelu", {})],
                 [("elu", {})], [("elu", {"alpha": 0.6})], [("selu", {})], [("mish", {})], [("hardswish", {})], [("hardsigmoid", {})], [("softsign", {})],
                 [("log_sigmoid", {})], [("sin", {})], [("cos", {})],
                 [("scale", {"factor": -0.7, "shift": 0.1})], [("tanh", {}), ("exp", {})],
                 [("softplus", {}), ("scale", {"shift": 0.5}), ("log", {})], [("sigmoid", {}), ("scale", {"shift": 0.2}), ("sqrt", {})],
                 [("tanh", {}), ("pow", {"exponent": 3})], [("clip", {"min": -2, "max": 2}), ("pow", {"exponent": 2})],
                 [("sigmoid", {}), ("scale", {"shift": 0.5}), ("pow", {"exponent": -1.5})]]

    def function(self):
        for type, fields in self.rng.choice(self.FUNCTIONS):
            self.elementwise(type, **fields)
        return True

    def dropout(self):
        return bool(self.elementwise("dropout", p=self.rng.choice([0, 0.1, 0.3, 0.5])))

    def softmax(self, dim=None):
        dims = len(self.shape)
        dim = self.rng.randrange(0 if self.rng.random() < 0.15 else min(1, dims - 1), dims) if dim is None else dim
        self.mixes_rows |= dim == 0
        row = self.letters(self.shape)
        name = self.put("softmax", self.shape, ([row], ""), dim=self.rng.choice([dim, dim - dims]))
        if self.shape[dim] == 1:  # the result would be ones for any input
            self.same_rows.add(name)
        return True

    def layer_norm(self):
        if len(self.shape) < 2 or self.shape[-1] < 3:  # normalizing 1 or 2 numbers leaves little more than signs
            return False
        row = self.letters(self.shape[:-1], "d")
        affine = self.rng.random() < 0.7
        self.put("layer_norm", self.shape, ([row + "d"] + (["d", "d"] if affine else []), ""),
                 eps=self.rng.choice([1e-5, 1e-3]), **({} if affine else {"affine": False}))
        return True

    def rms_norm(self):
        """Normalises whole rows, or heads, by which the last dim can be cut."""
        if len(self.shape) < 2 or self.shape[-1] < 3:
            return False
        rng, row, affine = self.rng, self.letters(self.shape[:-1], "dw"), self.rng.random() < 0.7
        fields = {"eps": rng.choice([1e-5, 1e-3]), **({} if affine else {"affine": False})}
        if affine and rng.random() < 0.2:
            fields["offset"] = 1
        heads = [h for h in range(2, self.shape[-1] // 3 + 1) if self.shape[-1] % h == 0]
        if heads and rng.random() < 0.3:
            fields["heads"] = rng.choice(heads)
            rule = ([row + "d"] + (["w"] if affine else []), "w", {"d": fields["heads"]})
        else:
            rule = ([row + "d"] + (["d"] if affine else []), "")
        self.put("rms_norm", self.shape, rule, **fields)
        return True

    def group_norm(self):
        """A cut of the channels is a cut of the groups."""
        if len(self.shape) < 2:
            return False
        counts = [g for g in range(1, self.shape[1] + 1) if self.shape[1] % g == 0 and math.prod(self.shape[1:]) // g >= 3]
        if not counts:
            return False
        groups = self.rng.choice(counts)
        others = self.letters(self.shape[2:], "nc")
        affine = self.rng.random() < 0.7
        rule = (["nc" + others] + (["c", "c"] if affine else []), others, {"c": groups})
        self.put("group_norm", self.shape, rule, groups=groups, eps=self.rng.choice([1e-5, 1e-3]),
                 **({} if affine else {"affine": False}))
        return True

    def batch_norm(self):
        dims = len(self.shape)
        dim = self.rng.choice([1, 1, dims - 1]) if dims > 1 else 0
        if dims < 2 or math.prod(self.shape) // self.shape[dim] < 3 or self.at in self.same_rows:
            return False
        self.mixes_rows = True
        row = list("n" + self.letters(self.shape[2:], "nc"))
        row.insert(dim, "c")
        affine = self.rng.random() < 0.7
        place = {} if dim == 1 and self.rng.random() < 0.8 else {"dim": self.rng.choice([dim, dim - dims])}
        self.put("batch_norm", self.shape, (["".join(row)] + ["c"] * (6 if affine else 4), ""), eps=self.rng.choice([1e-5, 1e-2]),
                 **place, **({} if affine else {"affine": False}), **({"momentum": 0.5} if self.rng.random() < 0.3 else {}))
        return True

    def slice(self):
        dims = [d for d in range(1, len(self.shape)) if self.shape[d] > 1]
        if not dims:
            return False
        dim = self.rng.choice(dims)
        size = self.shape[dim]
        count = self.rng.choice([1, size // 2, self.rng.randint(1, size)]) if len(self.shape) > 2 else self.rng.randint((size + 1) // 2, size)
        begin = self.rng.randint(0, size - count)
        end = begin + count
        out = self.shape[:dim] + (count,) + self.shape[dim + 1:]
        fields = {"begin": self.rng.choice([begin, begin - size])} if begin or self.rng.random() < 0.2 else {}
        if end < size or self.rng.random() < 0.2:
            fields["end"] = end if end == size else self.rng.choice([end, end - size])
        self.put("slice", out, ([self.letters(self.shape)], ""), dim=self.rng.choice([dim, dim - len(self.shape)]), **fields)
        return True

    def pad(self):
        if len(self.shape) < 2:
            return False
        dims = sorted(self.rng.sample(range(1, len(self.shape)), self.rng.randint(1, min(2, len(self.shape) - 1))))
        around = {side: [self.rng.choice([0, 1, 1, 2, 5]) for _ in dims] for side in ("before", "after")}
        out = list(self.shape)
        for i, d in enumerate(dims):
            out[d] += around["before"][i] + around["after"][i]
        if not self.fits(out):
            return False
        fields = {side: counts for side, counts in around.items() if any(counts) or self.rng.random() < 0.2}
        if self.rng.random() < 0.5:
            fields["value"] = self.rng.choice([-1, 0.5])
        row = self.letters(self.shape)
        whole = "".join(row[d] for d in dims if out[d] != self.shape[d]) if "value" in fields else ""
        self.put("pad", out, ([row], whole), dims=[self.rng.choice([d, d - len(out)]) for d in dims], **fields)
        return True

    def one_dim(self):
        """squeeze or unsqueeze."""
        ones = [d for d in range(1, len(self.shape)) if self.shape[d] == 1]
        if ones and len(self.shape) > 2 and self.rng.random() < 0.7:
            dim = self.rng.choice(ones)
            return self.reshaped("squeeze", self.shape[:dim] + self.shape[dim + 1:], dim=self.rng.choice([dim, dim - len(self.shape)]))
        if len(self.shape) > 4:
            return False
        dim = self.rng.randint(1, len(self.shape))
        return self.reshaped("unsqueeze", self.shape[:dim] + (1,) + self.shape[dim:], dim=self.rng.choice([dim, dim - len(self.shape) - 1]))

    def position_embedding(self):
        if len(self.shape) < 3:
            return False
        length = self.shape[-2] + self.rng.choice([0, 0, 1, 3, 8])
        rule = ([self.letters(self.shape[:-2], "tdp") + "td", "pd"], "p")
        self.put("position_embedding", self.shape, rule, max_length=length, **({"init": {"type": "normal", "std": 0.3}} if self.rng.random() < 0.7 else {}))
        return True

    def images(self):
        """Brings the tensor into the shape [n, c, h, w]; False if it would be too large."""
        if len(self.shape) == 4:
            return True
        sides = [self.rng.choice([1, 2, 3, 4, 5, 7, 8]) for _ in range(2)]
        image = (self.rng.choice([1, 2, 3, 4, 6, 8]), *sides)
        if len(self.shape) < 2 or not self.fits((self.rows, *image)):
            return False
        if len(self.shape) > 2:
            self.reshaped("flatten", (self.rows, math.prod(self.shape[1:])))
        return self.dense(units=math.prod(image)) and self.reshaped("reshape", (self.rows, *image), shape=list(image))

    def window(self, of_pool):
        """Kernel, stride and padding by side, the windows that they make, and their fields."""
        rng, (height, width) = self.rng, self.shape[2:]
        pads = [[rng.choice([0, 0, 1, 1, 2]) for _ in range(2)] for _ in range(2)]
        kernel = [rng.randint(1, min(5, side + sum(pad))) for side, pad in zip((height, width), pads)]
        if of_pool:  # at most half of the kernel
            pads = [[min(p, k // 2) for p in pad] for pad, k in zip(pads, kernel)]
        stride = [rng.choice([1, 1, 2, 3]) for _ in range(2)]
        if kernel[0] > height + sum(pads[0]) or kernel[1] > width + sum(pads[1]):
            return None
        return kernel, stride, pads

    def conv2d(self):
        if not self.images() or (drawn := self.window(False)) is None:
            return False
        rng, (rows, channels, *sides), (kernel, stride, pads) = self.rng, self.shape, drawn
        groups = rng.choice([1, 1, 1, channels] + [g for g in range(2, channels) if channels % g == 0])
        units = groups * rng.choice([1, 2, 3, 4])
        dilation = [2 if rng.random() < 0.2 and 2 * (k - 1) + 1 <= side + sum(pad) else 1 for k, side, pad in zip(kernel, sides, pads)]
        out = [(side + sum(pad) - d * (k - 1) - 1) // s + 1 for side, pad, d, k, s in zip(sides, pads, dilation, kernel, stride)]
        if not self.fits((rows, units, *out)):
            return False
        fields = {"channels": units, "kernel": kernel, "stride": stride, "padding": [*pads[0], *pads[1]], "dilation": dilation, "groups": groups}
        bias = rng.random() < 0.7
        weight = (units, channels // groups, *kernel)
        # A dim of grouped channels is cut by whole groups.
        rule = (["nghw", "gcrs", "g"], "hwcrs", {"g": groups}) if groups > 1 else (["nchw", "kcrs", "k"], "hwrs")
        self.put("conv2d", (rows, units, *out), (rule[0][:3 if bias else 2], *rule[1:]), weight=weight, **fields, **({} if bias else {"bias": False}))
        return True

    def pool2d(self):
        if not self.images() or (drawn := self.window(True)) is None:
            return False
        rng, (rows, channels, *sides), (kernel, stride, pads) = self.rng, self.shape, drawn
        ceil = rng.random() < 0.3
        out = []
        for side, pad, k, s in zip(sides, pads, kernel, stride):
            room = side + sum(pad) - k
            count = (-(-room // s) if ceil else room // s) + 1
            out.append(count - 1 if ceil and (count - 1) * s >= side + pad[0] else count)
        kind = rng.choice(["max_pool2d", "max_pool2d", "avg_pool2d"])
        fields = {"count_include_pad": False} if kind == "avg_pool2d" and rng.random() < 0.5 else {}
        fields.update({"ceil_mode": True} if ceil else {})
        self.put(kind, (rows, channels, *out), (["nchw"], "hw"), kernel=kernel, stride=stride, padding=[*pads[0], *pads[1]], **fields)
        return True

    def global_avg_pool(self):
        if len(self.shape) < 3 or self.at in self.flat_sums:
            return False
        keep = self.rng.random() < 0.3
        out = self.shape[:2] + ((1,) * (len(self.shape) - 2) if keep else ())
        self.put("global_avg_pool", out, ([self.letters(self.shape)], ""), **({"keep_dims": True} if keep else {}))
        return True

    def reshape(self):
        sample = math.prod(self.shape[1:])
        if len(self.shape) < 2 or self.rng.random() < 0.3:
            if len(self.shape) > 2:
                return self.reshaped("flatten", (self.shape[0], sample))
        parts, left = [], sample
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            part = self.rng.choice([d for d in range(1, left + 1) if left % d == 0])
            parts.append(part)
            left //= part
        parts.append(left)
        self.rng.shuffle(parts)
        shape = list(parts)
        if self.rng.random() < 0.3:
            shape[self.rng.randrange(len(shape))] = -1
        return self.reshaped("reshape", (self.shape[0], *parts), shape=shape)

    def reshaped(self, type, out, **fields):
        letters = self.letters(self.shape)
        return bool(self.put(type, out, ([letters], "", dict(zip(letters, reshape_limits(self.shape, out)))), **fields))

    def transpose(self):
        dims = len(self.shape)
        if dims < 3:
            return False
        perm = list(range(1, dims))
        self.rng.shuffle(perm)
        return self.turn([0] + perm)

    def turn(self, perm):
        row = self.letters(self.shape)
        self.put("transpose", [self.shape[d] for d in perm], ([row], ""), perm=perm)
        return True

    def split(self):
        """Cuts one dim; the network continues from one of the parts, or from some of them joined again."""
        dims = [d for d in range(1, len(self.shape)) if self.shape[d] > 1]
        if not dims:
            return False
        dim, start, shape = self.rng.choice(dims), self.at, self.shape
        size = shape[dim]
        count = self.rng.choice([n for n in range(2, min(size, 5) + 1)])
        if size % count == 0 and self.rng.random() < 0.6:
            sizes, fields = [size // count] * count, {"parts": count}
        else:
            ends = sorted(self.rng.sample(range(1, size), count - 1)) + [size]
            sizes = [end - begin for begin, end in zip([0] + ends, ends)]
            fields = {"sizes": sizes}
        names = [str(i) for i in range(count)]
        if self.rng.random() < 0.5:
            names = fields["outputs"] = [f"part{i}" for i in range(count)]
        row = self.letters(shape)
        name = self.put("split", shape, ([row], "", {row[dim]: math.gcd(*sizes)}), dim=self.rng.choice([dim, dim - len(shape)]), **fields)
        del self.shapes[name]
        parts = [f"{name}.{part}" for part in names]
        for part, of_part in zip(parts, sizes):
            self.shapes[part], self.made_by[part] = shape[:dim] + (of_part,) + shape[dim + 1:], name
            for known in (self.same_rows, self.flat_sums):
                if start in known:
                    known.add(part)
        self.at = self.rng.choice(parts)
        if self.rng.random() < 0.6:
            joined = self.rng.sample(parts, self.rng.randint(2, count))
            some = [sizes[parts.index(part)] for part in joined]
            out = shape[:dim] + (sum(some),) + shape[dim + 1:]
            self.put("concat", out, ([row] * len(joined), "", {row[dim]: math.gcd(*some)}), joined, dim=dim)
        return True

    def reduce(self):
        dims = len(self.shape)
        if dims < 2 or self.at in self.flat_sums:
            return False
        over = sorted(self.rng.sample(range(1, dims), self.rng.randint(1, min(2, dims - 1))))
        keep = self.rng.random() < 0.5 or dims - len(over) < 2
        out = [1 if d in over else size for d, size in enumerate(self.shape) if keep or d not in over]
        kind = self.rng.choice(["reduce_sum", "reduce_mean", "reduce_mean", "reduce_max"])
        row = self.letters(self.shape)
        self.put(kind, out, ([row], "".join(row[d] for d in over) if kind == "reduce_max" else ""),
                 dims=[self.rng.choice([d, d - dims]) for d in over], **({"keep_dims": True} if keep else {}))
        return True

    def broadcast_with(self, other):
        a, b = self.shape, self.shapes[other]
        size = max(len(a), len(b))
        a, b = (1,) * (size - len(a)) + a, (1,) * (size - len(b)) + b
        if any(x != y and 1 not in (x, y) for x, y in zip(a, b)):
            return None
        return tuple(max(x, y) for x, y in zip(a, b))

    def broadcast_letters(self, shape, out):
        row = self.letters(out)
        return "".join("-" if size == 1 and whole != 1 else letter for size, whole, letter in zip(shape[::-1], out[::-1], row[::-1]))[::-1]

    def divide(self):
        """An earlier tensor divided by a positive one."""
        numerator = self.at
        self.elementwise("softplus")
        self.elementwise("scale", shift=0.5)
        row = self.letters(self.shape)
        return bool(self.put("div", self.shape, ([row, row], ""), [numerator, self.at]))

    def choose(self):
        """Requires positive data, so that any plan computes the same signs."""
        if self.integer_data or self.at == "data":
            return False
        out = self.broadcast_with("data")
        if out is None or out[0] != self.rows or not self.fits(out):
            return False
        self.mixes_rows |= len(self.shapes["data"]) != len(self.shape)
        first = self.at
        row = self.letters(self.shapes["data"])
        mask = self.put("relu", self.shapes["data"], ([row], ""), ["data"])
        inputs = [first, mask]
        if self.rng.random() < 0.5:
            fields = {"value": self.rng.choice([0, -1.5]), **({"invert": True} if self.rng.random() < 0.5 else {})}
            type = "masked_fill"
        else:
            type, fields, inputs = "where", {}, [mask, first, "data"]
        return bool(self.put(type, out, ([self.broadcast_letters(self.shapes[i], out) for i in inputs], ""), inputs, **fields))

    def combine(self):
        """add, sub or mul with any earlier tensor that broadcasts, including the data."""
        others = [name for name in self.shapes if name != self.at and not (name == "data" and self.integer_data)]
        self.rng.shuffle(others)
        if self.rng.random() < 0.1:
            others.insert(0, self.at)
        for other in others:
            out = self.broadcast_with(other)
            if out is None or out[0] != self.rows or not self.fits(out):
                continue
            self.mixes_rows |= len(self.shapes[other]) != len(self.shape)  # rows broadcast over another dim
            inputs = [self.at, other]
            self.rng.shuffle(inputs)
            rule = ([self.broadcast_letters(self.shapes[i], out) for i in inputs], "")
            type = self.rng.choice(["add", "add", "sub", "mul"]) if self.at != other else self.rng.choice(["add", "mul"])
            self.put(type, out, rule, inputs)
            return True
        return False
