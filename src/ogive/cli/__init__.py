"""The ``ogive`` command: turns arguments into API calls, and results into text or JSON lines."""
