"""A learned optimizer for PyTorch, written by `nres export --to torch`. It needs torch alone.

    from NAME import LearnedOptimizer

    optimizer = LearnedOptimizer(model.parameters())

It is a `torch.optim.Optimizer`: parameter groups, schedulers of `lr` and `state_dict` work as
usual. The weights are in the file NAME.safetensors beside this one. Dense and convolutional weights
are seen with inputs before outputs, as the optimizer was trained; set `keep_layout=True` in the
group of tensors that should be seen as they are, for example embeddings.
"""

import json
import math
import pathlib

import torch

BETAS = (0.9, 0.99, 0.999)
TIMES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)
LARGEST_HEADER = 1_000_000


class LearnedOptimizer(torch.optim.Optimizer):
    """A learned optimizer.

    Args:
        params: The parameters, or groups of them.
        lr: The learning rate; by default, the one with which the optimizer was trained. For
            networks that choose the size of their steps, a factor, 1 by default.
        weight_decay: The decay of weights, multiplied by the learning rate; by default, the one
            with which the optimizer was trained.
        weights: The file of weights, or its content; by default, the file beside this one.
    """

    def __init__(self, params, lr=None, weight_decay=None, weights=None):
        if weights is None:
            weights = pathlib.Path(__file__).with_suffix(".safetensors")
        weights, about = read_weights(weights)
        self.rule = RULES[about["optimizer"]](weights, json.loads(about["settings"]))
        lr = self.rule.lr if lr is None else lr
        weight_decay = self.rule.weight_decay if weight_decay is None else weight_decay
        if lr < 0 or weight_decay < 0:
            raise ValueError(f"lr and weight_decay must not be negative: {lr}, {weight_decay}.")
        defaults = {"lr": lr, "weight_decay": weight_decay, "keep_layout": False}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        """Make one step; `closure`, if given, computes the loss and its gradient first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.is_sparse:
                    raise RuntimeError("LearnedOptimizer does not support sparse gradients.")
                state, axes = self.state[p], seen_axes(p.ndim, group["keep_layout"])
                dtype = torch.promote_types(p.dtype, torch.float32)
                x, g = (each.permute(axes).to(dtype) for each in (p, p.grad))
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.int64)
                    self.rule.init(state, x)
                change = self.rule.change(state, x, g, int(state["step"]))
                change = change + group["weight_decay"] * x
                inverse = sorted(range(p.ndim), key=axes.__getitem__)
                p.add_(change.permute(inverse).to(p.dtype), alpha=-group["lr"])
                state["step"] += 1
        return loss

    def load_state_dict(self, state_dict):
        """Load a state; unlike in the base class, averages keep their precision."""
        super().load_state_dict(state_dict)
        numbers = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for i, p in zip(numbers, params, strict=True):
            for name, value in state_dict["state"].get(i, {}).items():
                device = "cpu" if name == "step" else p.device
                self.state[p][name] = value.detach().clone().to(device)

    def __getstate__(self):
        return {**super().__getstate__(), "rule": self.rule}


def seen_axes(ndim, keep):
    """Return the order of axes in which the network sees a tensor: space, inputs, outputs."""
    if ndim < 2 or keep:
        return tuple(range(ndim))
    return (*range(2, ndim), 1, 0)


def normalised(x, eps, axes):
    """Divide by the root mean square over some axes."""
    square = x.square()
    return x * torch.rsqrt(eps + (square.mean(axes, keepdim=True) if axes else square))


def network(layers, inputs):
    """Apply a network with ReLU between its layers to the first axis."""
    x = inputs.reshape(len(inputs), -1)
    for i, (weight, bias) in enumerate(layers):
        x = weight.T @ (x.relu() if i else x) + bias[:, None]
    return x.reshape(-1, *inputs.shape[1:])


def like(layers, x):
    """Return the layers with the precision and on the device of a tensor."""
    return [(weight.to(x), bias.to(x)) for weight, bias in layers]


def layers_of(weights):
    """Return the weight and the bias of each layer."""
    count = sum(name.endswith(".weight") for name in weights)
    return [(weights[f"layers.{i}.weight"], weights[f"layers.{i}.bias"]) for i in range(count)]


def with_time(layers, t, inputs):
    """Return the layers for these inputs; the time adds the same to the first for every number."""
    (weight, bias), *others = layers
    time = torch.tensor([math.tanh(t / s - 1) for s in TIMES], dtype=bias.dtype).to(bias.device)
    return [(weight[:inputs], bias + time @ weight[inputs:]), *others]


class Averages:
    """Running averages of gradients and of their squares, in full and factored."""

    def init(self, state, x):
        """Store zeros."""
        state["momenta"] = x.new_zeros((len(BETAS), *x.shape))
        state["second"] = torch.zeros_like(x)
        state["rows"], state["columns"] = self.means(torch.zeros_like(state["momenta"]), 1)

    def means(self, x, first=0):
        if x.ndim - first < 2:
            return x, x.new_zeros(0)
        longest, following = (first + axis for axis in self.longest(x.shape[first:]))
        return x.mean(longest, keepdim=True), x.mean(following, keepdim=True)

    @staticmethod
    def longest(shape):
        """Return the longest axis and the next; of equal axes, the later counts as longer."""
        order = sorted(range(len(shape)), key=lambda axis: shape[axis])
        return order[-1], order[-2]

    def update(self, state, g, momenta, second, factored):
        """Add a gradient to the averages, with these decays."""
        rows, columns = self.means(g.square() + 1e-30)
        for name, decays, new in (
            ("momenta", momenta, g),
            ("rows", factored, rows),
            ("columns", factored, columns),
        ):
            if state[name].numel():
                for i, decay in enumerate(decays):
                    state[name][i].mul_(decay).add_(new * (1 - decay))
        state["second"].mul_(second).add_(g.square() * (1 - second))

    def scales(self, state):
        """Return the inverse roots of the factored second moments."""
        if not state["columns"].numel():
            return torch.rsqrt(state["rows"] + 1e-9)
        _, following = self.longest(state["second"].shape)
        mean = state["rows"].mean(1 + following, keepdim=True)
        rows = (state["rows"] / (mean + 1e-9)).clamp(min=1e-9)
        return torch.rsqrt(rows) * torch.rsqrt(state["columns"].clamp(min=1e-9))


class Celo2(Averages):
    """Celo2: nearly orthogonal steps of root mean square 1; vectors are trained by Adam."""

    def __init__(self, weights, settings):
        self.layers, self.base = layers_of(weights), settings["base"]
        self.lr, self.weight_decay = settings["lr"], settings["weight_decay"]

    def change(self, state, p, g, t):
        g = g.clamp(-1000, 1000)
        self.update(state, g, BETAS, 0.95, BETAS)
        m, v = state["momenta"], state["second"]
        root = torch.rsqrt(v + 1e-8)
        if p.ndim < 2 and not self.base:
            return 20 * m[0] * root
        scales = self.scales(state)
        inputs = [g, g.clamp(-0.1, 0.1), p, *m, v, *(m * root), root, *(g * scales), g * root]
        if state["columns"].numel():
            rows, columns = state["rows"], state["columns"]
            inputs += [*rows, *columns, *torch.rsqrt(rows + 1e-8), *torch.rsqrt(columns + 1e-8)]
            inputs += [*(m * scales)]
        axes = tuple(range(-min(p.ndim, 2), 0))
        x = normalised(torch.stack([each.expand(p.shape) for each in inputs]), 1e-9, axes)
        (weight, bias), *others = like(self.layers, x)
        u = network([(weight[: len(x)], bias), *others], x)[0]
        if not self.base:
            u = self.nearly_orthogonal(u)
        return normalised(u, 1e-9, axes)

    @staticmethod
    def nearly_orthogonal(x):
        tall = x.shape[-2] > x.shape[-1]
        x = x.mT if tall else x
        x = x / (x.square().sum((-2, -1), keepdim=True).sqrt() + 1e-8)
        for _ in range(5):
            square = x @ x.mT
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        return x.mT if tall else x


class AdafactorMLP(Averages):
    """small_fc_lopt: a network per parameter that also sees the step."""

    lr, weight_decay = 1.0, 0.0

    def __init__(self, weights, settings):
        self.layers, self.step = layers_of(weights), settings["step"]
        self.offsets = {
            name: weights[f"decays.{name}"] for name in ("momenta", "second", "factored")
        }

    def decays(self):
        def decay(name, first):
            return [
                1 - (1 - b) * math.exp(10 * float(o))
                for b, o in zip(first, self.offsets[name], strict=True)
            ]

        clip = lambda values: [min(max(value, 0.0), 1.0) for value in values]  # noqa: E731
        second = clip(decay("second", (0.999,)))[0]
        return decay("momenta", BETAS), second, clip(decay("factored", BETAS))

    def change(self, state, p, g, t):
        self.update(state, g, *self.decays())
        m, v, rows = state["momenta"], state["second"], state["rows"]
        root, scales = torch.rsqrt(v + 1e-6), self.scales(state)
        single = not state["columns"].numel()
        columns = rows if single else state["columns"]
        scaled = m * (torch.rsqrt(rows + 1e-6) if single else scales)
        inputs = [g, p, *m, v, *(m * root), root, *(g * scales), *rows, *columns]
        inputs += [*torch.rsqrt(rows + 1e-8), *torch.rsqrt(columns + 1e-8), *scaled]
        x = torch.stack([each.expand(p.shape) for each in inputs])
        x = normalised(x, 1e-5, tuple(range(1, x.ndim)))
        a, b = network(with_time(like(self.layers, x), t, len(x)), x)
        return self.step * a * torch.exp(0.001 * b)


class PerParameterMLP:
    """A network per parameter on running means of the gradient, and on the step."""

    lr, weight_decay = 1.0, 0.0
    means = (0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)

    def __init__(self, weights, settings):
        self.layers = layers_of(weights)

    def init(self, state, x):
        state["means"] = x.new_zeros((len(self.means), *x.shape))

    def change(self, state, p, g, t):
        for i, decay in enumerate(self.means):
            state["means"][i].mul_(decay).add_(g * (1 - decay))
        x = torch.stack([*state["means"], g, p])
        x = normalised(x, 1e-5, tuple(range(1, x.ndim)))
        a, b = network(with_time(like(self.layers, x), t, len(x)), x)
        return 0.001 * a * torch.exp(0.001 * b)


RULES = {rule.__name__: rule for rule in (Celo2, AdafactorMLP, PerParameterMLP)}


def read_weights(source):
    """Read a safetensors file of single-precision numbers: the tensors and the metadata."""
    given = isinstance(source, bytes)
    path, content = (
        ("the content", source) if given else (source, pathlib.Path(source).read_bytes())
    )
    size = int.from_bytes(content[:8], "little")
    if not 0 < size <= min(LARGEST_HEADER, len(content) - 8):
        raise ValueError(f"{path} is not a file of weights in the format safetensors.")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    about, tensors = header.pop("__metadata__", {}), {}
    if about.get("optimizer") not in RULES:
        raise ValueError(f"{path} does not name an optimizer of nres.")
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if (
            entry["dtype"] != "F32"
            or end - begin != 4 * math.prod(entry["shape"])
            or end > len(data)
        ):
            raise ValueError(f"{path} is damaged: {name} does not fit.")
        values = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors, about
