/*
 * Times MPI_Allreduce of floats as `main.rs` times ncclAllReduce, out of place: after warm-up calls, the ranks meet
 * at a barrier, and each rank times all its calls together.
 *
 * Arguments: the size in bytes, the number of warm-up calls, and the number of timed calls, for each measurement.
 * Prints the seconds per call of the slowest rank, one line for each measurement.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void reduce(const float *send, float *receive, int count, int calls) {
    for (int call = 0; call < calls; call++) {
        MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    long most = 0;
    for (int at = 1; at < argc; at += 3) {
        long count = atol(argv[at]) / 4;
        most = count > most ? count : most;
    }
    float *send = malloc(most * sizeof *send), *receive = calloc(most, sizeof *receive);
    for (long at = 0; at < most; at++) {
        send[at] = 1;
    }
    for (int at = 1; at + 2 < argc; at += 3) {
        int count = atol(argv[at]) / 4, calls = atoi(argv[at + 2]);
        reduce(send, receive, count, atoi(argv[at + 1]));
        MPI_Barrier(MPI_COMM_WORLD);
        double since = MPI_Wtime();
        reduce(send, receive, count, calls);
        double own = (MPI_Wtime() - since) / calls, slowest;
        MPI_Reduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (receive[0] != ranks || receive[count - 1] != ranks) {
            fprintf(stderr, "wrong sum: %f of %d ranks\n", receive[0], ranks);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        if (rank == 0) {
            printf("%.9f\n", slowest);
            fflush(stdout);
        }
    }
    free(send);
    free(receive);
    MPI_Finalize();
    return 0;
}
