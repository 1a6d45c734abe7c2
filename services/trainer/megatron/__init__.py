"""The only importer of megatron: model, optimizer, checkpoints and the mapping to hub names."""
