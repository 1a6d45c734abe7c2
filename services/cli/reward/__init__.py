"""`furlong reward`: grading without a run."""
