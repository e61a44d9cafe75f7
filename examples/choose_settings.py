# %% [markdown]
# # Choose settings
#
# An evolution strategy has three settings: the scale of the noise σ (`sigma`), the number of steps
# per update W (`window`) and the number of workers N (`workers`). This notebook measures their
# effect before training, on the Lorenz system, whose loss is chaotic.
#
# ## σ: look at the smoothed loss
#
# An evolution strategy follows the gradient of a smoothed loss: the mean loss over Gaussian noise
# of scale σ on the parameters. With little noise, the loss stays jagged. With too much noise, its
# minimum moves or disappears.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import nres

horizon, points, episodes = 1000, 150, 500
system, key = nres.systems.Lorenz(horizon), jax.random.key(0)
start, truth = system.initial_theta(), jnp.array(system.truth)

_, panel = plt.subplots(layout="constrained")
places = np.linspace(-0.1, 1.3, points)
for sigma, colour in ((0.0, "C7"), (0.01, "C0"), (0.04, "C3"), (0.16, "C1")):
    count = episodes if sigma else 1
    thetas = [start + x * (truth - start) for x in places]
    losses = [nres.evaluate(system, t, key, episodes=count, sigma=sigma).loss for t in thetas]
    panel.plot(places, losses, color=colour, lw=1.5 if sigma else 0.6, label=f"σ = {sigma:g}")
panel.set(xlabel="from the start (0) to the true parameters (1)", ylabel="smoothed loss")
panel.legend()

# %% [markdown]
# ## W: measure the variance of gradients
#
# `nres.variance.sweep` measures gradients at one θ for many settings. PES draws new noise for every
# window, NRES once per episode, and FullES is NRES with one window per episode. The signal-to-noise
# ratio is the squared length of the mean gradient divided by the variance of one estimate.

# %%
samples = 4096
table = nres.variance.sweep(
    system,
    start,
    key,
    sigmas=[0.01, 0.02, 0.04, 0.08, 0.16],
    windows=[50, horizon],
    periods=[50, horizon],
    workers=[200],
    samples=samples,
)

_, panel = plt.subplots(layout="constrained")
for method in ("PES", "NRES", "FullES"):
    rows = table.where(method=method)
    panel.loglog(rows.column("sigma"), rows.column("snr"), "o-", label=method)
panel.set(xlabel="σ", ylabel="signal-to-noise ratio")
panel.set_xticks([0.01, 0.02, 0.04, 0.08, 0.16], ["0.01", "0.02", "0.04", "0.08", "0.16"])
panel.legend()

# %% [markdown]
# FullES has the best single estimates, but it makes one update while NRES makes 20.
#
# ## N: measure your own estimator
#
# `nres.variance.measure` takes any estimator. The variance falls as 1/N, and workers run in
# parallel, so use as many as your hardware runs without taking longer.

# %%
for workers in (50, 200, 800):
    estimator = nres.NRES(system, workers=workers, window=50, sigma=0.04)
    found = nres.variance.measure(estimator, start, key, samples=samples)
    low, high = found.interval
    print(f"N = {workers}: variance {found.variance:.2g} ({low:.2g} to {high:.2g})")

# %% [markdown]
# ## Ask for advice
#
# `nres.variance.advise` does all this for a budget: the number of unroll steps in total, and of
# those that run one after another.

# %%
budget = (4 * 10**7, 10**5)
advice = nres.variance.advise(system, start, key, budget=budget, samples=samples)
print(f"{advice.method}, W = {advice.window}, N = {advice.workers}, sigma = {advice.sigma:g}")
print(*advice.reasons, sep="\n")

# %% [markdown]
# ## Train with it
#
# The learning rate remains to be chosen. Compare the recommended σ with a tenth of it, where the
# same steps follow much noisier gradients:

# %%
updates, results = advice.updates, {}


def test_loss(theta):
    return system.test_loss(theta, key)


for sigma in (advice.sigma, advice.sigma / 10):
    estimator = nres.NRES(system, workers=advice.workers, window=advice.window, sigma=sigma)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, updates))
    result = nres.train(estimator, optimizer, start, updates=updates, key=key, eval_fn=test_loss)
    results[sigma] = result.history

_, panel = plt.subplots(layout="constrained")
for sigma, history in results.items():
    panel.semilogy(history.eval_update, history.evals["eval"], ".-", label=f"σ = {sigma:g}")
panel.set(xlabel="updates", ylabel="test loss")
panel.legend()

# %% [markdown]
# Near an optimum, less noise is better. Ask for advice again at the parameters that you reached, or
# let σ decrease during training: `sigma` may be a schedule.
