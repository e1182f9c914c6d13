# Run "make help". Nothing here needs root, Docker or an AWS account.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Tools that are not in go.mod. Their versions are only set here.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
ACTIONLINT  := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
VALE        := github.com/errata-ai/vale/v3/cmd/vale@v3.19.0
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
GORELEASER  := github.com/goreleaser/goreleaser/v2@v2.14.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0

ADDR     ?= 127.0.0.1:8080
PKG      ?= ./...
TESTLOG  := build/test.json
# Simulations run without the race detector, because they take ten times as long with it. SIMULATIONS matches the names of
# these tests, and SIMULATED lists their packages.
SIMULATIONS := ^($(shell sed -n 's/^func \(Test[A-Za-z0-9_]*\).*/\1/p' $$(find shared -name '*simulation_test.go') | paste -sd '|'))$$
SIMULATED = $$(go list $(PKG) | grep -xF "$$(go list $(addprefix ./,$(sort $(dir $(shell find shared -name '*simulation_test.go')))))" || true)
FUZZTIME ?= 20s
SOAK     ?= 10m
CHAOS    ?= 1h
CACHE    ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mcp-events
VENV     := $(CACHE)/lint-$(shell cksum < tools/lint.txt | cut -d' ' -f1)

export SAM_CLI_TELEMETRY := 0

# These flags make builds faster:
# - modernc.org's SQLite is compiled without the race detector. It is C translated to Go, so the detector would make it ten
#   times slower without finding a fault of ours.
# - The compiler leaves out debug information, which would take a fifth of its time.
# - With -trimpath, the path of the folder is not part of a package, so all clones of the repository share the build cache.
# If a test runs make, GOFLAGS already has these flags, and they are not added again.
GIVEN := $(GOFLAGS)
FLAGS := -trimpath -gcflags=all=-dwarf=false '-gcflags=modernc.org/...=-dwarf=false -race=false'
export GOFLAGS := $(GIVEN) $(if $(findstring $(FLAGS),$(GIVEN)),,$(FLAGS))

# By default, a process with the race detector sleeps for a second before it ends. The tests start hundreds of processes.
export GORACE := atexit_sleep_ms=50 $(GORACE)

# Only the race detector needs cgo, and releases do not use it. Because tests, linters, servers and functions have the same
# setting, each package is compiled only once for all of them.
GIVEN_CGO := $(CGO_ENABLED)
export CGO_ENABLED := 0

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: run
# It uses the same flags as "go install", which is the next step in the README, so that this step does not compile again.
run: export GOFLAGS := $(GIVEN)
run: export CGO_ENABLED := $(GIVEN_CGO)
run: ## serve the sample catalog on 127.0.0.1:8080 (development: any webhook target)
	go run ./cmd/mcpevents serve --addr $(ADDR) --data data --catalog catalog.yaml --allow-insecure-targets

.PHONY: build
build: ## build the command line into bin/
	go build -trimpath -pgo=packaging/server.pgo -o bin/mcpevents ./cmd/mcpevents

# Slow tests, which only make test-full runs. It fails if one of them does not exist.
LATER := TestSAMBuild TestDeployAndRollBackUnderTraffic \
  TestConversationOnLocalAWS TestReplayOnAWS TestHangingEndpointsOnAWS TestManagedInstance TestSoak \
  TestShortRetentionOnAWS TestRateOfOneSubscriberOnAWS TestAllReleasesBuild TestChaosOnAWS \
  TestBackendEventsAtHandOversOnAWS TestManyDeliveriesWhileFunctionsAreKilledOnAWS
empty :=
LATERS := ^($(subst $(empty) ,|,$(strip $(LATER))))$$

# OUTER are the black-box tests. They start servers and emulators and mostly wait for them, so several packages run at the same
# time, the longest ones first. INNER are all other tests, which run before them. The package fleet belongs to
# INNER, because the servers that it tests run in its own process. It mostly waits too, so it runs first and not alone at the
# end. The tools belong to OUTER, because they run go commands, which find most packages compiled only if they are compiled as
# for the servers.
INNER = $$(go list $(PKG) | awk '!/mcpevents\/(test\/|tools\/|functions$$)/ || /\/test\/fleet$$/ \
  {print /\/test\/fleet$$/ ? 1 : 2, $$1}' | sort -s -k1,1 | cut -d' ' -f2)
OUTER = $$(go list $(PKG) | awk '/mcpevents\/(test\/|tools\/|functions$$)/ && !/\/test\/fleet$$/ \
  {print /e2e$$/ ? 1 : /functions$$/ ? 2 : /interop$$/ ? 3 : /test\/(chaos|conformance|console|property)$$/ ? 4 : /test\/docs$$/ ? 5 : 6, $$1}' | \
  sort | cut -d' ' -f2)

