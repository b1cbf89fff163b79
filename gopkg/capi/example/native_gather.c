/* native_gather - print rows of a table: native_gather [-f] TABLE ID... */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meft_rows.h"

static int failed(const char *what) {
    char text[1024];
    meft_rows_last_error(text, (int64_t)sizeof text);
    fprintf(stderr, "native_gather: %s: %s\n", what, text);
    return 1;
}

static void print_row(const unsigned char *row, int64_t width, int floats) {
    int64_t i;
    if (!floats) {
        for (i = 0; i < width; i++) printf("%02x", row[i]);
    } else {
        for (i = 0; i + 4 <= width; i += 4) {
            float value;
            memcpy(&value, row + i, sizeof value);
            printf(i ? " %.9g" : "%.9g", (double)value);
        }
    }
    putchar('\n');
}

/* Reads the ids of a command line; returns 0 if one is no number. */
static int read_ids(char **words, int n, int64_t *ids) {
    int i;
    for (i = 0; i < n; i++) {
        char *end;
        errno = 0;
        ids[i] = strtoll(words[i], &end, 10);
        if (errno || end == words[i] || *end) {
            fprintf(stderr, "native_gather: %s is no row number\n", words[i]);
            return 0;
        }
    }
    return 1;
}

static int gather(meft_rows *table, const int64_t *ids, int n, int floats) {
    int64_t width, i;
    unsigned char *rows;
    int status = 0;

    if (meft_rows_width(table, &width)) return failed("width");
    if (floats && width % 4) {
        fprintf(stderr, "native_gather: rows of %lld bytes are no floats\n", (long long)width);
        return 1;
    }
    if (n > 0 && (uint64_t)width > SIZE_MAX / 2 / (uint64_t)n) {
        fprintf(stderr, "native_gather: too many rows at once\n");
        return 1;
    }
    rows = malloc((size_t)width * (size_t)n);
    if (rows == NULL && n > 0) {
        fprintf(stderr, "native_gather: out of memory\n");
        return 1;
    }
    if (meft_rows_gather(table, ids, n, rows, width * n)) {
        status = failed("gather");
    } else {
        for (i = 0; i < n; i++) print_row(rows + i * width, width, floats);
    }
    free(rows);
    return status;
}

int main(int argc, char **argv) {
    int floats = argc > 1 && strcmp(argv[1], "-f") == 0;
    int first = 1 + floats;
    int n = argc - first - 1;
    meft_rows *table;
    int64_t *ids;
    int status = 2;

    if (n < 0 || argv[first][0] == '-') {
        fprintf(stderr,
                "usage: native_gather [-f] TABLE ID...\n"
                "prints each row on a line, as hexadecimal bytes, or as floats with -f\n");
        return 2;
    }
    ids = malloc(((size_t)n + 1) * sizeof *ids);
    if (ids == NULL) return 1;
    if (read_ids(argv + first + 1, n, ids)) {
        if (meft_rows_open(argv[first], NULL, &table)) {
            status = failed("open");
        } else {
            status = gather(table, ids, n, floats);
            if (meft_rows_close(table)) status = failed("close");
        }
    }
    free(ids);
    return fflush(stdout) || ferror(stdout) ? 1 : status;
}
