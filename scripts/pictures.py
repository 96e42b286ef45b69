#!/usr/bin/env python3
"""Draws the two pictures of docs/design/README.md: python3 scripts/pictures.py

Colours follow the reader's scheme, light or dark. To look at one:
rsvg-convert docs/design/crates.svg >/tmp/crates.png
"""

from html import escape
from pathlib import Path

OUT = Path(__file__).parent.parent / "docs" / "design"

STYLE = """
text { font: 13px sans-serif; fill: #1b1b1b }
.head { font-weight: bold }
.small { font-size: 11.5px }
.paper { fill: #ffffff }
.band { fill: #f1f3f5; stroke: none }
.box { fill: #ffffff; stroke: #55606b; stroke-width: 1.2 }
.accel { fill: #dcebfa; stroke: #2f6fad }
.link { fill: #dff2e1; stroke: #3b8a45 }
.shared { fill: #fdf0d0; stroke: #a97b16 }
.cli { fill: #f6dfe6; stroke: #a8486a }
.dev { fill: #e9e4f5; stroke: #6a55a4 }
.group { fill: none; stroke: #55606b; stroke-dasharray: 4 3 }
.arrow { fill: none; stroke: #3f4953; stroke-width: 1.3 }
.tip { fill: #3f4953; stroke: none }
@media (prefers-color-scheme: dark) {
text { fill: #e8e8e8 }
.paper { fill: #15191d }
.band { fill: #20262c }
.box { fill: #2b333b; stroke: #9aa7b3 }
.accel { fill: #1d3a57; stroke: #78b1e6 }
.link { fill: #1f4226; stroke: #7fc98a }
.shared { fill: #4a3a12; stroke: #e0b551 }
.cli { fill: #4b2433; stroke: #e28ba8 }
.dev { fill: #352b52; stroke: #b3a1e6 }
.group { stroke: #9aa7b3 }
.arrow { stroke: #c0cad3 }
.tip { fill: #c0cad3 }
}
"""


