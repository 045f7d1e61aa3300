"""The ``ogive`` command: arguments to API calls to text or JSON lines."""
