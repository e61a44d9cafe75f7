"""Kernels for NVIDIA GPUs, imported where they are used: Pallas takes a while to import."""
