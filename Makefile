# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs in $(VENV), once; a change of the sources rebuilds and reinstalls the wheel alone.
# Tests, demo and benchmarks run against that wheel, never against the checkout.

VENV ?= .venv
# The oldest Spark there is support for; `make newest` takes the newest.
SPARK ?= 4.2.0
PYTEST_ARGS ?=
# Which programs of benchmarks/ to run.
BENCH ?= files stream_latency stream_files
BENCH_ARGS ?=

# Spark comes as source, of which a wheel is made: without compression, as its jars are compressed already.
PYSPARK := pyspark$(if $(filter newest,$(SPARK)),,==$(SPARK)) --config-settings=--build-option=--compression=stored
PY := $(abspath $(VENV))/bin/python
# uv needs half of pip's CPU. It does not read pip's settings: where those name an index, or uv fails, pip installs.
INSTALL = install() { \
	{ ! $(PY) -m pip config list | grep -q index && $(PY) -m uv pip install -q --python $(PY) "$$@" 2> /dev/null; } || \
	$(PY) -m pip install -q --no-compile "$$@"; }; install
STAMPS := $(VENV)/.forebay
WHEEL = $$(ls build/wheel/*.whl)
SOURCES := $(shell find forebay -type f \( -name '*.py' -o -name py.typed -o -name '*.tmpl' \)) $(wildcard pyspark_forebay_*.py)
# A JVM of a test lives for minutes: the second compiler and a parallel collector cost more than they save, and without the
# second compiler there is too little room for compiled code. The archive of
# Spark's classes halves its start (class data sharing of HotSpot); without the archive, the option has no effect.
CLASSES := $(abspath $(STAMPS))/spark-classes.jsa
# The same for the brokers of tests, which start about thirty times.
KAFKA_CLASSES := $(abspath $(STAMPS))/kafka-classes.jsa
# Hadoop's file system starts about ten processes for each file of a checkpoint (`readlink`, `chmod`): with VFORK each is one
# process instead of two, without FileContext there is no `readlink`, and without checksums there are half as many files.
# To compile a query takes longer than to interpret it for the few rows of a test. `make soak` has Spark's defaults.
JVM := -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xlog:disable -Djdk.lang.Process.launchMechanism=VFORK \
	-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN -Dspark.ui.enabled=false \
	-Dspark.hadoop.fs.file.impl=org.apache.hadoop.fs.RawLocalFileSystem \
	-Dspark.sql.streaming.checkpointFileManagerClass=org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager
# Spark without its pyspark.zip: from the zip, each worker compiles the modules of PySpark again (0.5 s of CPU). Without it,
# workers import the installed package.
NO_ZIP := $(abspath $(STAMPS))/spark
# The idle threads of OpenBLAS spin, in each process that imports numpy. Spark's daemons import what their workers need.
PRELOADED ?= $(abspath tests/spark/preloaded)
PYTEST = OMP_NUM_THREADS=1 PYTHONPATH=$(PRELOADED)$${PYTHONPATH:+:$$PYTHONPATH} FOREBAY_WHEEL=$(WHEEL) HYPOTHESIS_PROFILE=ci SPARK_HOME=$(NO_ZIP) \
	SPARK_SUBMIT_OPTS='$(JVM) -XX:SharedArchiveFile=$(CLASSES)' \
	FOREBAY_KAFKA_OPTS='-Xlog:disable -XX:SharedArchiveFile=$(KAFKA_CLASSES)' $(PY) -P -m pytest
SOAK = FOREBAY_WHEEL=$(WHEEL) HYPOTHESIS_PROFILE=soak SPARK_HOME=$(NO_ZIP) $(PY) -P -m pytest -m soak --timeout=3600
ALL_BUT_KAFKA := --ignore=tests/kafka
CHANGELOGS := tests/spark/changelog tests/spark/keys
STREAMS := tests/spark
# What needs no Spark, or starts one of its own: each group that shares a Spark has to start it and to warm it up.
KIT := $(addprefix tests/,testkit examples simulation)
ALONE := $(addprefix tests/,inprocess framework reading coordination state stores options project typing microbatch golden table)
# kafka-python leaves the sockets of failed connections to the garbage collector, at whatever test that runs. Its threads
# draw random numbers for their pauses, also while hypothesis looks whether a strategy does: it warns with "Do not use the".
CLIENTS := -W ignore::pytest.PytestUnraisableExceptionWarning -W ignore:Do:hypothesis.errors.HypothesisDeprecationWarning
KAFKA := tests/kafka $(CLIENTS)
# A recipe that names MAKE itself is run by `make -n` too.
ARCHIVES := $(MAKE) --no-print-directory $(STAMPS)/classes $(STAMPS)/kafka-classes
# What people use and read; `make lint` looks at the types of tests and benchmarks too.
MYPY = $(PY) -m mypy forebay stubs $(wildcard pyspark_forebay_*.py examples/*.py examples/connectors/*/*.py)

