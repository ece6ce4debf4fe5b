"""Models in: ONNX files become a program of TensorIR kernels, with evidence of how."""
