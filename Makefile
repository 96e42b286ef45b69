# Every target sets up what it needs first (scripts/setup.sh, as root).
SHELL := /bin/sh
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
LAB := target/release/vsnoop-lab
PREFIX := /usr/local
PROGRAM := target/release/vsnoop
SHARE := $(DESTDIR)$(PREFIX)/share
UNITS := $(DESTDIR)$(PREFIX)/lib/systemd/system
DOC := $(SHARE)/doc/vsnoop
BASH_COMPLETION := $(SHARE)/bash-completion/completions/vsnoop
ZSH_COMPLETION := $(SHARE)/zsh/site-functions/_vsnoop
FISH_COMPLETION := $(SHARE)/fish/vendor_completions.d/vsnoop.fish

.PHONY: help setup build build-lab demo lab sim quick check test test-package test-report soak bench fuzz install deb tarball image check-deploy clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup: ## packages, toolchain, BPF file system; safe to repeat
	@sh scripts/setup.sh

build: setup ## the vsnoop command
	cargo build --release --locked

build-lab: setup
	cargo build --release --locked -p vsnoop -p vsnoop-lab -p vsnoop-guest

# It needs no links: they are a third of what there is to compile (decision 40).
demo: setup ## uploads to a web server in a VM that is short of CPU; results/demo/
	cargo build --release --locked --no-default-features -p vsnoop -p vsnoop-lab -p vsnoop-guest
	$(LAB) run demo

lab: build-lab ## an experiment: make lab RUN=NAME (vsnoop-lab list)
	case " $(RUN) " in *' link-'*|*' all '*) sh scripts/peers.sh ;; esac
	$(LAB) run $(RUN)

quick: ## what needs no root, no BPF and no VM; two minutes from a built tree
	@sh scripts/quick.sh

sim: setup ## a forecast of incast control to 100 Gb/s, in ns-3: make sim RUN="--series rates"; results/sim/
	@sh scripts/sim.sh $(RUN)

check: setup ## formatting, lints, C warnings, SPECIFICATION.md, dependencies; under two minutes
	@sh scripts/check.sh
	cargo test --quiet --release --locked -p vsnoop-checks

test: setup ## all checks and tests; the last line counts them
	@sh scripts/coexistence.sh
	@sh scripts/test.sh

test-package: build ## the Debian package in a machine: installed, upgraded, removed; some minutes
	VSNOOP_PACKAGE_TEST=1 cargo test --release --locked -p vsnoop-tests --test package -- --nocapture

test-report: ## the page of results/ in a browser, without a network; pictures in results/page/
	cargo build --release --locked -p vsnoop-lab
	$(LAB) report
	sh scripts/report.sh

soak: setup ## long searches and simulations: make soak STATES=1000000 SEEDS=500
	sh scripts/soak.sh $(or $(STATES),1000000) $(or $(SEEDS),500)

bench: setup ## costs and throughput; results/bench/
	cargo build --release --locked -p vsnoop -p vsnoop-bench
	target/release/vsnoop-bench

fuzz: ## each fuzz target for 20 s, or: make fuzz SECONDS=600 TARGETS="link_item link_offload"
	@sh scripts/fuzz.sh $(or $(SECONDS),20) $(TARGETS)

install: build ## command, unit, manual pages, documents and completions, to $(DESTDIR)$(PREFIX)
	install -D -m 755 $(PROGRAM) $(DESTDIR)$(PREFIX)/sbin/vsnoop
	install -d $(UNITS) $(DOC)/deploy
	sed 's|/usr/local|$(PREFIX)|' deploy/vsnoop.service >$(UNITS)/vsnoop.service
	$(PROGRAM) man $(SHARE)/man/man8
	cp -R README.md ARCHITECTURE.md CONTRIBUTING.md SPECIFICATION.md SECURITY.md CHANGELOG.md LICENSE \
		docs $(DOC)
	cp -R deploy/vsnoop.service deploy/vsnoop.toml deploy/kubernetes deploy/container deploy/libvirt \
		deploy/grafana deploy/prometheus $(DOC)/deploy
	sed -i 's|/usr/local|$(PREFIX)|' $(DOC)/deploy/vsnoop.service $(DOC)/docs/examples/link/*.service
	install -d $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION))
	$(PROGRAM) completions bash >$(BASH_COMPLETION)
	$(PROGRAM) completions zsh >$(ZSH_COMPLETION)
	$(PROGRAM) completions fish >$(FISH_COMPLETION)

deb: build ## the Debian package, checked by lintian, in build/deb/: make deb VERSION=0.1.0
	sh scripts/deb.sh $(VERSION)

tarball: setup ## an archive of what make install installs, static, in build/tarball/
	sh scripts/static.sh
	sh scripts/tarball.sh target/$$(uname -m)-unknown-linux-musl/release/vsnoop

image: build ## context of the container image, and the image if a builder is there; build/image/
	sh scripts/image.sh

check-deploy: ## manifests of deploy/kubernetes, against the schemas of the API
	sh scripts/check-deploy.sh

clean: ## build output, guest image and results
	rm -rf target build results
