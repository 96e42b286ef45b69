// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* All programs of accel/bpf/ that the simulated kernel runs, in one unit: some names are twice. */
#include "vsnoop.bpf.c"
#include "fast_path.h"
#define _license uplink_license
#include "uplink.bpf.c"
#undef _license
#define _license split_license
#define arrival split_arrival
#define count split_count
#include "split.bpf.c"
#undef count
#undef arrival
#undef _license
