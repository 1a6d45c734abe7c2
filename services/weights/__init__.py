"""The weights service: versions, plans and two-phase commit; and the library that moves the bytes."""
