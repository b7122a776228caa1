"""A run for other programs: ONNX, transformers, safetensors."""
