/*
 * Solves a dense system of N equations by LU factorisation with partial pivoting, what HPL does, by
 * pdgesv of ScaLAPACK, and times it: solve N BLOCK.
 *
 * The matrix is random, cut into blocks of columns that the ranks take in turn (a grid of 1 by
 * all), and the right side is such that all unknowns are 1. Prints `solve`, N and Mflop/s by HPL's
 * count, 2/3 N^3 + 3/2 N^2. A wrong solution ends it.
 */
#include <math.h>
#include <stdlib.h>

#include "rank.h"

void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void descinit_(int *description, const int *m, const int *n, const int *mb, const int *nb,
	       const int *first_row, const int *first_column, const int *context, const int *lld,
	       int *info);
void pdgesv_(const int *n, const int *right_sides, double *a, const int *ia, const int *ja,
	     const int *desc_a, int *pivots, double *b, const int *ib, const int *jb,
	     const int *desc_b, int *info);

static void fail(const char *what, double value)
{
	fprintf(stderr, "%s: %g\n", what, value);
	MPI_Abort(MPI_COMM_WORLD, 3);
}

/* An element of the matrix: from its place alone, so that every rank can make any column. */
static double element(unsigned int row, unsigned int column)
{
	unsigned int x = row * 2654435761u ^ (column + 1) * 2246822519u;

	x = (x ^ x >> 15) * 2654435761u;
	x = (x ^ x >> 13) * 3266489917u;
	return (x ^ x >> 16) / 4294967296.0 - 0.5;
}

int main(int argc, char **argv)
{
	const int zero = 0, one = 1;
	int context, info, desc_a[9], desc_b[9];

	begin_rank(&argc, &argv);
	if (argc != 3)
		fail("arguments, not N and BLOCK", argc - 1);
	int n = atoi(argv[1]), block = atoi(argv[2]);

	Cblacs_get(-1, 0, &context);
	Cblacs_gridinit(&context, "Row", 1, ranks);
	descinit_(desc_a, &n, &n, &block, &block, &zero, &zero, &context, &n, &info);
	descinit_(desc_b, &n, &one, &block, &block, &zero, &zero, &context, &n, &info);
	double *a = malloc(sizeof(*a) * n * (n / ranks + block)), *b = calloc(n, sizeof(*b));
	int *pivots = malloc(sizeof(*pivots) * (n + n));
	int columns = 0;

	for (int column = 0; column < n; column++) {
		if (column / block % ranks != rank)
			continue;
		for (int row = 0; row < n; row++)
			a[(size_t)columns * n + row] = element(row, column);
		columns++;
	}
	for (int row = 0; rank == 0 && row < n; row++)
		for (int column = 0; column < n; column++)
			b[row] += element(row, column);

	MPI_Barrier(MPI_COMM_WORLD);
	double begin = MPI_Wtime(), took, longest;

	pdgesv_(&n, &one, a, &one, &one, desc_a, pivots, b, &one, &one, desc_b, &info);
	took = MPI_Wtime() - begin;
	if (info)
		fail("pdgesv", info);
	MPI_Reduce(&took, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	for (int row = 0; rank == 0 && row < n; row++)
		if (fabs(b[row] - 1) > 1e-6)
			fail("a wrong unknown", b[row]);
	if (rank == 0)
		printf("solve %d %.3f\n", n, (2.0 / 3 * n * n * n + 1.5 * n * n) / longest / 1e6);
	end_rank();
}
