"""The ``chaos.direct`` destination: a direct destination that fails as configured."""
