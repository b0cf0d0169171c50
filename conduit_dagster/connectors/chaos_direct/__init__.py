"""The ``chaos.direct`` destination: a direct destination that fails as it is told to."""
