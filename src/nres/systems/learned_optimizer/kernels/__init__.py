"""Kernels for NVIDIA GPUs, in Pallas for Triton.

The models that learned optimizers train are so small that a GPU would spend most of its time
starting kernels and moving activations. A kernel here does many operations of plain JAX at once.

| function | kernels | what a program computes | reference |
|---|---|---|---|
| `dense.fused_loss` | 1 | the loss of one model on one batch | `dense.plain_loss` |
| `dense.fused_gradient` | 1 | the gradient of one model on one batch | `dense.plain_gradient` |
| `convolutional.fused_block` | 3 | pixels of the block; rows of the gradient of the \
weights; pixels of the gradient of the input | `convolutional.plain_block` |
| `network.fused_step` | 2 | scales of one tensor of a model; the changes of \
some of its parameters, and their means | `network.plain_step` |

**Choice.** `dispatch` uses a kernel if `fusable`, beside the reference, says that it applies, and
if the program is lowered for an NVIDIA GPU. Derivatives are those of the reference. Kernels are
imported where they are used, because importing Pallas is slow.

**Models.** `dense` and `network` take a model's parameters, and its gradient, as one vector: so one
kernel resets or changes them, instead of one per tensor.

**Lanes.** `vmap` adds a first dimension to the grid, so each lane has programs of its own.

**Precision.** Products use TF32, as plain JAX does, or three TF32 products if JAX's setting
`jax_default_matmul_precision` asks for more (`fusing.precision`). `network`, whose inputs are
divided by their scale, instead multiplies numbers in half precision, which have as many significant
bits as TF32; activations, weights and biases of the network above 65,504 become infinite. `dense`
uses the GPU's approximate tanh where TF32 is precise enough. Sums are in single precision.

**Speed.** A program waits for memory more than it computes. So each iteration reads all of its
inputs before it writes, and values that do not fit into registers are recomputed.

**Limits.** A model and a batch of `dense` must fit into the registers of one program, the hidden
layers of `network` are powers of two from 16 to 128, and a block has at most 64 channels; all in
single precision. Triton computes offsets in 32 bits for arrays of up to 2^32 bytes, so an array of
bytes must not have more than 2^31 elements. The images of all lanes of `dense` together are such an
array; blocks of workers (`execution.BLOCK_ELEMENTS`) keep it smaller for optimizers with at least
256 weights.

**Tests.** `tests/test_learned_optimizer_kernels.py` interprets the kernels on a CPU and compares
them with the references; it also lowers them for a GPU, with up to two million lanes.
`benchmarks/learned_optimizer.py` measures them against plain JAX and against the floor.
"""
