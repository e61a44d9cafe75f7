"""Exported optimizers in PyTorch, step for step against JAX. These tests need torch."""

import importlib.util
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import raises_naming
from nres.systems import learned_optimizer as lo

pytestmark = pytest.mark.torch
KEY = jax.random.key(5)
# Wide, tall and square matrices, a vector, a number, and kernels of images and of signals.
SHAPES = {
    "wide": (3, 5),
    "tall": (6, 4),
    "square": (4, 4),
    "vector": (6,),
    "number": (),
    "image": (3, 3, 2, 4),
    "signal": (5, 2, 2),
}
OPTIMIZERS = {
    "Celo2": lo.Celo2(lr=0.003),
    "Celo2 with decay": lo.Celo2(weight_decay=0.1),
    "Celo2-base": lo.Celo2(base=True),
    "AdafactorMLP": lo.AdafactorMLP(width=5),
    "PerParameterMLP": lo.PerParameterMLP(width=6),
}


def torch_axes(ndim):
    """Return the axes of JAX's layout in the order of torch: outputs, inputs, space."""
    return (ndim - 1, ndim - 2, *range(ndim - 2)) if ndim > 1 else tuple(range(ndim))


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.LearnedOptimizer


def parameters(optimizer):
    """Return parameters away from the start, so that learned decays differ from their defaults."""
    theta = optimizer.initial_theta(KEY)
    leaves, structure = jax.tree.flatten(theta)
    keys = jax.random.split(KEY, len(leaves))
    moved = [x + 0.05 * jax.random.normal(k, x.shape) for k, x in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, [x.astype(jnp.float32) for x in moved])


def gradients(steps):
    generator = np.random.default_rng(0)
    sizes = 10.0 ** generator.uniform(-3, 1, len(SHAPES))
    for _ in range(steps):
        yield {
            name: size * generator.normal(size=shape)
            for size, (name, shape) in zip(sizes, SHAPES.items(), strict=True)
        }


def in_torch(values):
    import torch

    return {
        name: torch.nn.Parameter(torch.tensor(np.transpose(x, torch_axes(np.ndim(x)))))
        for name, x in values.items()
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_jax(name, tmp_path, x64):
    import torch

    optimizer = OPTIMIZERS[name]
    theta = parameters(optimizer)
    path, _ = lo.write_torch(tmp_path / "mine.py", optimizer, theta)
    start = next(gradients(1))
    params = jax.tree.map(lambda x: jnp.asarray(x, float), start)
    theirs = in_torch(start)
    learned = loaded(path)(theirs.values())
    state = optimizer.init(params)
    theta = jax.tree.map(lambda x: x.astype(float), theta)
    for t, grads in enumerate(gradients(6)):
        given = jax.tree.map(lambda x: jnp.asarray(x, float), grads)
        updates, state = optimizer.update(theta, given, state, params, jnp.int32(t))
        params = jax.tree.map(jnp.add, params, updates)
        for each, x in theirs.items():
            x.grad = torch.tensor(np.transpose(grads[each], torch_axes(x.ndim)))
        learned.step()
        for each, x in theirs.items():
            expected = np.transpose(params[each], torch_axes(x.ndim))
            np.testing.assert_allclose(x.detach().numpy(), expected, rtol=1e-7, atol=1e-9)


def test_the_shipped_optimizer_is_that_of_the_exported_file(tmp_path):
    import nres

    path, _ = lo.write_torch(tmp_path / "mine.py", *lo.read_optimizer("celo2")[:2])
    found = []
    for make in (loaded(path), nres.load_torch_optimizer("celo2")):
        values = in_torch(next(gradients(1)))
        learned = make(values.values(), lr=0.1)
        for x in values.values():
            x.grad = x.detach().clone()
        learned.step()
        found.append([x.detach().numpy() for x in values.values()])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    with raises_naming(ValueError, "content"):
        nres.load_torch_optimizer("celo2").func([x], weights=b"nothing")


def test_a_model_learns_with_schedule_decay_and_saved_state(tmp_path):
    """A convolutional model; the second half of training is the same after a restart."""
    import torch

    optimizer = OPTIMIZERS["Celo2"]
    cls = loaded(lo.write_torch(tmp_path / "mine.py", optimizer, parameters(optimizer))[0])
    torch.manual_seed(0)
    images, labels = torch.randn(32, 1, 6, 6), torch.randint(0, 3, (32,))

    def model():
        torch.manual_seed(1)
        parts = torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()
        return torch.nn.Sequential(*parts, torch.nn.Linear(64, 3))

    def trained(net, learned, steps):
        schedule = torch.optim.lr_scheduler.LinearLR(learned, 1.0, 0.5, 40)
        losses = []
        for _ in range(steps):

            def closure():
                learned.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(images), labels)
                loss.backward()
                return loss

            losses.append(float(learned.step(closure).detach()))
            schedule.step()
        return losses

    net = model()
    groups = [
        {"params": net[0].parameters(), "lr": 0.01},
        {"params": net[3].parameters(), "weight_decay": 0.1},
    ]
    learned = cls(groups, lr=0.02)
    losses = trained(net, learned, 30)
    assert losses[-1] < 0.75 * losses[0]
    torch.save({"net": net.state_dict(), "learned": learned.state_dict()}, tmp_path / "saved.pt")
    expected = trained(net, learned, 5)
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    other = model()
    again = cls([{"params": other[0].parameters()}, {"params": other[3].parameters()}])
    other.load_state_dict(saved["net"])
    again.load_state_dict(saved["learned"])
    assert [group["weight_decay"] for group in again.param_groups] == [0.0, 0.1]
    assert trained(other, again, 5) == pytest.approx(expected, rel=1e-5)


