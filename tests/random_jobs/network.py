"""A whole random network: the data set's samples, layers and blocks of layers, and the labels that a loss needs."""

import math

from layers import Layers


class Network(Layers):
    def __init__(self, rng, rows, sizes=None, most_elements=1 << 13, chain=False):
        super().__init__(rng, rows, sizes, most_elements)
        self.kinds = self.CHAIN if chain else self.KINDS

    # Groups of layers.

    def residual(self):
        if len(self.shape) < 2:
            return False
        start, features = self.at, self.shape[-1]
        if self.rng.random() < 0.5:
            self.layer_norm()
        if not self.dense() or not self.activation() or not self.dense(units=features):
            return True
        row = self.letters(self.shape)
        return bool(self.put("add", self.shape, ([row, row], ""), [self.at, start]))

    def attention(self):
        """Heads by reshape and transpose, or one head without."""
        if len(self.shape) != 3:
            return False
        rows, length, features = self.shape
        heads, width = self.rng.choice([(1, 5), (1, 8), (2, 4), (2, 3), (4, 8), (3, 2)])
        if not self.fits((rows, heads, length, length)) or not self.fits((rows, length, heads * width)):
            return False
        start, parts = self.at, []
        for _ in range(3):
            self.at = start
            self.dense(units=heads * width)
            if heads > 1:
                self.reshaped("reshape", (rows, length, heads, width), shape=[length, heads, width])
                self.turn([0, 2, 1, 3])
            parts.append(self.at)
        lead = (rows, heads) if heads > 1 else (rows,)
        row = self.letters(lead, "mkn")
        self.put("matmul", lead + (length, length), ([row + "mk", row + "nk"], ""), parts[:2], transpose_b=True)
        self.softmax(dim=len(self.shape) - 1)
        if self.rng.random() < 0.3:
            self.dropout()
        self.put("matmul", lead + (length, width), ([row + "mk", row + "kn"], ""), [self.at, parts[2]])
        if heads > 1:
            self.turn([0, 2, 1, 3])
            self.reshaped("reshape", (rows, length, heads * width), shape=[length, -1])
        if self.rng.random() < 0.7:
            self.dense(units=features)
            self.put("add", self.shape, (["abc", "abc"], ""), [self.at, start])
        return True

    def heads(self):
        """Fused attention of one packed input or of three, with or without rotary positions."""
        if len(self.shape) != 3:
            return False
        rng, (rows, length, features) = self.rng, self.shape
        kv_heads, group, width = rng.choice([(1, 1, 8), (2, 1, 4), (4, 1, 2), (3, 1, 5), (2, 2, 4), (1, 4, 2), (4, 2, 6)])
        heads, start = kv_heads * group, self.at
        if not self.fits((rows, length, (heads + 2 * kv_heads) * width)):
            return False
        fields = {"heads": heads, **({"kv_heads": kv_heads} if group > 1 else {})}
        turn = {"pairs": rng.choice(["half", "interleaved"]), "base": rng.choice([100, 10000])} if width % 2 == 0 and rng.random() < 0.4 else None
        if turn and rng.random() < 0.3:
            turn |= rng.choice([{"rotary_dim": 2}, {"scaling": "linear", "factor": 3.0},
                                {"scaling": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}])
        options = {"causal": rng.random() < 0.6, **({"scale": 0.3} if rng.random() < 0.2 else {})}
        if options["causal"] and rng.random() < 0.3:
            options["window"] = rng.choice([1, 2, 3, 7])
        if rng.random() < 0.2:
            options["softcap"] = rng.choice([0.5, 2.0])
        out = (rows, length, heads * width)
        if rng.random() < 0.5:
            packing = rng.choice(["heads", "heads", "qkv"])
            self.dense(units=(heads + 2 * kv_heads) * width)
            packed = self.shape
            limits = {"n": kv_heads if packing == "heads" else 1}
            if turn:
                self.put("rotary", packed, (["btn"], "", limits), packing=packing, **fields, **turn)
            self.put("attention", out, (["btn"], "t", limits), packing=packing, **fields, **options)
        else:
            parts = []
            for count in (heads, kv_heads, kv_heads):
                self.at = start
                self.dense(units=count * width)
                if turn and len(parts) < 2:
                    self.put("rotary", self.shape, (["btn"], "", {"n": count}), heads=count, **turn)
                parts.append(self.at)
            # If there is one kv head, the query heads are cut; otherwise each kv head is cut with its query heads.
            keys, cuts = ("bsm", group) if kv_heads == 1 else ("bsn", kv_heads)
            self.put("attention", out, (["btn", keys, keys], "sm", {"n": cuts}), parts, **fields, **options)
        if rng.random() < 0.7:
            self.dense(units=features)
            self.put("add", self.shape, (["abc", "abc"], ""), [self.at, start])
        return True

    def module(self):
        """Copies of a block, one after another."""
        if len(self.shape) < 2:
            return False
        rng, shape, units, norm = self.rng, self.shape, self.size(), self.rng.random() < 0.6 and self.shape[-1] > 2
        if not self.fits(shape[:-1] + (units,)):
            return False
        row = self.letters(shape[:-1])
        steps = [("norm", {"type": "layer_norm"}, shape, ([row + "d", "d", "d"], ""))] if norm else []
        steps += [("fc", {"type": "dense", "units": units}, shape[:-1] + (units,), ([row + "k", "nk", "n"], "")),
                  ("act", {"type": rng.choice(["relu", "gelu", "tanh"])}, shape[:-1] + (units,), ([row + "n"], "")),
                  ("out", {"type": "dense", "units": shape[-1]}, shape, ([row + "k", "nk", "n"], "")),
                  ("sum", {"type": "add", "inputs": ["out", "input"]}, shape, ([row + "n", row + "n"], ""))]
        block, name = f"block{len(self.modules)}", f"m{len(self.flat)}"
        self.modules[block] = [{"name": layer, **fields} for layer, fields, _, _ in steps]
        repeat = rng.choice([None, 1, 2, 3])
        self.layers.append({"module": block, "name": name, "inputs": [self.at], **({"repeat": repeat} if repeat else {})})
        for copy in range(repeat or 1):
            prefix, taken = f"{name}.{copy}." if repeat else f"{name}.", self.at
            for layer, fields, out, rule in steps:
                inputs = [prefix + "out", taken] if layer == "sum" else [self.at]
                self.know(prefix + layer, fields["type"], out, rule, inputs, units=fields.get("units"))
        return True

    def product(self):
        """The matrix product of a tensor and its activation."""
        if len(self.shape) < 3:
            return False
        lead, rows, columns = self.shape[:-2], self.shape[-2], self.shape[-1]
        turned = self.rng.choice(["transpose_a", "transpose_b"])
        size = columns if turned == "transpose_a" else rows
        if not self.fits(lead + (size, size)):
            return False
        start, row = self.at, self.letters(lead, "mkn")
        self.activation()
        operands = ["km", "kn"] if turned == "transpose_a" else ["mk", "nk"]
        inputs = [start, self.at]
        self.rng.shuffle(inputs)
        self.put("matmul", lead + (size, size), ([row + o for o in operands], ""), inputs, **{turned: True})
        return self.softmax(dim=len(self.shape) - 1) if self.rng.random() < 0.5 else True

    def over_rows(self):
        """Reduces all rows to one row or to a product of features, and applies that to the rows."""
        if len(self.shape) < 2 or self.at in self.flat_sums:
            return False
        start = self.at
        kind = self.rng.choice(["reduce", "product", "turned", "all"])
        if kind == "product" and len(self.shape) == 2:  # x (x^T y), without a scale: after tanh and a mean
            if not self.dense(units=self.rng.choice([2, 3, 4, 8])):
                return False
            other = self.at
            self.softmax(dim=0)
            weights = self.at
            self.mixes_rows = True
            width, features = self.shape[-1], self.shapes[start][-1]
            self.put("matmul", (width, features), (["km", "kn"], ""), [weights, start], transpose_a=True)
            self.put("matmul", (self.rows, features), (["mk", "kn"], ""), [other, self.at])
            return True
        if kind == "turned" and self.rng.random() < 0.5:
            perm = list(range(len(self.shape)))
            self.rng.shuffle(perm)
            self.mixes_rows = True
            self.turn(perm)
            self.rng.choice([self.layer_norm, self.activation, self.softmax])()
            self.at = self.flat[-1]["name"]
            return self.turn([perm.index(d) for d in range(len(perm))])
        self.mixes_rows = True
        row = self.letters(self.shape)
        if kind == "all":
            self.put("reduce_mean", (1,), ([row], ""), dims=list(range(len(row))))
            return bool(self.put("mul", self.shapes[start], ([row, "-"], ""), [start, self.at]))
        self.put("reduce_mean", (1,) + self.shape[1:], ([row], ""), dims=[0], keep_dims=True)
        part = "-" + row[1:]
        return bool(self.put(self.rng.choice(["add", "mul"]), self.shapes[start], ([row, part], ""), [start, self.at]))

    def rows_aside(self):
        """A layer of single elements while the rows are not the first dim."""
        if len(self.shape) != 3:
            return False
        rows, length, features = self.shape
        self.turn([1, 0, 2])
        if self.rng.random() < 0.5:
            self.reshaped("flatten", (length, rows * features))
            self.rng.choice([self.activation, self.dropout])()
            self.reshaped("reshape", (length, rows, features), shape=[-1, features])
        self.rng.choice([self.activation, self.dropout])()
        return self.turn([1, 0, 2])

    KINDS = [("dense", 8), ("matmul", 3), ("activation", 5), ("function", 4), ("divide", 1), ("choose", 2), ("dropout", 2), ("softmax", 2),
             ("layer_norm", 3), ("batch_norm", 2), ("rms_norm", 2), ("group_norm", 2), ("slice", 2), ("pad", 1), ("one_dim", 1),
             ("position_embedding", 1), ("reshape", 2), ("transpose", 2), ("split", 2), ("reduce", 1), ("combine", 4),
             ("residual", 3), ("attention", 2), ("heads", 3), ("product", 1),
             ("over_rows", 1), ("module", 2), ("conv2d", 4), ("pool2d", 2), ("global_avg_pool", 1)]
    # Layers that depend on the place of an element in the whole tensor, and layers that change shapes.
    PLACES = [("dense", 5), ("activation", 2), ("dropout", 5), ("slice", 4), ("pad", 4), ("split", 3), ("reshape", 6), ("one_dim", 6),
              ("transpose", 3), ("rows_aside", 3), ("position_embedding", 2), ("heads", 2), ("combine", 2), ("reduce", 1), ("conv2d", 1),
              ("layer_norm", 1)]
    SKIPS = [("dense", 5), ("activation", 6), ("function", 3), ("combine", 7), ("residual", 2), ("dropout", 2), ("layer_norm", 1),
             ("slice", 1), ("split", 1), ("reshape", 1), ("module", 1)]
    CHAIN = [("dense", 6), ("activation", 5), ("function", 2), ("layer_norm", 1), ("dropout", 1), ("residual", 1)]

    def grow(self, count):
        names, weights = zip(*self.kinds)
        while count > 0:
            count -= getattr(self, self.rng.choices(names, weights)[0])()

    # The ends.

    def digits(self, path):
        """Real samples of 8 x 8 pixels, transformed; as fields of the data set."""
        rng, transforms, side = self.rng, [], 8
        if rng.random() < 0.5:
            side = rng.choice([3, 5, 8, 12])
            transforms.append({"resize": [side, side]})
        self.integer_data = rng.random() < 0.2
        if not self.integer_data:
            transforms += [{"rescale": {"scale": 1 / 255}}, {"normalize": {"mean": [0.3], "std": [0.4]}}]
        first = rng.random() < 0.5
        if first:
            transforms.append("hwc2chw")
        sample = (1, side, side) if first else (side, side, 1)
        self.shapes["data"] = (self.rows, *sample)
        if self.integer_data:
            transforms.append({"type_cast": "i32"})
            self.put("embedding", self.shape + (4,), (["abcd", "vu"], ""), vocab=256, units=4)
            self.reshaped("flatten", (self.rows, 4 * side * side))
        else:
            self.reshaped("flatten", (self.rows, side * side))
        self.most_classes = 10
        return {"type": "mnist", "path": path, "transforms": transforms}

    def start(self):
        """The data set's fields of shape and type."""
        rng = self.rng
        if rng.random() < 0.25:
            self.integer_data = True
            self.vocabulary = rng.choice([2, 3, 7, 12, 24, 64, 100])
            length = [] if rng.random() < 0.2 else [rng.choice([1, 3, 4, 6, 7, 12])]
            units = rng.choice([3, 4, 8, 12, 16, 24])
            shape = length or [1]
            self.shapes["data"] = (self.rows, *shape)
            if rng.random() < 0.25:
                self.put("one_hot", self.shape + (self.vocabulary,), ([self.letters(self.shape)], ""), classes=self.vocabulary)
                return {"type": "random", "dtype": "i32", "shape": shape}
            rule = ([self.letters(self.shape, "vd"), "vd"], "")
            name = self.put("embedding", self.shape + (units,), rule, vocab=self.vocabulary, units=units,
                            **({"init": {"type": "normal", "std": 0.2}} if rng.random() < 0.5 else {}))
            self.weights[name] = (self.vocabulary, units)
            return {"type": "random", "dtype": "i32", "shape": shape}
        ranks = 1 if self.kinds is self.CHAIN else rng.choice([1, 1, 2, 2, 3])
        while True:
            shape = [self.size() for _ in range(ranks)]
            if self.fits([self.rows] + shape) and math.prod(shape) > 1:
                break
        self.shapes["data"] = (self.rows, *shape)
        if rng.random() < 0.3:
            self.reshaped("flatten", (self.rows, math.prod(shape)))
        if rng.random() < 0.04:
            self.same_rows |= set(self.shapes)
            return {"type": "constant", "shape": shape, "value": 0.5, "label_value": 1}
        return {"type": "random", "shape": shape}

    def head(self):
        """Adds a layer whose output suits a loss, if the last one's does not, or at random."""
        rng = self.rng
        trains = any(layer["units"] or layer.get("weight") for layer in self.flat)
        if trains and rng.random() < 0.6 and len(self.shape) > 1 and math.prod(self.shape[1:]) <= 600 and not self.given_labels:
            return
        if len(self.shape) > 2 and (rng.random() < 0.7 or self.given_labels):
            self.reshaped("flatten", (self.rows, math.prod(self.shape[1:])))
        if len(self.shape) < 2:
            self.reshaped("reshape", (self.rows, 1), shape=[1])
        units = rng.choice([1, 1, 2, 3, 4, 5, 7, 10, 12, 16, 17, 24, 33])
        if self.vocabulary and rng.random() < 0.5:
            units = self.vocabulary
        if self.given_labels:
            units = rng.choice([1, 10, 12])
        if not self.dense(units=units):
            self.matmul()

    def end(self, data):
        """The loss; adds the labels that it needs to the fields of the data set."""
        rng = self.rng
        self.given_labels = data.get("type") == "mnist"
        self.head()
        sample = list(self.shape[1:])
        row = self.letters(self.shape)
        cross_entropy = self.shape[-1] > 1 and rng.random() < 0.4 and data.get("type") != "constant"
        if self.given_labels:
            cross_entropy = self.shape[-1] > 1
            data["label_dtype"] = "i32" if cross_entropy else "f32"
        elif cross_entropy:
            classes = min(self.shape[-1], self.vocabulary) if self.vocabulary else self.shape[-1]
            data.update(label_dtype="i32", label_shape=sample[:-1], classes=classes)
        else:
            data.update(label_dtype="f32", label_shape=[] if math.prod(sample) == 1 and rng.random() < 0.5 else sample)
            if self.vocabulary:
                data["classes"] = self.vocabulary
            if data["label_shape"] == sample and rng.random() < 0.05:  # labels are tensors like any other
                self.put("mul", self.shape, ([row, row], ""), [self.at, "label"])
        type = "softmax_cross_entropy" if cross_entropy else rng.choice(["mse", "mse", "mae", "smooth_l1", "binary_cross_entropy"])
        fields = {}
        if cross_entropy and rng.random() < 0.3:
            fields["label_smoothing"] = rng.choice([0.1, 0.4])
        if cross_entropy and rng.random() < 0.3:
            fields["ignore_index"] = rng.choice([0, 1, 1, -100])
        if type == "smooth_l1" and rng.random() < 0.6:
            fields["beta"] = rng.choice([0.3, 2])
        self.rules["loss"] = ([row, row[:-1]], "") if cross_entropy else ([row, row], "")
        self.shapes["label"] = self.shape[:-1] if cross_entropy else self.shape
        self.loss_inputs = [self.at, "label"]
        if rng.random() < 0.08:  # layers that no layer reads, or that are only printed
            loss = {"type": type, "input": self.at, **fields}
            self.grow(rng.randint(1, 3))
            return loss
        if self.at in self.made_by:
            fields = {"input": self.at, **fields}
        return {"type": type, **fields} if fields else type
