# Two commands for newcomers: `make demo` and `make test`. Everything is installed into .venv.
# `make test-all` is what `make test` leaves out, and the tests on real servers.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
ARGS ?=

# Files and folders that `make test` runs, for each commit: the core, and each way end to end. The longest first.
TESTS := tests/simulation/test_some_seeds.py tests/spark/test_source.py tests/integration/security/test_drivers.py \
	tests/integration/test_facade_drivers.py tests/conformance tests/recordings tests/unit tests/site

# Tests at a time, for two processors: many wait. Those on real servers mostly do: each process has a cluster of its own.
JOBS ?= 3
REAL_JOBS ?= 3
# A group is run by one process. Files start in the order given, the longest first; by default, groups of many tests would.
SHARED := --dist loadgroup --no-loadscope-reorder
# A process that begins the last two tests of a group is given the next file, which waits for it: after the longest tests,
# and at the end, come files of short ones without a group.
REAL_TESTS := tests/spark/test_exactly_once.py tests/spark/test_unreadable.py tests/filters \
	tests/drivers tests/faults tests/differential tests/debezium tests/integration tests/conformance

# A wait that expires is tried once more, since the machine may have been busy, and is reported; so is Spark's wait of ten
# seconds for a Python process. Other failures are final.
RETRIES := --reruns 1 --only-rerun "timed out waiting|TimeoutError|TimeoutExpired|worker to connect back" -r aR

# What pytest-rest leaves out: TESTS, and where there are real servers, what pytest-real has run on them. The embedded
# cluster's own tests run on it in any case.
LEFT_OUT := $(TESTS)
REAL_SERVERS := $(MERGEROUTER_MONGO_BIN)$(MERGEROUTER_MONGO_IMAGE)
EMBEDDED := env -u MERGEROUTER_MONGO_BIN -u MERGEROUTER_MONGO_IMAGE
ifneq ($(REAL_SERVERS),)
LEFT_OUT += $(filter-out tests/integration, $(REAL_TESTS)) \
	$(filter-out %/test_embedded.py %/conftest.py %/__init__.py, $(wildcard tests/integration/*))
endif
# What it looks through, the longest first.
REST := tests/spark $(filter-out tests/spark tests/__pycache__ $(LEFT_OUT), $(patsubst %/,%,$(wildcard tests/*/)))

# Each program that a test starts would compile the project again.
export PYTHONDONTWRITEBYTECODE =

SEEDS ?= 1000
MINUTES ?= 30
CLIENTS ?= 10000
KILL_SEEDS ?= 10
SPARK_ZIP ?= build/spark_sink.zip
IMAGE ?= localhost/mergerouter:latest
LOCK := --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header

.PHONY: help format demo test test-all lint typecheck fetch pytest pytest-rest pytest-real bench simulate differential \
	debezium soak attack faults spark-kills driver-tests spark-zip site site-address dist \
	sbom lock image image-test licences audit clean install

test: lint typecheck fetch  ## before each commit: lint, type-check, test the core and each way end to end
	$(EMBEDDED) $(BIN)/pytest $(SHARED) $(RETRIES) --numprocesses $(JOBS) $(TESTS) $(ARGS)

test-all: fetch pytest-real pytest-rest  ## all other tests, and those with clusters on real servers

demo: install  ## start everything, show the merge at work, end with a verdict
	$(BIN)/mergerouter demo $(ARGS)

bench: install  ## measure; tables under build/bench, of whole runs on real servers under bench/results
	$(BIN)/python -m bench $(ARGS)

simulate: install  ## SEEDS seeds of the whole process in virtual time, with faults; ARGS="--shards 64" for many shards
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --jobs 2 $(ARGS)

differential: install  ## random streams through mongos and through the router, on real servers
	$(BIN)/python -m tests.differential --seeds $(SEEDS) $(ARGS)

debezium: install  ## SEEDS workloads, Debezium's own engine through mongos and router beside our messages; real servers
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[embedded,spark,dev,debezium]'
	$(BIN)/python -m tests.debezium --seeds $(SEEDS) $(ARGS)

attack: install  ## healthy clients and memory beside each attack, router and mongos in turn; real servers
	$(BIN)/python -m tests.attack $(ARGS)

soak: install  ## what takes too long for every run: CLIENTS=10000 that connect, stall and disconnect
	MERGEROUTER_SOAK=$(CLIENTS) $(BIN)/pytest tests/integration/test_clients_that_go.py -k leave_nothing_behind $(ARGS)

faults: install  ## MINUTES of faults on real replica sets of three members, under load
	$(BIN)/python -m tests.faults --minutes $(MINUTES) $(ARGS)

