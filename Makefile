# Every target does its own set-up. OGIVE_PYTHON=/path/to/python picks the interpreter; ARGS="..." is passed on.
.PHONY: help demo test test-slow check coverage wheel sdist sbom mutants spark-releases interop interop-peers interop-suite interop-older sdk bench docs house clean
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

python = .venv/bin/python
ARGS ?=
# two tests at a time: many wait for times or peers (ARGS="-n 0": one after the other, as a debugger needs it)
pytest = $(python) -m pytest -q -n 2 --no-loadscope-reorder
# three where tests mostly wait, for times or for Apache's brokers: two leave a third to a half of
# two cores idle
pytest_waiting = $(python) -m pytest -q -n 3 --no-loadscope-reorder
# three of the long sizes, of which one computes: tests/lanes.py
pytest_slow = $(python) -m pytest -q -n 3 --no-loadscope-reorder --nightly -m nightly
# the parts of make test-slow, each at most 55 minutes: tests/lanes.py derives them from markers;
# pytest ends with 5 where ARGS picks none of a part; releases, without ARGS, is the whole bridge on
# the releases of Spark that .venv does not have; lakes runs on Spark 4.0, for which the jars are;
# frameworks has the tests of integrations, with packages that .venv does not have
SLOW_PARTS = spark releases lakes frameworks interop sdk simulation long
PART ?= $(SLOW_PARTS)
# whose gRPC endpoint the official SDKs of RocketMQ 5 are run against
SDK_SERVER ?= ogive
# the tests of make test; .ci/run leaves out those that make check has just run
TESTS ?= tests --ignore=tests/interop
# packages whose branch coverage, without the compiled part, has a floor, and the tests that reach it
COVERED = wire sql92 store access
COVERING = $(addprefix tests/unit/,$(COVERED) namesrv broker/handlers) tests/property
# Apache's older releases, on which the client's part of the integration suite runs, too
OLDER ?= 4.9.7 5.3.3

# releases of Spark, of which 43 is .venv's own, and the marker of the tests that run on them:
# releases, or bridge for the whole bridge
SPARKS ?= 40 43
SPARK_TESTS ?= releases
spark_suite = tests/unit/spark tests/unit/pipelines tests/integration
# Spark 4.0 and 4.1 leave sockets to the garbage collector
pytest_spark = -m pytest -q -n 2 --no-loadscope-reorder -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning

pytest_lakes = $(subst -n 2,-n 0,$(pytest_spark)) --nightly --part lakes
pytest_airflow = .cache/airflow/bin/python -m pytest -q -n 0 integrations/airflow
pytest_frameworks = PYTHONPATH=$(CURDIR)/integrations/faststream/src:$(CURDIR)/integrations/kombu/src .cache/frameworks/bin/python -m pytest -q -n 0

help:
	@echo "make demo      a million flight events through broker, consumers and Spark, every figure checked (ARGS=\"--events 50000\": shorter)"
	@echo "make test      all tests that need no Java peer, Spark included (ARGS=\"-k name\": some of them)"
	@echo "make test-slow the long sizes of the reliability tests, one part after the other (PART=spark|releases|lakes|frameworks|interop|sdk|simulation|long: one part, at most 55 minutes)"
	@echo "make check     format, lint, spelling, types, unit tests"
	@echo "make coverage  branch coverage of wire, sql92, store and access, without the compiled part; fails below 95 %"
	@echo "make wheel     the files of a release, in dist/: the source distribution, a wheel for each installed Python, the list of components (ARGS=--cross: also wheels for musl and aarch64)"
	@echo "make sdist     only the source distribution"
	@echo "make sbom      only the list of components, with versions and licences, as CycloneDX"
	@echo "make mutants   random faults in a copy of the source, and which of them tests let pass (SEED=n COUNT=n PATHS=\"store spark\")"
	@echo "make spark-releases  the quick tests of the Spark bridge on Spark 4.0 and 4.3 (SPARKS=\"40 41 42 43\" SPARK_TESTS=bridge: all of them on all four)"
	@echo "make interop   against Apache RocketMQ 5.5.0: its clients on our broker, our client on its broker, also of 4.9.7 and 5.3.3 (JDK 17+, Maven)"
	@echo "make sdk       the official SDKs of RocketMQ 5 for Java, Python, Go and Node.js, side by side; SDK_SERVER=apache: on Apache's proxy (JDK 17+, Maven, Go, Node.js)"
	@echo "make bench     our broker and client beside Apache's, as ratios (JDK 17+, Maven)"
	@echo "make docs      the documentation as a site, in .cache/docs/html, each page opened in Chromium; fails on a broken link or an undocumented name"
	@echo "make house     the aims for the size and the form of the source, and what it has now (ARGS=--ways: also the modules that run in a send and a push)"
	@echo "make clean     remove .venv, the compiled part and every cache of this clone"