# Workers of Spark run this interpreter, and neither they nor anything else put the current directory on sys.path.
export PYSPARK_PYTHON := $(PY)
export PYTHONSAFEPATH := 1
# Hundreds of processes of tests import the same modules of tests.
unexport PYTHONDONTWRITEBYTECODE
# A host name that does not resolve is no reason for Spark not to start.
export SPARK_LOCAL_IP ?= 127.0.0.1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-kafka demo-skew demo-cdc demo-index test newest lint style format bench bench-kafka soak kit-table public-names docs comparison dist clean java FORCE

help: ## Print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=<path>        the Python to make $(VENV) with (else the newest of 3.11 and later that is found)"
	@echo "  BENCH=<names>        which of $(patsubst benchmarks/%.py,%,$(shell grep -l __main__ benchmarks/*.py)) to run"
	@echo "  PYTEST_ARGS=<args>   for example: make test PYTEST_ARGS='tests/formats -x'"

demo: java $(STAMPS)/runtime $(STAMPS)/installed ## Read files with Spark, at once and as a stream, then write a connector (needs Java)
	@$(PY) -P examples/demo.py

demo-kafka: java $(STAMPS)/runtime $(STAMPS)/installed ## Read Kafka: a backfill and a live tail, on a real broker (needs Java)
	@$(PY) -P examples/demo_kafka.py

demo-skew: java $(STAMPS)/runtime $(STAMPS)/installed ## Show which rows Spark drops of a skewed Kafka topic, and how alignment keeps them (needs Java)
	@$(PY) -P examples/demo_skew.py

demo-cdc: java $(STAMPS)/runtime $(STAMPS)/installed ## Join two tables of which Debezium sends changes out of order: the result applied naively, and rightly (needs Java)
	@$(PY) -P examples/demo_cdc.py

demo-index: java $(STAMPS)/runtime $(STAMPS)/installed ## Index objects of several datasources, change them, kill a commit, and ask from a plain process (needs Java)
	@$(PY) -P examples/demo_index.py

test: java style $(STAMPS)/installed $(STAMPS)/no-zip ## Lint, then run every test except the long ones against the built wheel (needs Java)
ifdef PYTEST_ARGS
	@$(ARCHIVES)
	@$(MYPY)
	@$(PYTEST) $(PYTEST_ARGS)
else
	@# Side by side, because most tests wait. Kafka is apart: Spark takes the jars of its own Kafka source only when its
	@# JVM starts. It and the two longest groups come first (`nice`). What needs no Spark begins while the archives are written.
	@beside() { exec nice -n $${3-4} env $(PYTEST) $$2 > build/tests-$$1.txt 2>&1; }; \
	{ $(MYPY); } > build/tests-types.txt 2>&1 & types=$$!; \
	beside kit '$(KIT)' & kit=$$!; \
	beside alone '$(ALONE)' 0 & alone=$$!; \
	trap 'kill $$types $$kit $$alone $$kafka $$streams $$changelogs 2>/dev/null' INT TERM; \
	$(ARCHIVES); \
	beside kafka '$(KAFKA)' 0 & kafka=$$!; \
	beside streams '$(STREAMS) $(CHANGELOGS:%=--ignore=%)' & streams=$$!; \
	beside changelogs '$(CHANGELOGS)' & changelogs=$$!; \
	env $(PYTEST) $(ALL_BUT_KAFKA) $(STREAMS:%=--ignore=%) $(ALONE:%=--ignore=%) $(KIT:%=--ignore=%) $(CHANGELOGS:%=--ignore=%); failed=$$?; \
	echo "waiting for the tests that write build/tests-*.txt"; \
	for group in $$types $$alone $$kit $$streams $$changelogs $$kafka; do wait $$group || failed=$$?; done; \
	cat build/tests-*.txt; exit $$failed
