"""The ``ogive`` command: arguments become API calls, and results become text or JSON lines."""
