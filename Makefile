# Every target does its own set-up. OGIVE_PYTHON=/path/to/python picks the interpreter; ARGS="..." is passed on.
.PHONY: help demo test check interop bench clean
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

python = .venv/bin/python
ARGS ?=
# the tests of make test; .ci/run leaves out those that make check has just run
TESTS ?= tests --ignore=tests/interop

help:
	@echo "make demo      a million flight events through broker, consumers and Spark, every figure checked (ARGS=\"--events 50000\": shorter)"
	@echo "make test      all tests that need no Java peer, the fast ones first (ARGS=\"-k name\": some of them)"
	@echo "make check     format, lint, types, unit tests"
	@echo "make interop   against Apache RocketMQ 5.5.0: its clients on our broker, our client on its broker (JDK 17+, Maven)"
	@echo "make bench     our broker and client beside Apache's, as ratios (JDK 17+, Maven)"
	@echo "make clean     remove .venv and every cache of this clone"

demo:
	@tools/setup run
	@.venv/bin/ogive demo $(ARGS)

test:
	@tools/setup test
	@$(python) -m pytest -q $(TESTS) $(ARGS)

check:
	@tools/setup test
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy
	$(python) -m pytest -q tests/unit $(ARGS)

interop:
	@tools/setup interop
	$(python) -m pytest -q tests/interop $(ARGS)
	$(python) -m pytest -q tests/integration --broker apache $(ARGS)

bench:
	@tools/setup interop
	@$(python) -m bench $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
