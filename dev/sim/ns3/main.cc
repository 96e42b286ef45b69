/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Runs one cell, which the command line describes, and prints its result as one line of JSON.
 */
#include <algorithm>
#include <cstdio>

#include <ns3/command-line.h>
#include <ns3/rng-seed-manager.h>
#include <ns3/simulator.h>

#include "flows.h"
#include "queries.h"
#include "transfers.h"

using namespace vsnoop;

static Cell parse(int argc, char **argv)
{
	Cell cell;
	ns3::CommandLine options;

	options.AddValue("kind", "queries, flows, uploads or downloads", cell.kind);
	options.AddValue("tcp", "cubic, reno, bbr or dctcp", cell.tcp);
	options.AddValue("control", "off, incast, incast-early, early or split", cell.control);
	options.AddValue("senders", "that answer", cell.senders);
	options.AddValue("vms", "that the senders answer", cell.vms);
	options.AddValue("background", "senders that never stop", cell.background);
	options.AddValue("gbps", "of the last hop", cell.gbps);
	options.AddValue("sender_gbps", "of a sender's link, 0: as the last hop", cell.sender_gbps);
	options.AddValue("vm_gbps", "that a VM's CPU takes in, 0: unlimited", cell.vm_gbps);
	options.AddValue("answer", "bytes of each sender", cell.answer);
	options.AddValue("buffer", "queue of the last hop, bytes", cell.buffer);
	options.AddValue("alpha", "dynamic threshold of a shared buffer, 0: none", cell.alpha);
	options.AddValue("mark", "bytes in the queue from which CE is set, 0: none", cell.mark);
	options.AddValue("rtt_us", "round trip of an empty network", cell.rtt_us);
	options.AddValue("jitter_us", "more for each sender, at most", cell.jitter_us);
	options.AddValue("think_us", "from request to answer, at most", cell.think_us);
	options.AddValue("rto_min_ms", "least retransmission timeout", cell.rto_min_ms);
	options.AddValue("rounds", "of queries", cell.rounds);
	options.AddValue("receive_buffer", "of a VM, bytes", cell.scale_bytes);
	options.AddValue("stop_ms", "each VM stands for this time in each period", cell.stop_ms);
	options.AddValue("period_ms", "of stops", cell.period_ms);
	options.AddValue("waits_us", "or runs and stands for these times", cell.waits_us);
	options.AddValue("gap_ms", "before each upload or download, at most", cell.gap_ms);
	options.AddValue("seconds", "of flows without an end", cell.seconds);
	options.AddValue("hold", "memory of a port's hold, bytes", cell.hold);
	options.AddValue("limit_s", "simulated time of a round, at most", cell.limit_s);
	options.AddValue("rack", "senders have RACK and tail loss probes", SenderSocket::has_rack);
	options.AddValue("seed", "of all random numbers", cell.seed);
	options.Parse(argc, argv);
	return cell;
}

static double percentile(std::vector<double> &values, double part)
{
	if (values.empty())
		return 0;
	std::sort(values.begin(), values.end());
	return values[std::min(values.size() - 1, static_cast<size_t>(part * values.size()))];
}

/* What queue and host counted: the end of each line. */
static void print_counts(Network &network)
{
	vsnoop_sim_counts counts = network.host->Counts();

	printf("\"marks\": %lu, \"queue_most_bytes\": %lu, ", network.last_hop->marks,
	       network.last_hop->most);
	printf("\"shaped\": %lu, \"grants\": %lu, \"base_rtt_us\": %.3f, ", counts.shaped,
	       counts.grants, counts.base_rtt_ns / 1e3);
	printf("\"ring_drops\": %lu, \"early_acks\": %lu, ", counts.ring_drops, counts.early_acks);
	printf("\"hold_most_bytes\": %lu, \"hold_host_most_bytes\": %lu, ", counts.hold_bytes_most,
	       counts.hold_bytes_host_most);
	printf("\"engine_runs\": %lu, \"simulated_s\": %.4f}\n", counts.engine_runs,
	       ns3::Simulator::Now().GetSeconds());
}

