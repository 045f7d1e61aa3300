"""Consuming: listeners, push consumers, and what stands behind them."""