demo:
	@tools/setup run
	@$(python) -m examples.demo $(ARGS)

test:
	@tools/setup test
	@$(pytest) $(TESTS) $(ARGS)

test-slow:
	@for part in $(PART); do case " $(SLOW_PARTS) " in *" $$part "*) ;; *) \
		echo "PART must be one of: $(SLOW_PARTS), got $$part" >&2; exit 2;; esac; done
	@case '$(PART)' in lakes | frameworks) tools/setup $(PART);; *) tools/setup slow;; esac
	@mkdir -p .cache/figures
	@failed=; for part in $(PART); do \
		echo "test-slow, part $$part"; rm -f .cache/figures/$$part.jsonl; \
		if [ $$part = releases ]; then \
			[ -n '$(ARGS)' ] || $(MAKE) spark-releases SPARKS="40 41 42" SPARK_TESTS=bridge || failed="$$failed $$part"; continue; \
		fi; \
		if [ $$part = lakes ]; then \
			.cache/spark40/bin/python $(pytest_lakes) tests/lakes $(ARGS) || [ $$? = 5 ] || failed="$$failed $$part"; continue; \
		fi; \
		if [ $$part = frameworks ]; then \
			$(pytest_frameworks) integrations --ignore integrations/airflow $(ARGS) || [ $$? = 5 ] || failed="$$failed $$part"; \
			$(pytest_airflow) $(ARGS) || [ $$? = 5 ] || failed="$$failed $$part"; continue; \
		fi; \
		OGIVE_FIGURES=$(CURDIR)/.cache/figures/$$part.jsonl $(pytest_slow) --part $$part $$([ $$part != sdk ] || echo -m sdk --broker $(SDK_SERVER)) tests $(ARGS) || [ $$? = 5 ] || failed="$$failed $$part"; \
	done; if [ -n "$$failed" ]; then echo "test-slow: failed:$$failed" >&2; exit 1; fi
ifeq ($(PART),$(SLOW_PARTS))
	@$(python) tools/reliability.py $(addprefix .cache/figures/,$(addsuffix .jsonl,$(filter-out releases lakes frameworks sdk,$(SLOW_PARTS))))
endif

check:
	@tools/setup check
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	.venv/bin/codespell
	.venv/bin/clang-format --dry-run --Werror native/*.[ch]
	$(python) -m mypy
	$(pytest_waiting) tests/unit $(ARGS)

coverage:
	@tools/setup check
	@mkdir -p .cache
	OGIVE_NATIVE=0 $(python) -m coverage run --data-file .cache/coverage --branch --source src/ogive -m pytest -q -n 0 $(COVERING) $(ARGS)
	@for package in $(COVERED); do \
		$(python) -m coverage report --data-file .cache/coverage --include "src/ogive/$$package/*" --skip-covered --show-missing --fail-under 95 --precision 1 || exit 1; \
	done

wheel:
	@tools/setup wheels
	@$(python) -m tools.wheels $(ARGS)

sdist:
	@tools/setup run
	$(python) -m hatchling build -t sdist

sbom:
	@tools/setup wheels
	@$(python) -m tools.wheels --sbom

mutants:
	@tools/setup test
	@$(python) -m tests.mutants $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(PATHS),--paths $(PATHS)) $(ARGS)

spark-releases:
	@for release in $(SPARKS); do \
		if [ $$release = 43 ]; then tools/setup test && python=$(python); \
		else tools/setup spark$$release && python=.cache/spark$$release/bin/python; fi || exit 1; \
		echo "on $$($$python -c 'import pyspark; print("Spark", pyspark.__version__)')"; \
		$$python $(pytest_spark) -m $(SPARK_TESTS) $(spark_suite) $(ARGS) || exit 1; \
	done

interop: interop-peers interop-suite interop-older

interop-peers:
	@tools/setup interop
	$(pytest_waiting) -m "not sdk" tests/interop $(ARGS)

interop-suite:
	@tools/setup interop
	$(pytest) tests/integration --broker apache $(ARGS)

interop-older:
	@tools/setup interop
	@for release in $(OLDER); do \
		echo "on Apache's broker $$release"; $(pytest) tests/integration -m client_suite --broker apache --apache-version $$release $(ARGS) || exit 1; \
	done

# the SDKs side by side: each waits for most of its time
sdk:
	@tools/setup sdk
	$(python) -m pytest -q -n 4 --no-loadscope-reorder -m sdk --broker $(SDK_SERVER) tests/interop $(ARGS)

bench:
	@tools/setup interop
	@$(python) -m bench $(ARGS)

docs:
	@tools/setup docs
	@$(python) -m tools.docsite $(ARGS)

house:
	@tools/setup test
	@$(python) tools/house.py $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist src/ogive/_native.*
