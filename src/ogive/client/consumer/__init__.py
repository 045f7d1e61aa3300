"""Consumers: push, pull, and the machinery behind them."""
