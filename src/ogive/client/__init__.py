"""The client: producers, consumers, admin.

Written once in asyncio; ``ogive.client.sync`` is the blocking facade.
"""
