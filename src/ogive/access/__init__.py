"""Access control: users, policies, and the permissions that every request needs.

Brokers and name servers share the ``Guard``.
"""

from ogive.access.guard import Guard
from ogive.access.policy import AccessRefused
from ogive.access.user_table import AccessTable

__all__ = ["AccessRefused", "AccessTable", "Guard"]