endif

newest: ## Run the tests that need Spark on its newest release, in an environment of their own (needs Java)
	@$(MAKE) --no-print-directory VENV=.venv-newest SPARK=newest PRELOADED= PYTEST_ARGS='$(or $(PYTEST_ARGS),tests/spark tests/examples)' test

lint: style ## Check style, format and all types
	@$(MYPY) tests $(wildcard benchmarks/*.py)

style: $(STAMPS)/dev
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo 'run `make format`' >&2; exit 1; }

format: $(STAMPS)/dev ## Write the code the way `make lint` wants it
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

bench: java $(STAMPS)/dev $(STAMPS)/installed ## Compare with Spark's own sources; results go to build/bench (needs Java, minutes)
	@for name in $(BENCH); do PYTHONPATH=$(abspath benchmarks):$(abspath tests/servers) $(PY) -P benchmarks/$$name.py $(BENCH_ARGS) || exit 1; done

bench-kafka: java $(STAMPS)/runtime $(STAMPS)/installed ## Compare with Spark's own Kafka source (needs Java, about twelve minutes)
	@PYTHONPATH=$(abspath benchmarks):$(abspath tests/servers) $(PY) -P benchmarks/kafka_throughput.py $(BENCH_ARGS)

soak: java $(STAMPS)/dev $(STAMPS)/installed $(STAMPS)/no-zip ## Run the long tests: gigabytes, many seeds, fresh environments (needs Java)
ifdef PYTEST_ARGS
	@$(SOAK) $(PYTEST_ARGS)
else
	@$(SOAK) $(ALL_BUT_KAFKA); rest=$$?; $(SOAK) $(KAFKA); failed=$$?; exit $$((rest ? rest : failed))
endif

kit-table: $(STAMPS)/dev $(STAMPS)/installed ## Judge a broken connector for each check of the kit, and print which checks catch it
	@PYTHONPATH=tests/connectors $(PY) -P -m kit_connectors.table

public-names: $(STAMPS)/dev $(STAMPS)/installed ## Write the list of public names that a test guards
	@$(PY) -P tests/project/public_names.py > tests/golden/data/public_names.txt

docs: $(STAMPS)/docs ## Build the documents as a site into build/site, and check every link
	@NO_MKDOCS_2_WARNING=1 $(PY) -P -m mkdocs build

comparison: java $(STAMPS)/runtime $(STAMPS)/installed ## Run the source of docs/comparison.md in each framework (the first time this downloads them)
	@$(PY) -P benchmarks/comparison/compare.py

dist: $(STAMPS)/builder ## Build wheel and sdist into dist/, and check that both are the same each time
	@rm -rf dist build/again && for to in dist build/again; do $(PY) -m hatchling build -d $$to > /dev/null 2>&1 || exit 1; done
	@diff -r dist build/again || { echo "two builds differ" >&2; exit 1; }
	@$(PY) -m pip wheel -q --no-deps --no-build-isolation -w build/again/of-sdist dist/*.tar.gz
	@cmp dist/*.whl build/again/of-sdist/*.whl || { echo "the wheel of the sdist differs" >&2; exit 1; }
	@cd dist && sha256sum *

clean: ## Remove what the other targets made
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse
	@find tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
	@if [ -d $(STAMPS) ]; then rm -rf $(VENV); fi

# -- set-up

java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	text=$$("$$java" -version 2>&1) || { \
		echo "Spark needs Java 17 or newer, and \`$$java -version\` does not run." >&2; \
		echo "Install a JDK (Debian, Ubuntu: apt install openjdk-17-jre-headless) or set JAVA_HOME to one." >&2; exit 1; }; \
	major=$$(printf '%s\n' "$$text" | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${major:-0}" -lt 17 ]; then \
		echo "Spark needs Java 17 or newer; \`$$java -version\` says:" >&2; printf '%s\n' "$$text" >&2; \
		echo "Install a newer JDK or set JAVA_HOME to one." >&2; exit 1; fi

# Newest first among those the tests have run on, then whatever there is.
$(STAMPS)/venv:
	@for name in $(or $(PYTHON),python3.13 python3.12 python3.11 python3.14 python3 python); do \
		if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$name"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "forebay needs Python 3.11 or newer; $(or $(PYTHON),python3) is: $$($(or $(PYTHON),python3) --version 2>&1)." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$("$$found" --version) ($$found) has no venv module, which makes $(VENV)." >&2; \
		echo "Install it (Debian, Ubuntu: apt install python3-venv), or name another Python: make PYTHON=..." >&2; exit 1; fi; \
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/builder: $(STAMPS)/venv
	@$(PY) -m pip install -q uv 2> /dev/null || true
	@$(INSTALL) $$($(PY) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])")
	@touch $@

# A file that is gone changes the list, as one that is new or newer does.
build/sources: FORCE
	@mkdir -p build && echo '$(sort $(SOURCES))' | cmp -s - $@ || echo '$(sort $(SOURCES))' > $@

build/wheel/stamp: pyproject.toml LICENSE $(wildcard README.md) $(SOURCES) build/sources | $(STAMPS)/builder
	@rm -rf build/wheel
	@$(PY) -m pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	@touch $@

$(STAMPS)/docs: pyproject.toml $(STAMPS)/venv
	@$(INSTALL) $$($(PY) -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['docs'])")
	@touch $@

# Python compiles the modules that are imported, and nobody compiles all.
$(STAMPS)/runtime: pyproject.toml $(STAMPS)/venv | build/wheel/stamp
	@echo "installing what forebay needs; the first time this downloads Spark (about 0.5 GB)"
	@$(INSTALL) "$(WHEEL)[all]" $(PYSPARK)
	@touch $@

$(STAMPS)/dev: pyproject.toml $(STAMPS)/venv | build/wheel/stamp
	@echo "installing what forebay and its tests need; the first time this downloads Spark (about 0.5 GB)"
	@$(INSTALL) "$(WHEEL)[all,dev]" $(PYSPARK)
	@touch $(STAMPS)/runtime $@

$(STAMPS)/installed: build/wheel/stamp $(STAMPS)/venv | $(STAMPS)/builder
	@$(PY) -m pip install -q --no-index --no-deps --force-reinstall $(WHEEL)
	@touch $@

$(STAMPS)/no-zip: $(STAMPS)/dev
	@rm -rf $(NO_ZIP) && mkdir $(NO_ZIP)
	@spark=$$($(PY) -P -c 'import os, pyspark; print(os.path.dirname(pyspark.__file__))'); \
	ln -s "$$spark/bin" "$$spark/jars" "$$spark/sbin" $(NO_ZIP)
	@touch $@

# Spark runs once and writes the archive of its classes when it ends.
$(STAMPS)/classes: $(STAMPS)/no-zip | $(STAMPS)/installed
	@echo "writing an archive of Spark's classes"
	@rm -f $(CLASSES)
	@SPARK_HOME=$(NO_ZIP) SPARK_SUBMIT_OPTS='$(JVM) -XX:ArchiveClassesAtExit=$(CLASSES)' $(PY) -P tests/spark/load_classes.py > build/classes.txt 2>&1 || \
		echo "there is none (build/classes.txt): the tests start slower" >&2
	@touch $@

# And so does a broker of Kafka.
$(STAMPS)/kafka-classes: $(STAMPS)/dev | $(STAMPS)/installed
	@echo "writing an archive of Kafka's classes"
	@rm -f $(KAFKA_CLASSES)
	@FOREBAY_KAFKA_OPTS='-Xlog:disable -XX:ArchiveClassesAtExit=$(KAFKA_CLASSES)' $(PY) -P -W ignore tests/kafka/load_classes.py \
		> build/kafka-classes.txt 2>&1 || echo "there is none (build/kafka-classes.txt): brokers start slower" >&2
	@touch $@

FORCE:
