"""The reward service: grades responses in killable workers."""