def test_copies_and_low_precision(tmp_path):
    """A copy makes the same steps, and averages of bfloat16 parameters survive being saved."""
    import copy

    import torch

    optimizer = OPTIMIZERS["Celo2"]
    cls = loaded(lo.write_torch(tmp_path / "mine.py", optimizer, parameters(optimizer))[0])
    weight = torch.nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16))
    learned = cls([weight])
    for i in range(3):
        weight.grad = torch.full_like(weight, 0.1 + 0.01 * i)
        learned.step()
    state = learned.state[weight]
    again = cls([weight])
    again.load_state_dict(learned.state_dict())
    for name, value in state.items():
        assert again.state[weight][name].dtype == value.dtype
        assert torch.equal(again.state[weight][name], value)
    other = copy.deepcopy(learned)
    (theirs,) = other.param_groups[0]["params"]
    for each, one in ((weight, learned), (theirs, other)):
        each.grad = torch.ones_like(each)
        one.step()
    assert torch.equal(weight, theirs)


def test_tensors_can_be_seen_as_they_are(tmp_path):
    """An embedding has the same layout in both libraries."""
    import torch

    optimizer = OPTIMIZERS["Celo2"]
    theta = parameters(optimizer)
    cls = loaded(lo.write_torch(tmp_path / "mine.py", optimizer, theta)[0])
    start, grad = (np.random.default_rng(i).normal(size=(4, 4)).astype(np.float32) for i in (0, 1))
    table = torch.nn.Parameter(torch.tensor(start))
    table.grad = torch.tensor(grad)
    cls([{"params": [table], "keep_layout": True}]).step()
    params = jnp.asarray(start)
    updates, _ = optimizer.update(
        theta, jnp.asarray(grad), optimizer.init(params), params, jnp.int32(0)
    )
    np.testing.assert_allclose(table.detach().numpy(), params + updates, rtol=1e-4, atol=1e-6)


def test_damaged_weights_are_refused(tmp_path):
    import torch

    path, weights = lo.write_torch(tmp_path / "mine.py", lo.Celo2(), lo.Celo2().initial_theta(KEY))
    cls, tensor = loaded(path), torch.nn.Parameter(torch.zeros(2, 2))
    good = weights.read_bytes()
    for bad in (b"", b"nonsense", good[:400], good[:-8], good.replace(b"Celo2", b"Other")):
        weights.write_bytes(bad)
        with raises_naming(ValueError, "mine.safetensors"):
            cls([tensor])
    weights.write_bytes(good)
    with raises_naming(ValueError, "lr"):
        cls([tensor], lr=-1.0)


def test_pylo_gets_the_names_and_shapes_of_its_state_dict(tmp_path):
    from safetensors.torch import load_file

    optimizer = lo.Celo2()
    theta = parameters(optimizer)
    (path,) = lo.write_pylo(tmp_path / "mine.safetensors", optimizer, theta)
    found = load_file(path)
    sizes = (1, 1, 1, 3, 1, 3, 1, 3, 1, 3, 3, 3, 3, 3)
    expected = {f"w0.{i}": (size, 8) for i, size in enumerate(sizes)}
    expected |= {"b0": (8,), "dense_w.0": (8, 8), "dense_b.0": (8,)}
    expected |= {"dense_w.1": (8, 3), "dense_b.1": (3,)}
    assert {name: tuple(x.shape) for name, x in found.items()} == expected
    joined = np.concatenate([found[f"w0.{i}"].numpy() for i in range(len(sizes))])
    np.testing.assert_array_equal(joined, theta[0]["weight"])
    for i, j in itertools.product((1, 2), ("weight", "bias")):
        np.testing.assert_array_equal(found[f"dense_{j[0]}.{i - 1}"].numpy(), theta[i][j])