.PHONY: test
test: prerequisites ## run the tests, against real emulators (PKG=./shared/… for a part)
	@{ code=0; inner="$(INNER)"; outer="$(OUTER)"; \
	  [ -z "$$inner" ] || go test -vet=all -count=1 -timeout 20m -p 4 -json -skip '$(LATERS)' $$inner || code=1; \
	  [ -z "$$outer" ] || go test -vet=all -count=1 -timeout 20m -p 3 -parallel 4 -json -skip '$(LATERS)' $$outer || code=1; \
	  exit $$code; } | go run ./tools/testview -left '$(LATER)'

# If only some test files of a package need emulators, these files have the line //go:build !noemulators.
# The package that waits the longest is the first one.
.PHONY: check
check: ## vet, and run the tests that need no emulator, without simulations, while you work
	go test -tags noemulators -vet=all -p 6 -parallel 8 -skip '$(SIMULATIONS)' $$(go list -tags noemulators -f '{{.ImportPath}} {{join .TestImports ","}},{{join .XTestImports ","}}' ./... | grep -vE '/test/(awslocal|harness|interop)' | awk '{print /client\/check / ? 1 : 2, $$1}' | sort -s -k1,1 | cut -d' ' -f2)
	@echo "not run: the tests that need emulators, and $(words $(subst |, ,$(SIMULATIONS))) simulations"

# The race detector checks all code except the functions and the processes of the black-box tests. A function serves one
# request at a time and shares its code with the server. The processes of black-box tests are clients of a server that has
# the race detector.
.PHONY: test-full
test-full: prerequisites ## run all tests, with the race detector except for simulations
	@{ code=0; inner="$(INNER)"; simulated="$(SIMULATED)"; outer="$(OUTER)"; \
	  [ -z "$$inner" ] || CGO_ENABLED=1 go test -exec "$(CURDIR)/tools/racetest" -vet=off -race -count=1 -timeout 25m -p 3 -json $$inner || code=1; \
	  [ -z "$$simulated" ] || go test -vet=off -count=1 -timeout 14m -json -run '$(SIMULATIONS)' $$simulated || code=1; \
	  [ -z "$$outer" ] || MCPEVENTS_TEST_RACE=1 go test -vet=off -count=1 -timeout 25m -p 3 -parallel 4 -json $$outer || code=1; \
	  exit $$code; } | go run ./tools/testview $(if $(filter ./...,$(PKG)),-log $(TESTLOG) -with '$(LATER)')

.PHONY: test-release
test-release: ## run all tests like make test-full, with the large ones (kills under load, fan-out) at their full size
	MCPEVENTS_TEST_FULL=1 $(MAKE) test-full

# The tests install most of the software that they need (DynamoDB Local, ElasticMQ, MiniStack, npm and Python packages) in the
# user's cache directory, and Chromium with apt-get if they run as root. They cannot install the programs in this list.
.PHONY: prerequisites
prerequisites:
	@missing=; for program in go gcc git java javac mvn node npm python3; do \
	  command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; } || missing="$$missing chromium"; \
	if [ -n "$$missing" ]; then \
	  echo "the tests need, and this machine lacks:$$missing (see \"Prerequisites\" in README.md)" >&2; exit 1; fi

.PHONY: lint
lint: lint-go lint-docs lint-prose lint-vulnerabilities lint-template lint-workflows site ## check form, correctness, documentation, prose, known vulnerabilities, the template, the admin API's document, the workflows and the site

.PHONY: lint-go
lint-go:
	go vet ./...
	go run $(STATICCHECK) ./...
	@unformatted=$$(go run $(GOFUMPT) -l .); if [ -n "$$unformatted" ]; then \
	  echo "not formatted by gofumpt (make format):"; echo "$$unformatted"; exit 1; fi

