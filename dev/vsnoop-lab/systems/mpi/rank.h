/*
 * Begin and end of a rank.
 *
 * MPI_Finalize of Debian 12's MPICH (4.0.2, with UCX 1.13) often never returns over TCP: one rank
 * waits until its connections are closed, the others, which would have to answer, wait for it in
 * the process manager's barrier. A rank that exits without it breaks connections of others that are
 * a little behind. So no rank ends: the first one says `end` when all are done, then the lab kills
 * hydra's proxies, and the ranks with them.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

static int rank, ranks;

static void begin_rank(int *argc, char ***argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MPI_Init(argc, argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

static void end_rank(void)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		printf("end\n");
		fflush(stdout);
	}
	for (;;)
		pause();
}
