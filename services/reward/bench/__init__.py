"""Measures graders side by side."""
