"""A whole job drawn at random: a network, how it is trained, and a plan for it."""

import math
import random
import re

from hybrid import hybrid_network
from layers import EVEN_SIZES, HUGE_SIZES, LARGE_SIZES, SMALL_SIZES
from network import Network

PLAIN = re.compile(r"^[A-Za-z_][\w.-]*$")


def flow(value):
    """The value as YAML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(k)}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(flow, value)) + "]"
    text = str(value)
    return text if not isinstance(value, str) or PLAIN.match(text) else f"'{text}'"


class Job:
    def __init__(self, fields, reference=None, same_micro_batches=True, precision="fp32"):
        self.fields = fields
        self.reference_fields = reference or fields
        self.same_micro_batches = same_micro_batches
        self.precision = precision

    @property
    def ranks(self):
        return self.fields["launch"]["ranks"]

    def text(self, fields=None):
        fields = self.fields if fields is None else fields
        lines = []
        for key, value in fields.items():
            if key == "network":
                lines += ["network:"] + [f"  - {flow(layer)}" for layer in value]
            elif key == "modules":
                lines.append("modules:")
                for name, layers in value.items():
                    lines += [f"  {name}:"] + [f"    - {flow(layer)}" for layer in layers]
            else:
                lines.append(f"{key}: {flow(value)}")
        return "\n".join(lines) + "\n"

    def reference_overrides(self):
        """The overrides that turn it into a job of one CPU rank."""
        micro = self.fields["parallel"].get("micro_batches", 1) if self.same_micro_batches else 1
        return ["launch.ranks=1", "launch.device=cpu", "launch.comm=auto", "precision=fp32", "gradient_precision=fp32",
                "train.sink_steps=1", f"parallel={{micro_batches: {micro}}}"]


def chance(rng, probability):
    return rng.random() < probability


def draw_optimizer(rng, loss, names):
    """`names`: of layers with weights of their own."""
    kind = rng.choice(["sgd", "sgd", "adam", "adamw", "rmsprop"])
    base = rng.choice([0.001, 0.01, 0.05, 0.2] if kind == "sgd" else [0.0003, 0.003, 0.01])
    rate = base
    schedule = rng.random()
    if schedule < 0.15:
        rate = {"type": "step", "base": base, "step_size": rng.randint(1, 4), "gamma": 0.5}
    elif schedule < 0.3:
        rate = {"type": "cosine", "base": base, "warmup_steps": rng.randint(0, 3), "min": base / 10}
        if chance(rng, 0.5):
            rate["total_steps"] = rng.randint(4, 9)
    elif schedule < 0.4:
        rate = {"base": base, "warmup_steps": rng.randint(0, 5)}
    optimizer = {"type": kind, "learning_rate": rate}
    if kind == "sgd" and chance(rng, 0.5):
        optimizer["momentum"] = rng.choice([0.5, 0.9] if base < 0.2 else [0.5])  # larger steps explode
        if chance(rng, 0.4):
            optimizer["nesterov"] = True
    if kind != "sgd":
        # Without a large eps adam turns gradients that are only rounding errors, like sums of mae's signs, into full steps.
        optimizer["eps"] = rng.choice([1e-3, 1e-4, 1e-8] if "mae" not in str(loss) else [1e-3])
        if kind != "rmsprop" and chance(rng, 0.3):
            optimizer["betas"] = [rng.choice([0, 0.5, 0.9]), rng.choice([0.9, 0.99])]
    if chance(rng, 0.3):
        optimizer["weight_decay"] = rng.choice([0.001, 0.1])
    if chance(rng, 0.35):
        optimizer["clip_norm"] = rng.choice([0.01, 0.3, 5.0])
    if names and chance(rng, 0.25):
        optimizer["groups"] = draw_groups(rng, optimizer, names)
    return optimizer


def draw_groups(rng, optimizer, names):
    """Groups of parameters that are there: those of some layers, and all weights."""
    groups = []
    some = rng.sample([f"{name}.*" for name in names], min(len(names) - 1, rng.randint(0, 2)))
    for pattern in some + ["*.weight"]:
        group = {"parameters": [pattern]}
        if chance(rng, 0.6):
            group["weight_decay"] = rng.choice([0, 0.01])
        if optimizer["type"] == "sgd" and chance(rng, 0.3):
            group["momentum"] = rng.choice([0.3, 0.5])
        if chance(rng, 0.5):
            group["learning_rate_scale"] = rng.choice([0, 0.1, 0.5])
        groups.append(group)
    return groups


def draw_strategy(rng, rule, shapes, ranks):
    """Cuts that mostly agree with the rule."""
    operands, whole, *limits = rule
    left, ways = ranks, {}
    sizes = {}
    for letters, shape in zip(operands, shapes):
        for letter, size in zip(letters, shape):
            sizes.setdefault(letter, size)
    for letter, limit in (limits[0] if limits else {}).items():
        sizes[letter] = limit
    order = [letter for letter in sizes if letter != "-" and letter not in whole]
    rng.shuffle(order)
    for letter in order:
        legal = [c for c in range(1, left + 1) if left % c == 0 and sizes[letter] % c == 0]
        ways[letter] = rng.choice(legal if chance(rng, 0.7) else [legal[-1]])
        left //= ways[letter]
    count = rng.randint(1, len(shapes))
    return [[ways.get(letter, 1) for letter in letters] for letters in operands[:count]]


def operand_shapes(net, layer):
    """Strategies for operands whose shapes the network knows: tensors and weights."""
    shapes = [net.shapes[i] for i in layer["inputs"]]
    features, units = shapes[0][-1], layer.get("units")
    if layer.get("weight"):
        shapes.append(layer["weight"])
    elif layer["type"] == "embedding":
        shapes.append((layer["vocab"], units))
    elif units:
        shapes.append((units, features) if layer["type"] == "dense" or layer["turned"] else (features, units))
    return shapes


def draw_strategies(rng, net, ranks):
    strategies = {}
    probability = rng.choice([0, 0.2, 0.5, 0.9])
    for layer in net.flat + [{"name": "loss", "type": "loss", "inputs": net.loss_inputs}]:
        if chance(rng, probability):
            cuts = draw_strategy(rng, net.rules[layer["name"]], operand_shapes(net, layer), ranks)
            strategies[layer["name"]] = cuts
    return strategies


def draw_stages(rng, net, stages):
    """stage_config in the order of the layers; sometimes only for some layers, sometimes with only the loss in the last stage."""
    if chance(rng, 0.15):
        config = draw_stages(rng, net, stages - 1) if stages > 2 else {layer["name"]: 0 for layer in net.flat}
        return {**config, "loss": stages - 1} if config else None
    cuts = sorted(rng.sample(range(1, len(net.flat)), stages - 1))
    stage = {layer["name"]: sum(i >= cut for cut in cuts) for i, layer in enumerate(net.flat)}
    if chance(rng, 0.1):  # side by side: as early as a layer's inputs allow, or later
        for layer in net.flat:
            first = max([stage[made] for made in (net.made_by.get(name, name) for name in layer["inputs"]) if made in stage], default=0)
            stage[layer["name"]] = rng.randint(first, stages - 1)
    some = {name: s for name, s in stage.items() if chance(rng, 0.6) or s == stages - 1} if chance(rng, 0.2) else stage
    return next((drawn for drawn in (some, stage) if set(drawn.values()) == set(range(stages))), None)


def draw_schedule(rng, net, stages, micro_batches):
    """With chunks, stages of its own: those of draw_stages, which may name all virtual stages."""
    chunks = rng.choice([2, 2, 3])
    may_interleave = stages > 1 and micro_batches % stages == 0 and len(net.flat) >= stages * chunks
    if not may_interleave or chance(rng, 0.3):
        return {"schedule": rng.choice(["gpipe", "1f1b", "zero_bubble"])}
    config = draw_stages(rng, net, stages * chunks) if chance(rng, 0.6) else None
    return {"schedule": "interleaved_1f1b", "chunks": chunks, "stage_config": config or {}}


def draw_parallel(rng, net, ranks, micro_batches, mode, stages, pipeline=None):
    """`pipeline`: stages and schedule, if they are drawn already."""
    parallel = {"mode": mode, **(pipeline or {})}
    if stages > 1 and not pipeline:
        parallel["stages"] = stages
        config = draw_stages(rng, net, stages) if chance(rng, 0.6) else None
        if config:
            parallel["stage_config"] = config
    if micro_batches > 1:
        parallel["micro_batches"] = micro_batches
    if not pipeline and chance(rng, 0.5):
        parallel |= draw_schedule(rng, net, stages, micro_batches)
    if mode == "semi_auto_parallel":
        strategies = draw_strategies(rng, net, ranks // stages)
        if strategies:
            parallel["strategies"] = strategies
    if chance(rng, 0.3):
        names = [layer["name"] for layer in net.flat]
        parallel["recompute"] = rng.choice([rng.sample(names, rng.randint(1, len(names))), names[:1], ["*"], ["*1*", *names[-1:]]])
        if "*1*" in parallel["recompute"] and not any("1" in name for name in names):
            parallel["recompute"] = ["*"]
    level = rng.randrange(4)
    if level:
        parallel["optimizer_shard"] = {"level": level, "min_kb": rng.choice([0, 0, 0, 1, 4])}
    if chance(rng, 0.2):
        parallel["full_batch"] = True
    if chance(rng, 0.15):
        parallel["head_pieces"] = rng.choice([2, 3, 7])
    return parallel


def draw_train(rng, batch):
    samples = batch * rng.randint(1, 3) + rng.choice([0, 0, rng.randint(0, batch)])
    if chance(rng, 0.03):
        samples = rng.randint(1, batch)
    data = {"batch": batch, "samples": samples}
    for field in ("shuffle", "drop_last"):
        if chance(rng, 0.2) or field == "drop_last" and samples < batch:
            data[field] = False
    if chance(rng, 0.1):
        data["repeat"] = 2
    own = random.Random(str(data))  # so that all other draws stay
    if data.get("shuffle", True) and chance(own, 0.3):
        data["shuffle_block"] = own.choice([1, 3, 8])
    train = {"epochs": rng.randint(5, 8), "steps": rng.randint(5, 14), "on_nan": "warn"}  # an exploding job is excused
    if chance(rng, 0.2):
        train["log_every"] = rng.randint(2, 3)
    if chance(rng, 0.4):
        train["sink_steps"] = rng.choice([2, 3, 4, 7, 16])
    return data, train


def draw_precision(rng, device):
    precision = rng.choice(["fp32", "fp32", "fp32", "tf32", "bf16", "bf16"]) if device == "cuda" else rng.choice(["fp32"] * 9 + ["tf32"])
    more = {"gradient_precision": "bf16"} if precision == "bf16" and chance(rng, 0.4) else {}
    return {"precision": precision, **more}


def draw_launch(rng, ranks, device, modes):
    launch = {"ranks": ranks, "device": device, "timeout": "30s", "grace": "1s"}
    if device == "cpu" and chance(rng, 0.15):
        launch["comm"] = rng.choice(["shm", "gloo"])
    return launch


def draw_network(rng, rows, large, huge):
    if huge:  # large enough for libraries and copy engines of GPUs
        return Network(rng, rows, HUGE_SIZES, 1 << 20, chain=True)
    if chance(rng, 0.2):  # GPUs may run these as few launches
        return Network(rng, rows, EVEN_SIZES, 1 << 14, chain=True)
    return Network(rng, rows, LARGE_SIZES, 1 << 16) if large else Network(rng, rows)


def draw_job(rng, device, rank_counts, digits, large=0.25, huge=0.0, kind=None):
    """A job that `plan` may still refuse. `large`, `huge`: the share of such jobs. `kind`: rows, skips, or other; drawn by default."""
    lot = rng.random() if kind is None else {"rows": 0.0, "skips": 0.15}.get(kind, 1.0)
    if lot < 0.1 and max(rank_counts) > 1:
        return draw_few_rows(rng, device, rank_counts)
    if lot < 0.25 and max(rank_counts) > 2:
        return draw_skips(rng, device, rank_counts)
    ranks = rng.choice(rank_counts)
    mode = rng.choice(["data_parallel", "semi_auto_parallel", "semi_auto_parallel", "semi_auto_parallel", "hybrid_parallel"])
    if ranks == 1 and chance(rng, 0.5):
        mode = "stand_alone"
    stages = rng.choice([s for s in range(1, ranks + 1) if ranks % s == 0]) if mode != "stand_alone" and chance(rng, 0.4) else 1
    micro_batches = rng.choice([1, 1, 1, 2, 2, 3, 4])
    large, huge = chance(rng, large), chance(rng, huge)
    rows = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24] + ([31, 48, 49, 64, 100, 128] if large else []))
    if mode != "semi_auto_parallel" or chance(rng, 0.5):  # a number of rows divisible by the ranks of a stage
        rows = math.ceil(rows / (ranks // stages)) * (ranks // stages)
    fields = {"name": "random", "seed": rng.randrange(1000), **draw_precision(rng, device)}
    data, train = draw_train(rng, rows * micro_batches)
    launch = draw_launch(rng, ranks, device, mode)
    if mode == "hybrid_parallel":
        return draw_hybrid(rng, fields, data, train, launch, rows, micro_batches, stages)
    net = None
    while net is None or len(net.flat) < stages:  # a network needs a layer besides the loss, and so does every stage
        net = draw_network(rng, rows, large, huge)
        dataset = net.digits(digits) if chance(rng, 0.06) else net.start()
        net.grow(rng.choice([0, 1, 2, 3] if huge else [0, 1, 2, 3, 5, 7, 10, 14]))
        loss = net.end(dataset)
    if dataset["type"] == "mnist":
        data.pop("samples")
    fields["dataset"] = {**dataset, **data}
    if net.modules:
        fields["modules"] = net.modules
    fields["network"] = net.layers
    fields |= {"loss": loss, **metrics_beside(loss, net)}
    fields["optimizer"] = draw_optimizer(rng, loss, sorted(net.weights))
    fields["train"] = train
    fields["parallel"] = draw_parallel(rng, net, ranks, micro_batches, mode, stages)
    fields["launch"] = launch
    fields |= draw_validation(rng, net, fields, device)
    if chance(rng, 0.05):
        fields["print"] = [rng.choice([layer["name"] for layer in net.flat if layer["name"] in net.shapes])]
    return Job(fields, None, net.mixes_rows, fields["precision"])


def draw_validation(rng, net, fields, device):
    """For a fifth of the jobs on CPUs. The last batch is filled up where no layer looks at other rows or at labels."""
    dataset = fields["dataset"]
    if device != "cpu" or dataset["type"] != "random" or not chance(rng, 0.2):
        return {}
    reads_labels = any("label" in layer["inputs"] for layer in net.flat)
    batches = rng.randint(1, 2) * dataset["batch"]
    samples = batches if net.mixes_rows or reads_labels else max(1, batches + rng.choice([0, 1, -1]))
    return {"validation": {"dataset": {"samples": samples}, "every_steps": rng.randint(1, 6)}}


def draw_rest(rng, net, dataset, data, loss, device, ranks, micro_batches, mode, stages, pipeline=None):
    """A job of a network and its loss."""
    fields = {"name": "random", "seed": rng.randrange(1000), **draw_precision(rng, device)}
    fields["dataset"] = {**dataset, **data}
    if net.modules:
        fields["modules"] = net.modules
    fields["network"] = net.layers
    fields |= {"loss": loss, **metrics_beside(loss, net), "optimizer": draw_optimizer(rng, loss, sorted(net.weights))}
    fields["train"] = {"epochs": rng.randint(5, 8), "steps": rng.randint(3, 8), "on_nan": "warn"}
    fields["parallel"] = draw_parallel(rng, net, ranks, micro_batches, mode, stages, pipeline)
    fields["launch"] = draw_launch(rng, ranks, device, mode)
    fields |= draw_validation(rng, net, fields, device)
    return Job(fields, None, net.mixes_rows, fields["precision"])


def draw_few_rows(rng, device, rank_counts):
    """hybrid_parallel with one or two rows per rank: layers that depend on the place of an element, behind others that reshape."""
    ranks = rng.choice([count for count in rank_counts if count > 1])
    stages = rng.choice([s for s in range(1, ranks) if ranks % s == 0])
    rows, micro_batches = ranks // stages * rng.choice([1, 1, 1, 2]), rng.choice([1, 1, 2, 3])
    net = None
    while net is None or len(net.flat) < stages or net.mixes_rows:
        net = Network(rng, rows, SMALL_SIZES, 1 << 12)
        net.kinds = Network.PLACES
        dataset = net.start()
        net.grow(rng.choice([3, 5, 7, 10]))
        loss = net.end(dataset)
    data, _ = draw_train(rng, rows * micro_batches)
    job = draw_rest(rng, net, dataset, data, loss, device, ranks, micro_batches, "hybrid_parallel", stages)
    job.fields["parallel"].pop("full_batch", None)
    return job


def draw_skips(rng, device, rank_counts):
    """Many stages, and tensors that skip some of them."""
    ranks = rng.choice([count for count in rank_counts if count > 2])
    stages = rng.choice([s for s in (ranks, ranks, ranks // 2) if s > 1 and ranks % s == 0])
    chunks = rng.choice([1, 1, 2, 3])
    virtual = stages * chunks
    micro_batches = stages * rng.choice([1, 1, 2]) if chunks > 1 else rng.randint(1, 2 * stages + 3)
    rows = ranks // stages * rng.choice([1, 2, 3])
    net = None
    while net is None or len(net.flat) < virtual + 2:
        net = Network(rng, rows, [rng.choice([4, 6, 8])], 1 << 12)
        net.kinds = Network.SKIPS
        dataset = net.start()
        net.grow(virtual + rng.randint(0, 6))
        loss = net.end(dataset)
    mode = rng.choice(["data_parallel", "semi_auto_parallel"])
    pipeline = {"stages": stages, "schedule": "interleaved_1f1b" if chunks > 1 else rng.choice(["gpipe", "1f1b", "1f1b", "zero_bubble"])}
    if chunks > 1:
        pipeline["chunks"] = chunks
    if config := draw_stages(rng, net, virtual) if chance(rng, 0.7) else None:
        pipeline["stage_config"] = config
    data, _ = draw_train(rng, rows * micro_batches)
    return draw_rest(rng, net, dataset, data, loss, device, ranks, micro_batches, mode, stages, pipeline)


def metrics_beside(loss, net):
    """For half of the jobs whose labels are classes, of which there are two at least. They keep the classes whole."""
    if "softmax_cross_entropy" not in str(loss) or len(net.flat) % 2:
        return {}
    operands, _ = net.rules["loss"]
    net.rules["loss"] = (operands, operands[0][-1])
    return {"metrics": ["accuracy", {"type": "top_k", "k": 2}]}


def draw_hybrid(rng, fields, data, train, launch, rows, micro_batches, stages):
    ranks = launch["ranks"] // stages
    full = chance(rng, 0.5)
    net = None
    while net is None or len(net.flat) < stages:
        net = hybrid_network(rng, rows if full else rows // ranks, ranks, full)
    dataset = {"type": "random", "shape": [net.features]}
    loss = net.end(dataset)
    common = {**fields, "dataset": {**dataset, **data}}
    rest = {"loss": loss, **metrics_beside(loss, net), "optimizer": draw_optimizer(rng, loss, []), "train": train}
    parallel = draw_parallel(rng, net, launch["ranks"], micro_batches, "hybrid_parallel", stages)
    parallel.pop("full_batch", None)
    if full:
        parallel["full_batch"] = True
    if net.strategies:
        parallel["strategies"] = net.strategies
    rest |= draw_validation(rng, net, common, launch["device"])
    whole_loss = {**loss, "input": net.alias(loss["input"])} if isinstance(loss, dict) and "input" in loss else loss
    reference = {**common, "network": net.whole_layers, **rest, "loss": whole_loss, "parallel": {}, "launch": {}}
    return Job({**common, "network": net.layers, **rest, "parallel": parallel, "launch": launch}, reference,
               net.mixes_rows, fields["precision"])
