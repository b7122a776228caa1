"""Recurrent layers in one launch, in CUDA, for NVIDIA's Hopper GPUs alone; nothing outside knows how."""
