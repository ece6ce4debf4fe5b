"""Rewriting graphs as ONNX has them, before the compiler sees them."""
