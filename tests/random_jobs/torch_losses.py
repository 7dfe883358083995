"""Losses of random networks (torch_layers.py): the fields of the job, and a function of the weights and the batch."""

import torch

f = torch.nn.functional


class Losses:
    def end(self, x):
        rng, n = self.rng, self.samples
        kind = rng.choice(["values", "values", "binary", "classes", "classes", "shares", "dice", "ctc", "towers", "several"])
        flat = self.flatten(x)
        if kind == "several":
            return self.several(flat)
        return getattr(self, f"end_{kind}")(flat, rng, n)

    def end_values(self, x, rng, n, may_sum=True):
        out = self.dense(x, 3)
        label = self.field("label", self.numbers(n, 3))
        choices = [("mse", {}, f.mse_loss), ("smooth_l1", {"beta": 0.5}, lambda p, l: f.smooth_l1_loss(p, l, beta=0.5)), ("huber", {"delta": 0.7}, lambda p, l: f.huber_loss(p, l, delta=0.7)),
                   ("quantile", {"q": 0.8}, lambda p, l: torch.maximum(0.8 * (l - p), 0.2 * (p - l)).mean()), ("log_cosh", {}, lambda p, l: torch.log(torch.cosh(p - l)).mean()),
                   ("mae", {}, f.l1_loss)]
        type, fields, g = rng.choice(choices)
        if may_sum and rng.random() < 0.2:
            return {"type": type, "reduction": "sum", "weight": 0.02, **fields}, [out, label], lambda p, l: 0.02 * g(p, l) * l.numel()
        return {"type": type, **fields}, [out, label], g

    def end_binary(self, x, rng, n):
        out = self.dense(x, 2)
        label = self.field("label", self.integers(2, n, 2).to(torch.float64))

        def focal(p, l):
            s = torch.sigmoid(p)
            return (f.binary_cross_entropy_with_logits(p, l, reduction="none") * (1 - (s * l + (1 - s) * (1 - l))) ** 2 * (0.25 * l + 0.75 * (1 - l))).mean()

        choices = [("binary_cross_entropy", {}, f.binary_cross_entropy_with_logits), ("focal", {}, focal),
                   ("binary_cross_entropy", {"pos_weight": 2.0}, lambda p, l: f.binary_cross_entropy_with_logits(p, l, pos_weight=torch.tensor(2.0, dtype=p.dtype))),
                   ("poisson", {}, lambda p, l: f.poisson_nll_loss(p, l)), ("hinge", {}, None)]
        type, fields, g = rng.choice(choices)
        if type == "hinge":
            self.fields[label] = 2 * self.fields[label] - 1
            g = lambda p, l: torch.clamp(1 - l * p, min=0).mean()  # noqa: E731
        return {"type": type, **fields}, [out, label], g

    def end_classes(self, x, rng, n):
        out = self.dense(x, 5)
        label = self.field("label", self.integers(5, n))
        if rng.random() < 0.3:
            self.fields[label][::3] = -1
            return {"type": "softmax_cross_entropy", "ignore_index": -1}, [out, label], lambda p, l: f.cross_entropy(p, l, ignore_index=-1)
        if rng.random() < 0.4:
            weights = [0.5, 2.0, 1.25, 0.0, 1.0]
            return ({"type": "softmax_cross_entropy", "class_weights": weights, "label_smoothing": 0.1}, [out, label],
                    lambda p, l: f.cross_entropy(p, l, torch.tensor(weights, dtype=p.dtype), reduction="sum", label_smoothing=0.1) / len(l))
        smoothing = rng.choice([0.0, 0.2])
        return {"type": "softmax_cross_entropy", "label_smoothing": smoothing}, [out, label], lambda p, l: f.cross_entropy(p, l, label_smoothing=smoothing)

    def end_shares(self, x, rng, n):
        out = self.dense(x, 4)
        label = self.field("label", torch.softmax(self.numbers(n, 4), -1).to(torch.float32).to(torch.float64))
        if rng.random() < 0.4:
            log = self.add("softmax", lambda w, v: v.softmax(-1), [out], (4,))
            log = self.add("log", lambda w, v: v.log(), [log], (4,))
            return {"type": "kl_div"}, [log, label], f.kl_div
        return {"type": "softmax_cross_entropy"}, [out, label], f.cross_entropy

    def end_dice(self, x, rng, n):
        out = self.reshape(self.dense(x, 18), (6, 3))
        label = self.field("label", self.integers(3, n, 6))
        squared, background = rng.random() < 0.5, rng.random() < 0.6

        def dice(p, l):
            p, g = p.softmax(-1), f.one_hot(l, 3).to(p.dtype)
            total = (p * p + g * g).sum(1) if squared else (p + g).sum(1)
            each = 1 - (2 * (p * g).sum(1) + 0.5) / (total + 0.5)
            return (each if background else each[:, 1:]).mean()

        return {"type": "dice", "smooth": 0.5, "squared": squared, "background": background}, [out, label], dice

    def end_ctc(self, x, rng, n):
        steps, classes = 7, 4
        out = self.reshape(self.dense(x, steps * classes), (steps, classes))
        label = self.field("label", self.integers(classes - 1, n, 2) + 1)
        lengths = self.integers(2, n) + 1
        loss, tensors = {"type": "ctc"}, [out, label]
        if rng.random() < 0.5:
            tensors.append(self.field("label_lengths", lengths))
        else:
            self.fields[label][lengths == 1, 1] = -1
        if rng.random() < 0.5:
            tensors.append(self.field("input_lengths", self.integers(3, n) + 5))
        has_steps = tensors[-1] == "input_lengths"
        total = rng.random() < 0.3

        def ctc(p, l, *more):
            counts = more[0] if "label_lengths" in tensors else (l > 0).sum(1)
            rows = more[-1] if has_steps else torch.full((len(l),), steps)
            each = f.ctc_loss(p.log_softmax(-1).transpose(0, 1), l.clamp(min=0), rows, counts, reduction="sum" if total else "mean")
            return 0.05 * each if total else each

        return {**loss, **({"reduction": "sum", "weight": 0.05} if total else {})}, tensors, ctc

    def end_towers(self, x, rng, n):
        left, right = self.dense(x, 5), self.branch(x, (5,))
        kind = rng.choice(["cosine_embedding", "triplet", "info_nce"])
        if kind == "cosine_embedding":
            label = self.field("label", torch.sign(self.numbers(n)))
            return {"type": kind, "inputs": [left, right], "margin": 0.1}, [left, right, label], lambda a, b, l: f.cosine_embedding_loss(a, b, l, margin=0.1)
        if kind == "triplet":
            third = self.branch(x, (5,))
            return {"type": kind, "inputs": [left, right, third]}, [left, right, third], f.triplet_margin_loss
        self.mixes_rows = True

        def info_nce(q, k):
            logits = f.normalize(q, dim=-1) @ f.normalize(k, dim=-1).T / 0.5
            own = torch.arange(len(q))
            return (f.cross_entropy(logits, own) + f.cross_entropy(logits.T, own)) / 2

        return {"type": kind, "inputs": [left, right], "temperature": 0.5}, [left, right], info_nce

    def several(self, x):
        """A main loss and one or two auxiliary ones."""
        first, tensors, g = self.end_values(x, self.rng, self.samples, may_sum=False)
        first["input"] = tensors[0]
        size, kind = self.dense(x, 2), self.dense(x, 4)
        size_label, kind_label = self.field("size", self.numbers(self.samples, 2)), self.field("kind", self.integers(4, self.samples))
        first["auxiliary"] = [{"type": "huber", "name": "size", "input": size, "label": "size", "weight": 0.3},
                              {"type": "softmax_cross_entropy", "name": "kind", "input": kind, "label": "kind", "weight": 0.5}]
        return (first, [*tensors, size, size_label, kind, kind_label],
                lambda p, l, s, sl, k, kl: g(p, l) + 0.3 * f.huber_loss(s, sl) + 0.5 * f.cross_entropy(k, kl))
