"""`furlong bench`: measurements beside a reference in the same run."""
