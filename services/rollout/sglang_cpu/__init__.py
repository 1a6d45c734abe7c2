"""What SGLang lacks on a CPU without AMX: a plugin and stand-in kernels."""
