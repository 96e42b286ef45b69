/*
 * Times Broadcast and Alltoall over message sizes, as the Intel MPI benchmark does: after a
 * barrier, all ranks call the operation some times in a row; its time is the mean of these calls,
 * on the rank that took longest.
 *
 * collectives REPETITIONS SIZE... prints a line for each operation and size: name, bytes,
 * microseconds. A wrong byte ends it.
 */
#include <stdlib.h>
#include <string.h>

#include "rank.h"

static void check(const unsigned char *bytes, size_t size, int from)
{
	for (size_t i = 0; i < size; i++) {
		if (bytes[i] != (unsigned char)(from * 7 + i)) {
			fprintf(stderr, "rank %d has a wrong byte of rank %d\n", rank, from);
			MPI_Abort(MPI_COMM_WORLD, 3);
		}
	}
}

static void fill(unsigned char *bytes, size_t size, int from)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = (unsigned char)(from * 7 + i);
}

static void bcast(unsigned char *out, unsigned char *in, int size, int root)
{
	(void)in;
	MPI_Bcast(out, size, MPI_BYTE, root, MPI_COMM_WORLD);
}

static void alltoall(unsigned char *out, unsigned char *in, int size, int root)
{
	(void)root;
	MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
}

static void time_of(const char *name, void (*call)(unsigned char *, unsigned char *, int, int),
		    unsigned char *out, unsigned char *in, int size, int repetitions)
{
	double begin, took, longest;

	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime();
	for (int i = 0; i < repetitions; i++)
		call(out, in, size, i % ranks);
	took = (MPI_Wtime() - begin) / repetitions;
	MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%s %d %.1f\n", name, size, longest * 1e6);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	begin_rank(&argc, &argv);
	int repetitions = argc > 1 ? atoi(argv[1]) : 1;

	for (int i = 2; i < argc; i++) {
		int size = atoi(argv[i]);
		unsigned char *out = malloc((size_t)size * ranks);
		unsigned char *in = malloc((size_t)size * ranks);

		/* The root of the first call is rank 0, from which the others have it. */
		memset(out, 0xff, size);
		if (rank == 0)
			fill(out, size, 0);
		time_of("bcast", bcast, out, in, size, repetitions);
		check(out, size, 0);
		for (int to = 0; to < ranks; to++)
			fill(out + (size_t)size * to, size, rank);
		time_of("alltoall", alltoall, out, in, size, repetitions);
		for (int from = 0; from < ranks; from++)
			check(in + (size_t)size * from, size, from);
		free(out);
		free(in);
	}
	end_rank();
}
