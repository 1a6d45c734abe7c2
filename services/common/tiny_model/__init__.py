"""The built-in tiny models: GLM-4.5 in shape, made deterministically from a preset and a seed."""
