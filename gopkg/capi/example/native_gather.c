/* native_gather - print rows of a table: native_gather [-f | -x] TABLE ID... */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meft_rows.h"

static int failed(void) {
    char text[1024];
    meft_rows_last_error(text, (int64_t)sizeof text);
    fprintf(stderr, "native_gather: %s\n", text);
    return 1;
}

/* Returns the float that a number of IEEE half precision is. */
static float of_half(unsigned half) {
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023, bits;
    float value;
    if (exponent == 0) {
        value = (float)fraction / (1 << 24);
    } else {
        bits = (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13;
        memcpy(&value, &bits, sizeof value);
    }
    return half >> 15 ? -value : value;
}

/* Bytes of a number of a result of bags. */
static int64_t size_of(int32_t kind) {
    switch (kind) {
    case MEFT_ROWS_FP64: return 8;
    case MEFT_ROWS_FP16:
    case MEFT_ROWS_BF16: return 2;
    default: return 4;
    }
}

static void print_number(const unsigned char *at, int32_t kind) {
    float single;
    double value;
    unsigned half = at[0] | (unsigned)at[1] << 8;
    if (kind == MEFT_ROWS_FP64) {
        memcpy(&value, at, sizeof value);
        printf("%.17g", value);
    } else if (kind == MEFT_ROWS_FP16) {
        printf("%.9g", (double)of_half(half));
    } else {
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&single, kind == MEFT_ROWS_BF16 ? (const void *)&bits : at, sizeof single);
        printf("%.9g", (double)single);
    }
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

/* Returns memory for n rows, or NULL. */
static unsigned char *room(int64_t width, int n) {
    unsigned char *rows = NULL;
    if (n == 0 || (uint64_t)width <= SIZE_MAX / 2 / (uint64_t)n) rows = malloc((size_t)width * (size_t)n + 1);
    if (rows == NULL) fprintf(stderr, "native_gather: there is no memory for so many rows at once\n");
    return rows;
}

static int print_bytes(meft_rows *table, const int64_t *ids, int n) {
    int64_t width, i, j;
    unsigned char *rows;

    if (meft_rows_width(table, &width)) return failed();
    if ((rows = room(width, n)) == NULL) return 1;
    if (meft_rows_gather(table, ids, n, rows, width * n)) {
        free(rows);
        return failed();
    }
    for (i = 0; i < n; i++) {
        for (j = 0; j < width; j++) printf("%02x", rows[i * width + j]);
        putchar('\n');
    }
    free(rows);
    return 0;
}

/* Has each row decoded as a bag of its own. */
static int print_numbers(meft_rows *table, const int64_t *ids, int n, int32_t kind, int64_t columns) {
    meft_rows_bag_options options = MEFT_ROWS_BAG_OPTIONS_INIT;
    int64_t size = size_of(kind), i, j;
    int64_t *offsets = malloc(((size_t)n + 1) * sizeof *offsets);
    unsigned char *rows = room(columns * size, n);
    int status = 1;

    options.kind = kind;
    options.mode = MEFT_ROWS_MAX;
    if (rows != NULL && offsets != NULL) {
        for (i = 0; i < n; i++) offsets[i] = i;
        if (meft_rows_embedding_bag(table, ids, n, offsets, n, &options, rows, columns * size * n)) {
            status = failed();
        } else {
            for (i = 0; i < n; i++) {
                for (j = 0; j < columns; j++) {
                    if (j) putchar(' ');
                    print_number(rows + (i * columns + j) * size, kind);
                }
                putchar('\n');
            }
            status = 0;
        }
    }
    free(rows);
    free(offsets);
    return status;
}

static int gather(meft_rows *table, const int64_t *ids, int n, int how) {
    int32_t kind;
    int64_t columns, width;

    if (meft_rows_kind(table, &kind, &columns) || meft_rows_width(table, &width)) return failed();
    if (how == 'f' && kind == MEFT_ROWS_UNKNOWN) {
        if (width % 4) {
            fprintf(stderr, "native_gather: rows of %lld bytes are no floats\n", (long long)width);
            return 1;
        }
        kind = MEFT_ROWS_FP32;
        columns = width / 4;
    }
    if (how == 'f' && kind == MEFT_ROWS_OTHER) {
        fprintf(stderr, "native_gather: the table records that its rows are no floats\n");
        return 1;
    }
    if (how == 'x' || kind == MEFT_ROWS_UNKNOWN || kind == MEFT_ROWS_OTHER) return print_bytes(table, ids, n);
    return print_numbers(table, ids, n, kind, columns);
}

int main(int argc, char **argv) {
    int how = argc > 1 && (strcmp(argv[1], "-f") == 0 || strcmp(argv[1], "-x") == 0) ? argv[1][1] : 0;
    int first = how ? 2 : 1;
    int n = argc - first - 1;
    meft_rows *table;
    int64_t *ids;
    int status = 2;

    if (n < 0 || argv[first][0] == '-') {
        fprintf(stderr,
                "usage: native_gather [-f | -x] TABLE ID...\n"
                "prints each row on a line: its numbers if the table records what they are, or with -f as\n"
                "floats if it does not; otherwise, and with -x, as hexadecimal bytes\n");
        return 2;
    }
    ids = malloc(((size_t)n + 1) * sizeof *ids);
    if (ids == NULL) return 1;
    if (read_ids(argv + first + 1, n, ids)) {
        if (meft_rows_open(argv[first], NULL, &table)) {
            status = failed();
        } else {
            status = gather(table, ids, n, how);
            if (meft_rows_close(table)) status = failed();
        }
    }
    free(ids);
    return fflush(stdout) || ferror(stdout) ? 1 : status;
}
