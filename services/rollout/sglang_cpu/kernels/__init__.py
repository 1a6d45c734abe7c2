"""Pure torch kernels that SGLang 0.5.20 calls on a CPU without AMX, one file per subject."""
