/* faults HOST TABLE - a table that is shortened while it is open gives an error, whatever the host does with SIGBUS:
 * "none", "simple", "info", "ignore" or "blocked". Its handler gets its own faults all the same. */

#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static volatile sig_atomic_t caught, stop;

static void simple(int sig) {
    caught = sig;
    siglongjmp(back, 1);
}

static void with_info(int sig, siginfo_t *info, void *context) {
    (void)info;
    (void)context;
    simple(sig);
}

static void host_handles(const char *how) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = simple;
    if (!strcmp(how, "info")) {
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        action.sa_sigaction = with_info;
    } else if (!strcmp(how, "ignore")) {
        action.sa_handler = SIG_IGN;
    } else if (!strcmp(how, "blocked")) {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGBUS);
        sigaddset(&set, SIGUSR1);
        CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
        return;
    } else if (!strcmp(how, "none")) {
        return;
    }
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
}

/* A fault of the host's own, in a mapping of its own. */
static void host_faults(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    volatile char *mapped;
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0);
    mapped = (volatile char *)mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED && ftruncate(fd, 0) == 0);
    caught = 0;
    if (sigsetjmp(back, 1) == 0) {
        fprintf(stderr, "read %d from nowhere\n", mapped[0]);
        exit(1);
    }
    CHECK(caught == SIGBUS);
    munmap((void *)(uintptr_t)mapped, 4096);
    close(fd);
}

static void *keep_reading(void *opaque) {
    meft_rows *table = (meft_rows *)opaque;
    int64_t ids[2] = {0, 1}, width;
    void *out;
    OK(meft_rows_width(table, &width));
    out = malloc((size_t)width * 2);
    while (!stop) OK(meft_rows_gather(table, ids, 2, out, width * 2));
    free(out);
    return NULL;
}

int main(int argc, char **argv) {
    int64_t n, width, i, *ids, zero = 0;
    struct sigaction before, after;
    meft_rows *table;
    char *out;
    int custom, round;
    CHECK(argc == 3);
    custom = !strcmp(argv[1], "simple") || !strcmp(argv[1], "info");
    host_handles(argv[1]);
    CHECK(sigaction(SIGBUS, NULL, &before) == 0);

    OK(meft_rows_open(argv[2], NULL, &table));
    OK(meft_rows_count(table, &n));
    OK(meft_rows_width(table, &width));
    ids = (int64_t *)malloc((size_t)n * sizeof *ids);
    out = (char *)malloc((size_t)(n * width));
    CHECK(ids != NULL && out != NULL);
    for (i = 0; i < n; i++) ids[i] = (i * 7919) % n;
    OK(meft_rows_gather(table, ids, n, out, n * width));

    if (custom) {
        char own[4096];
        pthread_t thread;
        snprintf(own, sizeof own, "%s.own", argv[2]);
        host_faults(own);
        CHECK(pthread_create(&thread, NULL, keep_reading, table) == 0);
        for (round = 0; round < 200; round++) host_faults(own);
        stop = 1;
        CHECK(pthread_join(thread, NULL) == 0);
        host_faults(own);
    }

    CHECK(truncate(argv[2], 4096) == 0);
    for (round = 0; round < 3; round++) {
        CHECK(meft_rows_gather(table, ids, n, out, n * width) == MEFT_ROWS_FAULT);
        CHECK(meft_rows_gather_chunked(table, ids + n - 1, 1, 1, out, width) == MEFT_ROWS_FAULT);
        CHECK(meft_rows_embedding_bag(table, ids, n, &zero, 1, NULL, out, width) == MEFT_ROWS_FAULT);
    }
    CHECK(sigaction(SIGBUS, NULL, &after) == 0);
    if (!strcmp(argv[1], "blocked")) {
        sigset_t set;
        CHECK(pthread_sigmask(SIG_SETMASK, NULL, &set) == 0 && sigismember(&set, SIGUSR1));
    }
    CHECK(after.sa_handler == before.sa_handler && after.sa_flags == before.sa_flags);
    OK(meft_rows_close(table));
    free(ids);
    free(out);
    return 0;
}
