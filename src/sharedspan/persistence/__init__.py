"""Models and checkpoints in files, and models as ONNX graphs."""
