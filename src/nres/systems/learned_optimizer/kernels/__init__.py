"""Kernels for NVIDIA GPUs, imported where they are used, because importing Pallas is slow."""
