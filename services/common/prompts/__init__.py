"""Prompts, their labels and demonstrations: where they come from and how they become token ids."""
