/* hostile TABLE... - files that may be anything: rows or an error, and not a byte outside the buffers. Prints how
 * many files gave which code. */

#include "check.h"

enum { IDS = 400, MOST = 1 << 16 };

static int expected(int code) {
    return code == MEFT_ROWS_OK || code == MEFT_ROWS_CORRUPT || code == MEFT_ROWS_FORMAT || code == MEFT_ROWS_FAULT;
}

static int use(meft_rows *table) {
    static int64_t ids[IDS];
    static unsigned char *edge;
    int64_t rows, width, n, i, zero = 0;
    int code, all = MEFT_ROWS_OK;
    meft_rows_bag_options o = MEFT_ROWS_BAG_OPTIONS_INIT;
    if (edge == NULL) edge = at_the_edge((int64_t)MOST * 8) + (int64_t)MOST * 8;
    OK(meft_rows_count(table, &rows));
    OK(meft_rows_width(table, &width));
    CHECK(rows >= 0 && width >= 1);
    n = rows == 0 || width > MOST ? 0 : IDS;
    if (n * width > (int64_t)MOST * 8) n = (int64_t)MOST * 8 / width;
    for (i = 0; i < n; i++) ids[i] = i % 2 ? rows - 1 - i / 2 % rows : i / 2 % rows;
    code = meft_rows_gather(table, ids, n, edge - n * width, n * width);
    if (code) all = code;
    CHECK(expected(code));
    code = meft_rows_gather_chunked(table, ids, n, 7, edge - n * width, n * width);
    if (code) all = code;
    CHECK(expected(code));
    for (i = 0; i < n; i += 13) {
        code = meft_rows_gather(table, ids + i, 1, edge - width, width);
        if (code) all = code;
        CHECK(expected(code));
    }
    for (o.kind = MEFT_ROWS_FP32; o.kind <= MEFT_ROWS_INT4_ROWWISE; o.kind++) {
        /* The bags of quantised rows are wider than they are. Other sizes are refused. */
        int64_t size;
        for (size = width; size <= 8 * width && size <= MOST; size += 4) {
            code = meft_rows_embedding_bag(table, ids, n, &zero, 1, &o, edge - size, size);
            CHECK(expected(code) || code == MEFT_ROWS_BUFFER || code == MEFT_ROWS_ARGUMENT);
            if (code != MEFT_ROWS_BUFFER) break;
        }
    }
    return all;
}

int main(int argc, char **argv) {
    int counts[64] = {0}, i;
    int64_t descriptors = 0;
    for (i = 1; i < argc; i++) {
        meft_rows *table;
        meft_rows_options options = MEFT_ROWS_OPTIONS_INIT;
        int code;
        options.cache_bytes = i % 3 ? 1 << 16 : 0;
        options.cache_policy = i % 2;
        options.verify = i % 5 == 0;
        code = meft_rows_open(argv[i], &options, &table);
        if (code == MEFT_ROWS_OK) {
            code = use(table);
            OK(meft_rows_close(table));
        } else {
            CHECK(table == NULL && expected(code));
        }
        counts[-code]++;
        if (i == 1) descriptors = open_descriptors();
    }
    CHECK(open_descriptors() == descriptors);
    for (i = 0; i < 64; i++) {
        if (counts[i]) printf("%d %d\n", -i, counts[i]);
    }
    return 0;
}
