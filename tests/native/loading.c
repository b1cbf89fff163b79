/* loading LIBRARY TABLE ROWS - a program that is not linked with the library but loads it, and has a handler of SIGBUS
 * by then. */

#include "check.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;

static void handler(int sig) { siglongjmp(back, sig); }

/* What check.h's macros ask. */
static int64_t (*last_error)(char *, int64_t);

int64_t meft_rows_last_error(char *buffer, int64_t size) { return last_error(buffer, size); }

static void find(void *library, const char *name, void *function) {
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(function, &found, sizeof found);
}

int main(int argc, char **argv) {
    int32_t (*open_table)(const char *, const meft_rows_options *, meft_rows **);
    int32_t (*close_table)(meft_rows *);
    int32_t (*gather)(meft_rows *, const int64_t *, int64_t, void *, int64_t);
    int32_t (*get_count)(meft_rows *, int64_t *);
    struct sigaction action;
    meft_rows *table;
    void *library;
    unsigned char *expected, *out;
    volatile char *nothing;
    int64_t size, rows, last, fd;
    int round;

    CHECK(argc == 4);
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK;
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    for (round = 0; round < 3; round++) {
        library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        find(library, "meft_rows_last_error", &last_error);
        find(library, "meft_rows_open", &open_table);
        find(library, "meft_rows_close", &close_table);
        find(library, "meft_rows_gather", &gather);
        find(library, "meft_rows_count", &get_count);
        OK(open_table(argv[2], NULL, &table));
        if (round < 2) {
            OK(close_table(table));
            CHECK(dlclose(library) == 0); /* has no effect, and does no harm */
        }
    }
    expected = content(argv[3], &size);
    OK(get_count(table, &rows));
    out = at_the_edge(size / rows);
    last = rows - 1;
    OK(gather(table, &last, 1, out, size / rows));
    CHECK(!memcmp(out, expected + size - size / rows, (size_t)(size / rows)));

    CHECK(truncate(argv[2], 4096) == 0);
    CHECK(gather(table, &last, 1, out, size / rows) == MEFT_ROWS_FAULT);

    fd = open(argv[2], O_RDONLY);
    nothing = (volatile char *)mmap(NULL, 1 << 16, PROT_READ, MAP_SHARED, (int)fd, 0);
    CHECK(nothing != MAP_FAILED);
    if (sigsetjmp(back, 1) == 0) {
        fprintf(stderr, "read %d from nowhere\n", nothing[1 << 15]);
        return 1;
    }
    OK(close_table(table));
    free(expected);
    return 0;
}
