/* life TABLE ROWS - many threads on one table, tables opened and closed without end, and what a fork leaves. */

#include "check.h"

#include <pthread.h>
#include <sys/wait.h>

enum { THREADS = 8, IDS = 300, ROUNDS = 400, STORMS = 400 };

static const char *table_path;
static meft_rows *shared;
static int64_t rows, width;
static unsigned char *expected;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int closed_by, waiting;

static uint32_t next(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

/* Gathers rows and a bag until somebody closes the table, and says whether that happened. */
static int read_rows(meft_rows *table, uint32_t seed, int rounds) {
    int64_t ids[IDS], zero = 0;
    unsigned char *out = (unsigned char *)malloc((size_t)(width * IDS));
    int round, i, code = MEFT_ROWS_OK;
    CHECK(out != NULL);
    for (round = 0; round < rounds && code == MEFT_ROWS_OK; round++) {
        int n = 1 + (int)(next(&seed) >> 8) % IDS;
        for (i = 0; i < n; i++) ids[i] = (next(&seed) >> 8) % rows;
        code = meft_rows_gather(table, ids, n, out, n * width);
        for (i = 0; i < n && code == MEFT_ROWS_OK; i++) {
            CHECK(!memcmp(out + i * width, expected + ids[i] * width, (size_t)width));
        }
        if (code == MEFT_ROWS_OK) code = meft_rows_embedding_bag(table, ids, 1, &zero, 1, NULL, out, width);
        if (code == MEFT_ROWS_OK) {
            CHECK(!memcmp(out, expected + ids[0] * width, (size_t)width));
        }
    }
    free(out);
    CHECK(code == MEFT_ROWS_OK || code == MEFT_ROWS_CLOSED);
    return code == MEFT_ROWS_CLOSED;
}

static void *reader(void *number) {
    CHECK(!read_rows(shared, (uint32_t)(uintptr_t)number, ROUNDS));
    return NULL;
}

/* Reads while others read, and then closes the table at the same time as they do, or earlier. */
static void *closer(void *number) {
    int64_t count;
    meft_rows_counters c = MEFT_ROWS_COUNTERS_INIT;
    int arrived;
    read_rows(shared, (uint32_t)(uintptr_t)number, (int)(uintptr_t)number / 3);
    pthread_mutex_lock(&lock);
    waiting++;
    pthread_mutex_unlock(&lock);
    do {
        pthread_mutex_lock(&lock);
        arrived = waiting;
        pthread_mutex_unlock(&lock);
    } while (arrived < THREADS / 2);
    if (meft_rows_close(shared) == MEFT_ROWS_OK) {
        pthread_mutex_lock(&lock);
        closed_by++;
        pthread_mutex_unlock(&lock);
    }
    CHECK(meft_rows_count(shared, &count) == MEFT_ROWS_CLOSED && meft_rows_stats(shared, &c) == MEFT_ROWS_CLOSED);
    return NULL;
}

/* Opens, uses and closes tables of its own. */
static void *storm(void *number) {
    int round;
    for (round = 0; round < STORMS; round++) {
        meft_rows *table;
        meft_rows_options options = MEFT_ROWS_OPTIONS_INIT;
        options.cache_bytes = (round & 1) << 16;
        options.cache_policy = (round >> 1) & 1;
        options.threads = round % 3;
        OK(meft_rows_open(table_path, &options, &table));
        CHECK(!read_rows(table, (uint32_t)(uintptr_t)number, 2));
        OK(meft_rows_close(table));
        CHECK(meft_rows_close(table) == MEFT_ROWS_CLOSED);
        CHECK(meft_rows_open("/there/is/nothing", NULL, &table) == MEFT_ROWS_NOT_FOUND);
    }
    return NULL;
}

static void together(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    int i;
    for (i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
    for (i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

static int64_t resident_pages(void) {
    long long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f != NULL) { /* none on macOS */
        CHECK(fscanf(f, "%lld %lld", &size, &resident) == 2);
        fclose(f);
    }
    return resident;
}

static void forking(void) {
    int status;
    pid_t child;
    OK(meft_rows_open(table_path, NULL, &shared));
    child = fork();
    if (child == 0) {
        int32_t kind;
        int64_t ids[1] = {0}, number;
        meft_rows_counters c = MEFT_ROWS_COUNTERS_INIT;
        meft_rows *table;
        char text[256];
        alarm(20);
        CHECK(meft_rows_open(table_path, NULL, &table) == MEFT_ROWS_STALE);
        CHECK(meft_rows_count(shared, &number) == MEFT_ROWS_STALE && meft_rows_width(shared, &number) == MEFT_ROWS_STALE);
        CHECK(meft_rows_kind(shared, &kind, &number) == MEFT_ROWS_STALE);
        CHECK(meft_rows_gather(shared, ids, 1, text, width) == MEFT_ROWS_STALE);
        CHECK(meft_rows_embedding_bag(shared, ids, 1, ids, 1, NULL, text, width) == MEFT_ROWS_STALE);
        CHECK(meft_rows_stats(shared, &c) == MEFT_ROWS_STALE && meft_rows_set_cache(shared, 0, 0) == MEFT_ROWS_STALE);
        CHECK(meft_rows_close(shared) == MEFT_ROWS_STALE);
        CHECK(meft_rows_last_error(text, (int64_t)sizeof text) > 1 && contains(text, "child"));
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!read_rows(shared, 1, 10));
    OK(meft_rows_close(shared));
}

int main(int argc, char **argv) {
    int64_t size, descriptors, pages;
    int policy, round;
    CHECK(argc == 3);
    table_path = argv[1];
    expected = content(argv[2], &size);
    OK(meft_rows_open(table_path, NULL, &shared));
    OK(meft_rows_count(shared, &rows));
    OK(meft_rows_width(shared, &width));
    for (policy = MEFT_ROWS_CACHE_BLOCKS; policy <= MEFT_ROWS_CACHE_ROWS; policy++) {
        OK(meft_rows_set_cache(shared, size / 3, policy));
        together(reader);
    }
    for (round = 0; round < 100; round++) {
        closed_by = waiting = 0;
        together(closer);
        CHECK(closed_by == 1);
        OK(meft_rows_open(table_path, NULL, &shared));
    }
    OK(meft_rows_close(shared));

    together(storm);
    descriptors = open_descriptors();
    pages = resident_pages();
    for (round = 0; round < 3; round++) together(storm);
    CHECK(open_descriptors() == descriptors);
    CHECK(resident_pages() - pages < (8 << 20) / sysconf(_SC_PAGESIZE));
    forking();
    free(expected);
    return 0;
}
