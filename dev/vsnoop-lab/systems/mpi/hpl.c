/*
 * Runs HPL, the part of hpcc that solves a dense system of equations: hpl N NB.
 *
 * hpcc's HPL_main reads hpccinf.txt in the working directory of rank 0, in the format of HPL.dat,
 * and appends its report to hpccoutf.txt there, which here is the output of this program. The
 * system has N equations; the matrix is cut into blocks of NB columns, which a grid of 1 by all
 * ranks takes in turn. All other parameters are those of hpcc's example, _hpccinf.txt.
 */
#include <stdlib.h>

#include "rank.h"

#include "hpl.h"

extern int HPL_main(int argc, char **argv, HPL_RuntimeData *data, int *failure);

static const char INPUT[] = "hpccinf.txt";
static const char REPORT[] = "hpccoutf.txt";

static void fail(const char *what)
{
	perror(what);
	MPI_Abort(MPI_COMM_WORLD, 3);
}

/* Called when HPL_main refuses its input: hpcc would go on with a system that it chooses itself. */
int HPCC_Defaults(void)
{
	fail(INPUT);
	return 1;
}

static void write_input(const char *n, const char *nb)
{
	FILE *file = fopen(INPUT, "w");

	if (!file)
		fail(INPUT);
	fprintf(file, "title\ntitle\nfile\n8 device\n");
	fprintf(file, "1 systems\n%s N\n1 blocks\n%s NB\n", n, nb);
	fprintf(file, "0 row-major\n1 grids\n1 P\n%d Q\n16.0 threshold\n", ranks);
	fprintf(file, "1 PFACTs\n2 right\n1 NBMINs\n4\n1 NDIVs\n2\n1 RFACTs\n1 Crout\n");
	fprintf(file, "1 BCASTs\n1 1rM\n1 DEPTHs\n1\n");
	fprintf(file, "2 mix\n64 threshold\n0 L1 transposed\n0 U transposed\n1 equilibration\n8\n");
	if (fclose(file))
		fail(INPUT);
}

int main(int argc, char **argv)
{
	HPL_RuntimeData data = { 0 };
	int failure = 0;

	begin_rank(&argc, &argv);
	if (argc != 3)
		fail("hpl N NB");
	if (chdir("/tmp"))
		fail("/tmp");
	if (rank == 0) {
		unlink(REPORT);
		if (symlink("/proc/self/fd/1", REPORT))
			fail(REPORT);
		write_input(argv[1], argv[2]);
	}
	HPL_main(argc, argv, &data, &failure);
	end_rank();
}