.PHONY: lint-workflows
lint-workflows:
	go run $(ACTIONLINT) -color=false .github/workflows/*.yml

.PHONY: lint-docs
lint-docs:
	go run ./tools/docs
	go test -count=1 -run '^TestTheCommandsOfThePagesParse$$|^TestTheSettingsAreDocumented$$' ./cmd/mcpevents

# docs/internals/conformance.md is generated.
.PHONY: lint-prose
lint-prose:
	@files=$$(git ls-files '*.go' '*.md' | grep -v -e /testdata/ -e '^docs/internals/conformance.md$$'); \
	CGO_ENABLED=1 go run $(VALE) $$files && CGO_ENABLED=1 go run $(VALE) --config .vale/functions.ini $$(grep '\.go$$' <<<"$$files")

# The vulnerability database is on the network. If it cannot be reached, the check prints that and does not fail.
.PHONY: lint-vulnerabilities
lint-vulnerabilities:
	@out=$$(go run $(GOVULNCHECK) ./... 2>&1) && code=0 || code=$$?; \
	if [ $$code -ne 0 ] && grep -q '^govulncheck: fetching vulnerabilities' <<<"$$out"; then \
	  echo "govulncheck: NOT CHECKED, the vulnerability database cannot be reached from here:"; \
	  grep '^govulncheck: fetching' <<<"$$out" | sed 's/^/  /'; \
	else echo "$$out"; exit $$code; fi

.PHONY: lint-template
lint-template: $(VENV)/installed
	$(VENV)/bin/cfn-lint template.yaml
	$(VENV)/bin/sam validate --lint --region us-east-1 --template template.yaml
	go run ./tools/openapi >$(VENV)/openapi.json
	$(VENV)/bin/openapi-spec-validator $(VENV)/openapi.json

# Linters and tests may need this environment at the same time. With the lock, only one of them creates it.
LOCKED := python3 -c 'import fcntl, subprocess, sys; lock = open(sys.argv[1], "w"); fcntl.flock(lock, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[2:]))'

$(VENV)/installed:
	mkdir -p $(CACHE)
	$(LOCKED) $(VENV).lock bash -ec '[ ! -e $@ ] || exit 0; \
	  python3 -m venv $(VENV); $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-input -r tools/lint.txt; touch $@'

SITE := $(CACHE)/site-$(shell cksum < tools/site/requirements.txt | cut -d' ' -f1)

$(SITE)/installed:
	mkdir -p $(CACHE)
	$(LOCKED) $(SITE).lock bash -ec '[ ! -e $@ ] || exit 0; \
	  python3 -m venv $(SITE); $(SITE)/bin/pip install --quiet --disable-pip-version-check --no-input -r tools/site/requirements.txt; touch $@'

# mkdocs.yml says that a link or an anchor that does not exist is an error.
.PHONY: site
site: $(SITE)/installed ## build the documentation as a web site in build/site, and check its links
	NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 $(SITE)/bin/mkdocs build --clean 2>&1 | { grep -v "^INFO" || true; }

# The first run takes minutes, because it compiles the release tool.
.PHONY: lint-release
lint-release: ## check the configuration of releases, with the release tool
	GOFLAGS= go run $(GORELEASER) check

.PHONY: snapshot
snapshot: ## build the files of a release into dist/ and build/bundle/, without publishing
	GOFLAGS= go run $(GORELEASER) release --snapshot --clean

# The tag to release, for example v0.1.0. Only the workflow of releases sets it.
NOTES_OF ?=
.PHONY: release
release:
	mkdir -p build && .ci/release-notes "$(NOTES_OF)" >build/notes.md
	GOFLAGS= go run $(GORELEASER) release --clean --release-notes build/notes.md

.PHONY: format
format: ## format the Go code
	go run $(GOFUMPT) -w .

.PHONY: bench
bench: build ## run the benchmarks of the packages, and then measure the server from publish to webhook
	go test -run '^$$' -bench . -benchmem ./shared/...
	bin/mcpevents bench
	bin/mcpevents bench --batch 10
	bin/mcpevents bench --rate 500 --uris 10
	bin/mcpevents bench --events 500 --subscribers 100
	bin/mcpevents bench --latency
	bin/mcpevents bench --events 400 --rate 40 --subscribers 19 --hang 1
	bin/mcpevents bench --gateway

.PHONY: profile
profile: build ## measure again where the server spends its time; the compiler optimizes builds by the result (packaging/server.pgo)
	@mkdir -p build/profile
	bin/mcpevents bench --events 60000 --cpu-profile build/profile/singles
	bin/mcpevents bench --rate 500 --uris 10 --events 6000 --cpu-profile build/profile/steady
	bin/mcpevents bench --events 2000 --subscribers 100 --cpu-profile build/profile/fanout
	bin/mcpevents bench --gateway --calls 4000 --cpu-profile build/profile/gateway
	go tool pprof -proto build/profile/* >packaging/server.pgo

.PHONY: soak
soak: ## let 50 clients use backends on three official SDKs for SOAK (10m), and check that no message is missing
	MCPEVENTS_SOAK=$(SOAK) go test -count=1 -v -run '^TestSoak$$' -timeout 4h ./test/soak

.PHONY: soak-fleet
soak-fleet: ## let 50 clients call good and bad backends through two instances for SOAK (10m)
	MCPEVENTS_SOAK=$(SOAK) CGO_ENABLED=1 go test -race -count=1 -v -run TestSoak -timeout 60m ./test/fleet

.PHONY: soak-fleet-aws
soak-fleet-aws: ## the same through the functions on local AWS
	MCPEVENTS_SOAK=$(SOAK) MCPEVENTS_SOAK_ON=aws go test -count=1 -v -run TestSoak -timeout 60m ./test/fleet

.PHONY: chaos
chaos: prerequisites ## publish for CHAOS (1h) while the server, clients and endpoints fail, and check that no event is lost
	MCPEVENTS_CHAOS=$(CHAOS) go test -count=1 -v -run '^TestChaos$$' -timeout 4h ./test/chaos

.PHONY: chaos-aws
chaos-aws: prerequisites ## the same through the functions on local AWS
	MCPEVENTS_CHAOS=$(CHAOS) go test -count=1 -v -run '^TestChaosOnAWS$$' -timeout 4h ./test/chaos

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (20s)
	@for pkg in $$(go list $(PKG)); do \
	  for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$target"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; done; done

# LOCAL has the arguments of ./localstack. With the default, anyone can call the server and receive webhooks anywhere, so use
# it only on your own machine.
LOCAL ?= -p Auth=none -p AllowInsecureTargets=true -p StreamConcurrency=1000

.PHONY: local-aws
local-aws: ## run the real functions on 127.0.0.1:8080, with an emulator of AWS
	@if [ -z "$${AWS_ENDPOINT_URL:-}" ]; then \
	  mkdir -p build; echo "starting an emulator; its output is in build/emulator.log"; \
	  set -m; coproc EMULATOR { exec localstack/start.sh 2>build/emulator.log; }; emulator=$$EMULATOR_PID; set +m; \
	  trap 'kill $$emulator 2>/dev/null || true; wait $$emulator 2>/dev/null || true' EXIT; \
	  for _ in 1 2 3 4; do read -r line <&"$${EMULATOR[0]}" || { cat build/emulator.log; exit 1; }; eval "$$line"; done; \
	fi; go run ./localstack $(LOCAL)

ARCHITECTURE ?= arm64

# SAM's cache is off, because it only looks at the function's folder and go.mod. If only shared/ had changed, it would deploy an
# old binary. The Go compiler has a cache of its own, which notices such changes.
.PHONY: sam-build
sam-build: $(VENV)/installed ## build the functions for deployment
	GOFLAGS='"-ldflags=-s -w" -trimpath -gcflags=all=-dwarf=false -tags=lambda.norpc' $(VENV)/bin/sam build --no-cached --template template.yaml --parameter-overrides Architecture=$(ARCHITECTURE)

# Unlike local-aws, which reads the template itself, this uses LocalStack's CloudFormation. Its Lambda runs code for the
# machine's own architecture.
.PHONY: local-deploy
local-deploy: ARCHITECTURE = $(if $(filter arm64 aarch64,$(shell uname -m)),arm64,x86_64)
local-deploy: sam-build ## deploy the template to LocalStack (docs/how-to/deploy-to-aws.md)
	export AWS_ENDPOINT_URL="$${AWS_ENDPOINT_URL:-http://127.0.0.1:4566}" AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_DEFAULT_REGION=us-east-1; \
	$(VENV)/bin/sam deploy --stack-name mcp-events-local --resolve-s3 --no-confirm-changeset --capabilities CAPABILITY_IAM \
	  --parameter-overrides Architecture=$(ARCHITECTURE) Auth=none AllowInsecureTargets=true StreamConcurrency=100

# Prints the path of the pinned SAM, for the tests.
.PHONY: sam-path
sam-path: $(VENV)/installed
	@echo $(VENV)/bin/sam

$(TESTLOG):
	$(MAKE) test-full

.PHONY: conformance
conformance: prerequisites ## run the official conformance suite of MCP through the gateway, and print the scores
	go test -count=1 -v -timeout 10m ./test/conformance | grep -v '^ *=== '

.PHONY: conformance-table
conformance-table: $(TESTLOG) ## write docs/internals/conformance.md from the last make test-full
	go run ./tools/conformance -log $(TESTLOG)

.PHONY: permissions
permissions: ## write docs/internals/permissions.md from template.yaml
	go run ./tools/permissions

.PHONY: clean
clean: ## remove all build results
	rm -rf bin build dist .aws-sam