static void run_queries(const Cell &cell, Network &network)
{
	Queries queries(cell, network);
	double ms = 0, mean_mbps = 0;
	uint64_t ended = 0, late = 0, timeouts = 0, probes = 0, drops = 0;
	std::vector<double> round_ms;

	queries.Run();
	double bits = 8.0 * cell.answer * cell.senders;
	for (const Round &round : queries.rounds) {
		ended += round.ended;
		late += round.timeouts + round.probes > 0;
		timeouts += round.timeouts;
		probes += round.probes;
		drops += round.drops;
		ms += round.ms;
		mean_mbps += round.ended ? bits / round.ms / 1e3 / queries.rounds.size() : 0;
		round_ms.push_back(round.ms);
	}
	printf("{\"rounds\": %zu, \"ended\": %lu, \"late_rounds\": %lu, \"timeouts\": %lu, ",
	       queries.rounds.size(), ended, late, timeouts);
	printf("\"probes\": %lu, \"drops\": %lu, ", probes, drops);
	printf("\"goodput_mbps\": %.3f, \"goodput_of_rounds_mbps\": %.3f, ",
	       bits * ended / ms / 1e3, mean_mbps);
	printf("\"background_mbps\": %.3f, ",
	       8.0 * queries.background_bytes / ns3::Simulator::Now().GetSeconds() / 1e6);
	printf("\"completion_p50_ms\": %.4f, \"completion_p99_ms\": %.4f, ",
	       percentile(queries.completions, 0.5), percentile(queries.completions, 0.99));
	printf("\"round_p50_ms\": %.4f, \"round_most_ms\": %.4f, ", percentile(round_ms, 0.5),
	       percentile(round_ms, 1));
}

static void run_flows(const Cell &cell, Network &network)
{
	Flows flows(cell, network);

	flows.Run();
	printf("{\"rounds\": 1, \"ended\": 1, \"late_rounds\": %d, \"timeouts\": %lu, ",
	       flows.timeouts > 0, flows.timeouts);
	printf("\"drops\": %lu, \"goodput_mbps\": %.3f, ", network.last_hop->drops,
	       flows.goodput_mbps);
	printf("\"jain\": %.4f, \"least_share\": %.4f, ", flows.jain, flows.least_share);
	if (flows.converged_ms >= 0)
		printf("\"converged_ms\": %.4f, ", flows.converged_ms);
}

static void run_transfers(const Cell &cell, Network &network)
{
	Transfers transfers(cell, network);

	transfers.Run();
	std::vector<double> of_vms;
	printf("{\"vm_ms\": [");
	for (std::vector<double> &of_vm : transfers.of_vm)
		printf("%s%.3f", &of_vm == &transfers.of_vm.front() ? "" : ", ",
		       percentile(of_vm, 0.5));
	printf("], \"rounds\": %u, \"ended\": %u, ", cell.rounds,
	       transfers.ended ? cell.rounds : 0);
	printf("\"late_rounds\": 0, \"timeouts\": %lu, \"drops\": %lu, ", transfers.timeouts,
	       network.last_hop->drops);
	printf("\"goodput_mbps\": %.3f, ", 8.0 * cell.answer * transfers.durations.size() /
						   ns3::Simulator::Now().GetSeconds() / 1e6);
	printf("\"completion_p50_ms\": %.4f, \"completion_p99_ms\": %.4f, ",
	       percentile(transfers.durations, 0.5), percentile(transfers.durations, 0.99));
}

int main(int argc, char **argv)
{
	Cell cell = parse(argc, argv);

	ns3::RngSeedManager::SetSeed(cell.seed);
	Network network(cell);
	if (cell.kind == "queries")
		run_queries(cell, network);
	else if (cell.kind == "flows")
		run_flows(cell, network);
	else
		run_transfers(cell, network);
	print_counts(network);
	return 0;
}
