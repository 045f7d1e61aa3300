"""The scripted broker of ``ogive.testing``, under the name that these tests have for it."""

from ogive.testing.fake_broker import HANG_UP, SILENT, WAIT_S, FakeBroker, error, ok

__all__ = ["HANG_UP", "SILENT", "WAIT_S", "FakeBroker", "error", "ok"]