spark-kills: install  ## KILL_SEEDS jobs of Spark under random writes, kills, migrations and a new shard
	$(BIN)/python -m tests.spark.kills --seeds $(KILL_SEEDS) $(ARGS)

driver-tests: install  ## pymongo's own change stream tests, through the router
	$(BIN)/pytest tests/drivers --mongos-too $(ARGS)

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | sort | expand -t 16

format: install  ## format, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

spark-zip:  ## build/spark_sink.zip, for spark-submit --py-files
	mkdir -p $(dir $(SPARK_ZIP))
	rm -f $(SPARK_ZIP)
	$(PYTHON) -m zipfile -c $(SPARK_ZIP) spark_sink shard_client

lint: install  ## style, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

typecheck: install  ## mypy --strict
	$(BIN)/mypy

fetch: install  ## what the tests use of other projects: pymongo's tests, Node's packages
	$(BIN)/python -m tests.drivers.fetch

# Java's classes, which all sessions of Spark in these tests map.
pytest-rest pytest-real: build/spark.jsa
build/spark.jsa: $(VENV)/.installed
	mkdir -p $(dir $@)
	-timeout 120 $(BIN)/python -m tests.spark.quick_session 2>$@.log

pytest: install  ## tests; ARGS goes to pytest
	$(BIN)/pytest $(ARGS)

pytest-rest: install  ## the tests that `make test` and pytest-real leave out, on the embedded cluster
	@echo "== the tests that have not run yet, on the embedded cluster"
	$(EMBEDDED) $(BIN)/pytest $(SHARED) $(RETRIES) --numprocesses $(JOBS) $(addprefix --ignore=,$(LEFT_OUT)) \
		$(REST) $(ARGS)

pytest-real: install  ## the tests with clusters, on real servers where MERGEROUTER_MONGO_BIN or _IMAGE names them
ifneq ($(REAL_SERVERS),)
	@echo "== tests with clusters, on real servers"
	$(BIN)/pytest $(SHARED) $(RETRIES) --numprocesses $(REAL_JOBS) $(REAL_TESTS) $(ARGS)
else
	@echo "== tests on real servers: skipped, as neither MERGEROUTER_MONGO_BIN nor MERGEROUTER_MONGO_IMAGE is set"
endif

install: $(VENV)/.installed

# Remade when the dependencies change; the project itself is installed in place.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[embedded,spark,dev]'
	touch $@

site: install  ## the documentation site, under build/site
	$(BIN)/mkdocs build

site-address:  ## SITE, the address of your copy of the site, in mkdocs.yml, the alerts and the unit
	@test -n "$(SITE)" || { echo "make site-address SITE=https://docs.example.com/mergerouter" >&2; exit 1; }
	old=$$(sed -n 's,^site_url: \(.*\)/$$,\1,p' mkdocs.yml) && sed -i "s,$$old/,$(SITE:/=)/,g" \
		mkdocs.yml deploy/prometheus/alerts.yaml deploy/mergerouter.service

dist: install  ## wheel and source distribution under dist, equal for equal commits
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation

lock:  ## pin the packages of image and unit by their hashes, to the newest versions
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv
	build/lock/bin/uv pip compile $(LOCK) --extra otel pyproject.toml -o deploy/requirements.txt
	sed -n 's/^requires = \["\(hatchling.*\)"\]/\1/p' pyproject.toml \
		| build/lock/bin/uv pip compile $(LOCK) - -o deploy/build-requirements.txt

image: install  ## the image, with buildah and mmdebstrap instead of Docker; as root
	deploy/build-image.sh $(IMAGE) $(BIN)/python

image-test: install  ## start the image on a cluster: health, user, read-only file system
	$(BIN)/python -m tests.packaging.image $(IMAGE)

sbom: dist  ## the parts of an installed wheel, as CycloneDX: build/sbom.json
	rm -rf build/sbom build/cyclonedx
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	$(PYTHON) -m venv build/cyclonedx
	build/cyclonedx/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom
	build/cyclonedx/bin/cyclonedx-py environment --output-file build/sbom.json build/sbom/bin/python

licences: install  ## the licences of all packages that users install
	$(BIN)/python -m tests.packaging.licences

audit: install  ## known vulnerabilities of the installed packages; needs PyPI's own service
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --strict --skip-editable \
		|| { echo "make audit: see above; 'could not be audited' means that the package index has no data on vulnerabilities" >&2; exit 1; }

clean:  ## remove what make has made
	rm -rf $(VENV) build dist *.egg-info
