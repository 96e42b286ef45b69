# Every target sets up what it needs first (scripts/setup.sh, as root).
SHELL := /bin/sh
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
LAB := target/release/vsnoop-lab
SHARE := $(DESTDIR)/usr/local/share
UNITS := $(DESTDIR)/usr/local/lib/systemd/system
BASH_COMPLETION := $(SHARE)/bash-completion/completions/vsnoop
ZSH_COMPLETION := $(SHARE)/zsh/site-functions/_vsnoop
FISH_COMPLETION := $(SHARE)/fish/vendor_completions.d/vsnoop.fish

.PHONY: help setup build build-lab demo lab check test soak bench fuzz install clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

setup: ## packages, toolchain, BPF file system; safe to repeat
	@sh scripts/setup.sh

build: setup ## the vsnoop command
	cargo build --release --locked

build-lab: setup
	cargo build --release --locked -p vsnoop -p vsnoop-lab -p vsnoop-guest

demo: build-lab ## uploads to a web server in a VM that is short of CPU; results/demo/
	$(LAB) run demo

lab: build-lab ## an experiment: make lab RUN=NAME (vsnoop-lab list)
	case " $(RUN) " in *' link-'*|*' all '*) sh scripts/peers.sh ;; esac
	$(LAB) run $(RUN)

check: setup ## formatting, lints, C warnings, SPECIFICATION.md, dependencies; under two minutes
	@sh scripts/check.sh
	cargo test --quiet --release --locked -p vsnoop-checks

test: setup ## all checks and tests; the last line counts them
	@sh scripts/test.sh

soak: setup ## long searches and simulations: make soak STATES=1000000 SEEDS=500
	sh scripts/soak.sh $(or $(STATES),1000000) $(or $(SEEDS),500)

bench: setup ## costs and throughput; results/bench/
	cargo build --release --locked -p vsnoop -p vsnoop-bench
	target/release/vsnoop-bench

fuzz: ## each fuzz target for 20 s, or: make fuzz SECONDS=600 TARGETS="link_item link_offload"
	@sh scripts/fuzz.sh $(or $(SECONDS),20) $(TARGETS)

install: build ## command, unit, manual pages, documents and completions, to $(DESTDIR)/usr/local
	install -D -m 755 target/release/vsnoop $(DESTDIR)/usr/local/sbin/vsnoop
	install -D -m 644 deploy/vsnoop.service $(UNITS)/vsnoop.service
	target/release/vsnoop man $(SHARE)/man/man8
	install -d $(SHARE)/doc/vsnoop
	cp -R README.md ARCHITECTURE.md CONTRIBUTING.md SPECIFICATION.md CHANGELOG.md LICENSE deploy docs \
		$(SHARE)/doc/vsnoop
	install -d $(dir $(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION))
	target/release/vsnoop completions bash >$(BASH_COMPLETION)
	target/release/vsnoop completions zsh >$(ZSH_COMPLETION)
	target/release/vsnoop completions fish >$(FISH_COMPLETION)

clean: ## build output, guest image and results
	rm -rf target build results
