"""Random networks for hybrid_parallel (sharded layers with collectives between them), and the same networks for one rank."""

from network import Network


class Hybrid(Network):
    """Shapes are one rank's parts; whole_layers are the layers of the one-rank network."""

    def __init__(self, rng, rows, ranks, full_batch):
        super().__init__(rng, rows)
        self.ranks, self.full_batch = ranks, full_batch
        self.whole_layers, self.strategies = [], {}
        self.same_as = {}  # layer that the one-rank network lacks -> its replacement there
        self.features = self.size()
        self.shapes["data"] = (rows, self.features)

    def put(self, type, out, rule, inputs=None, whole=(), **fields):
        """`whole`: fields that differ in the one-rank network; None: the layer is not in it."""
        name = super().put(type, out, rule, inputs, **fields)
        if whole is not None:
            layer = {**self.layers[-1], **dict(whole)}
            if "inputs" in layer:
                layer["inputs"] = [self.alias(i) for i in layer["inputs"]]
            elif len(self.flat) > 1:
                layer["inputs"] = [self.alias(self.flat[-2]["name"])]
            self.whole_layers.append(layer)
        else:
            self.same_as[name] = self.alias(self.flat[-1]["inputs"][0])
        return name

    def alias(self, name):
        return self.same_as.get(name, name)

    def collective(self, type, shape, **fields):
        return self.put(type, shape, (["ab"], ""), whole=None, **fields)

    def groups(self):
        """A number of ways that divides the ranks, and the ranks with the parts of one copy: the slowest axes are cut first."""
        ways = self.rng.choice([w for w in range(2, self.ranks + 1) if self.ranks % w == 0]) if self.full_batch else self.ranks
        if ways == self.ranks and self.rng.random() < 0.5:
            return ways, {}
        copies = self.ranks // ways
        return ways, {"group": [[copy + copies * part for part in range(ways)] for copy in range(copies)]}

    def part_dense(self, units, ways, bias, contract):
        """A dense layer cut over `ways` ranks, by its units or by its input features."""
        whole = {} if contract else {"units": units * ways}
        fields = {"units": units, "init": {"type": "normal", "std": 0.2}, **({} if bias else {"bias": False})}
        name = self.put("dense", self.shape[:-1] + (units,), (["mk", "nk"], ""), whole=whole, **fields)
        self.strategies[name] = [[1, 1], [1, ways]] if contract else [[1, 1], [ways, 1]] + ([[ways]] if bias else [])

    def tensor_parallel(self):
        if self.ranks == 1:
            return self.dense()
        ways, group = self.groups()
        rows = self.shape[0]
        if not self.full_batch:
            self.collective("all_gather", (rows * ways, self.shape[1]), **group)
        # A bias's initial values are bounded by the number of input features, which is not cut here.
        self.part_dense(self.size(), ways, self.rng.random() < 0.7, False)
        if self.rng.random() < 0.8:
            self.activation()
        if self.rng.random() < 0.3:
            self.dropout()
        if self.rng.random() < 0.3:
            self.dropout_behind_view()
        self.part_dense(self.size(), ways, False, True)
        if self.full_batch:
            self.collective("all_reduce", self.shape, **group)
        else:
            self.collective("reduce_scatter", (rows, self.shape[1]), **group)
        return True

    def dropout_behind_view(self):
        (rows, features), dim = self.shape, self.rng.choice([1, 2])
        self.reshaped("unsqueeze", (rows, 1, features) if dim == 1 else (rows, features, 1), dim=dim)
        self.dropout()
        self.reshaped("squeeze", (rows, features), dim=dim)

    def turned(self):
        """all_to_all and back around a layer of single elements."""
        if self.ranks == 1 or self.shape[1] % self.ranks or self.full_batch:
            return False
        rows, features = self.shape
        self.collective("all_to_all", (rows * self.ranks, features // self.ranks), split_dim=1, concat_dim=0)
        self.rng.choice([self.activation, self.dropout])()
        self.collective("all_to_all", (rows, features), split_dim=0, concat_dim=1)
        return True

    def broadcast(self):
        if self.ranks == 1 or not self.full_batch:
            return False
        fields = self.rng.choice([{}, {"root": self.rng.randrange(self.ranks)}, {"group": [[rank] for rank in range(self.ranks)]}])
        self.collective("broadcast", self.shape, **fields)
        return True

    def plain(self):
        # No modules: the one-rank network would have other names for their layers.
        kind = self.rng.choice([self.dense, self.activation, self.layer_norm, self.residual, self.dropout])
        return kind()

    def grow(self, count):
        for _ in range(count):
            self.plain()


def hybrid_network(rng, rows, ranks, full_batch):
    net = Hybrid(rng, rows, ranks, full_batch)
    net.dense()
    for _ in range(rng.choice([1, 2, 3, 4, 6])):
        rng.choice([net.plain, net.plain, net.tensor_parallel, net.tensor_parallel, net.turned, net.broadcast])()
    return net
