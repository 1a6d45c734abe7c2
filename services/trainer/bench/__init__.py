"""Times the policy losses beside a plain pass over the same memory and beside the losses of other systems."""
