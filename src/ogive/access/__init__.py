"""Access control: users, policies, and what every request needs.

Brokers and name servers share the ``Guard``.
"""

from ogive.access.guard import Guard
from ogive.access.refused import AccessRefused
from ogive.access.table import AccessTable

__all__ = ["AccessRefused", "AccessTable", "Guard"]