class Picture:
    def __init__(self, width, height, title):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
            "<!-- Made by scripts/pictures.py. -->",
            f"<title>{escape(title)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto-start-reverse">'
            '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="paper" width="{width}" height="{height}"/>',
        ]

    def text(self, x, y, text, kind="", anchor="start"):
        self.parts.append(
            f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def band(self, y, height, width, head, lines):
        self.parts.append(f'<rect class="band" x="8" y="{y}" width="{width}" height="{height}"/>')
        self.text(18, y + 22, head, "head")
        for number, line in enumerate(lines):
            self.text(18, y + 41 + 16 * number, line, "small")

    def box(self, x, y, width, height, kind, head, lines=()):
        self.parts.append(
            f'<rect class="box {kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
        )
        self.text(x + 9, y + 19, head, "head")
        for number, line in enumerate(lines):
            self.text(x + 9, y + 36 + 15 * number, line, "small")

    def arrow(self, path, both=False):
        start = ' marker-start="url(#tip)"' if both else ""
        self.parts.append(f'<path class="arrow" d="{path}" marker-end="url(#tip)"{start}/>')

    def write(self, name):
        (OUT / name).write_text("\n".join([*self.parts, "</svg>", ""]))


def processes():
    p = Picture(1060, 660, "Processes of vsnoop, what they hold in the kernel, and what outlives which")
    p.band(8, 196, 1044, "Processes", ["Each may be killed", "at any time."])
    p.box(180, 20, 170, 64, "cli", "a command", ["attach, set, detach ...", "ends when it is done"])
    p.box(180, 122, 170, 64, "accel", "service", ["vsnoop run", "attaches taps as they come"])
    p.box(410, 70, 152, 64, "accel", "helper", ["one per host", "four looks a second"])
    p.box(590, 128, 140, 58, "accel", "engine", ["one per host", "hands over held bytes"])
    p.parts.append('<rect class="group" x="748" y="14" width="104" height="178" rx="5"/>')
    p.box(754, 20, 92, 64, "accel", "splitter", ["one per host", "moves bytes"])
    p.box(754, 122, 92, 64, "accel", "keeper", ["one per host", "keeps sockets"])
    p.box(880, 20, 160, 166, "link", "link daemon",
          ["vsnoop link", "one per configuration", "", "needs none of the", "others, and no port"])
    p.arrow("M350 52L408 88")
    p.arrow("M350 154L408 118")
    p.arrow("M562 118L588 146", both=True)
    p.arrow("M562 86L746 60")
    p.text(358, 44, "starts", "small")
    p.text(478, 158, "each starts", "small")
    p.text(478, 171, "the other", "small")
    p.text(600, 62, "starts both", "small")

    p.band(216, 134, 1044, "Held by descriptors",
           ["End with the last", "process that has", "one."])
    p.box(590, 232, 140, 100, "accel", "reserve", ["free slabs for all", "ports; the engine's"])
    p.box(748, 232, 104, 100, "accel", "split pairs",
          ["two sockets and", "pipes of each", "connection; of", "both processes"])
    p.box(880, 232, 160, 100, "link", "of the link",
          ["taps that it made", "sessions with peers", "diversion hooks", "its sockets"])
    p.arrow("M660 186L660 230")
    p.arrow("M800 192L800 230")
    p.arrow("M960 186L960 230")

    p.band(362, 160, 1044, "Pinned or named",
           ["Outlives all processes.", "Ends with detach, with", "off --all, or with the", "host."])
    p.box(180, 376, 226, 132, "accel", "port",
          ["a directory in /sys/fs/bpf/vsnoop", "links of both hooks to the tap",
           "flows, embryos, counters", "slabs: the hold's copies", "the record of the attachment"])
    p.box(424, 376, 166, 132, "accel", "shared programs",
          ["of up to 64 ports;", "go with the last of them", "", "uplink of incast control:", "likewise"])
    p.box(608, 376, 244, 132, "accel", "downloads of a port",
          ["split programs and their maps", "a pair of veth devices", "", "network namespace vsnoop-split:",
           "goes with the last of such ports"])
    p.box(880, 376, 160, 132, "link", "of the link: nothing",
          ["a killed link leaves", "no device and no hook;", "its files stay: keys,", "configuration"])

    p.band(534, 118, 1044, "Ends with the VM", ["Not vsnoop's own."])
    p.box(180, 550, 226, 86, "box", "tap",
          ["deleted: its hooks go at once;", "the helper resets the senders,", "then removes the pins"])
    p.box(424, 550, 166, 86, "box", "VM", ["QEMU or another;", "reads the tap's ring"])
    p.box(608, 550, 244, 86, "box", "the VM's ends of connections",
          ["a host that dies with held bytes", "loses them: senders had their ACK"])
    p.arrow("M293 508L293 548", both=True)
    p.arrow("M406 593L422 593", both=True)
    p.write("processes.svg")


# Crates by product, each product from the ground up. docs/decisions/0023-crates.md has every arrow.
CRATES = {
    "cli": [("vsnoop", "verbs, output, top; main of helper, engine, splitter and keeper")],
    "accel": [
        ("flow", "decisions in C: flow/"),
        ("bpf", "programs: bpf/; loads them"),
        ("hold", "decides: engine and helper"),
        ("split", "sockets of a split connection"),
        ("splitter", "decides about splits"),
        ("host", "the machine and its ports"),
        ("metrics", "definitions, endpoint"),
        ("service", "attaches taps as they come"),
    ],
    "link": [
        ("link", "decisions: sessions, frames"),
        ("linkd", "threads, sockets, ports"),
        ("etcd", "client of etcd"),
        ("divert", "program that diverts: bpf/"),
    ],
    "shared": [
        ("packet", "frames and segments"),
        ("netdev", "devices, taps"),
        ("config", "values of TOML files"),
        ("privileges", "what a process gives up"),
    ],
    "dev": [
        ("world", "simulated hosts and VMs"),
        ("testbed", "namespaces and VMs"),
        ("tests", "drive the built vsnoop"),
        ("checks", "reads the sources"),
        ("lab", "experiments, reports"),
        ("bench", "what vsnoop costs"),
        ("guest", "runs inside of guests"),
        ("fuzz", "targets of libFuzzer"),
        ("sim-core", "a host of ns-3"),
        ("sim", "runs cells in ns-3"),
    ],
}


def crates():
    p = Picture(1060, 694, "Crates of vsnoop by product")

    def product(x, y, columns, kind, head, width=236):
        members = CRATES[kind]
        rows = (len(members) + columns - 1) // columns
        height = 40 + 52 * rows
        p.parts.append(f'<rect class="band" x="{x}" y="{y}" width="{columns * (width + 10) + 10}"'
                       f' height="{height}"/>')
        p.text(x + 12, y + 24, head, "head")
        for number, (name, what) in enumerate(members):
            p.box(x + 10 + (number % columns) * (width + 10), y + 36 + 52 * (number // columns),
                  width, 44, kind, name if name == "vsnoop" else f"vsnoop-{name}", [what])
        return height

    product(284, 12, 1, "cli", "cli/ - the command", width=482)
    product(8, 140, 2, "accel", "accel/ - early acknowledgement, hold, incast control, downloads")
    product(550, 140, 2, "link", "link/ - Ethernet between hosts")
    product(550, 322, 2, "shared", "shared/ - used by both")
    product(8, 490, 4, "dev", "dev/ - tests, lab, benchmarks: ships nothing", width=249)
    p.arrow("M400 104L300 138")
    p.arrow("M650 104L750 138")
    p.arrow("M510 340L548 370")
    p.arrow("M792 284L792 320")
    p.arrow("M530 488L530 430")
    p.text(570, 128, "an arrow: may import", "small", "middle")
    p.write("crates.svg")


if __name__ == "__main__":
    processes()
    crates()
