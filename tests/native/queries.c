/* queries FILE - do what a file says, a line each, and compare the results:
 *   open TABLE cache_bytes cache_policy threads chunk_rows verify
 *   gather IDS chunk_rows EXPECTED            (0: gather, else gather_chunked)
 *   bag IDS OFFSETS WEIGHTS|- kind mode accumulate include_last has_padding padding columns EXPECTED
 *   close
 * Files hold int64, weights float. Buffers are exactly as large as they must be. */

#include "check.h"

static meft_rows *table;

/* A file's bytes, up to the edge of what can be read. */
static unsigned char *edge(const char *path, int64_t *size) {
    unsigned char *bytes = content(path, size), *moved = at_the_edge(*size);
    memcpy(moved, bytes, (size_t)*size);
    free(bytes);
    return moved;
}

static void compare(const unsigned char *out, const unsigned char *expected, int64_t size, const char *line) {
    int64_t i;
    for (i = 0; i < size; i++) {
        if (out[i] != expected[i]) {
            fprintf(stderr, "byte %lld is %d, not %d: %s", (long long)i, out[i], expected[i], line);
            exit(1);
        }
    }
}

static void gather(const char *line) {
    char ids_path[1024], expected_path[1024];
    long long chunk;
    int64_t ids_size, size;
    unsigned char *ids, *expected, *out;
    CHECK(sscanf(line, "gather %1023s %lld %1023s", ids_path, &chunk, expected_path) == 3);
    ids = edge(ids_path, &ids_size);
    expected = edge(expected_path, &size);
    out = at_the_edge(size);
    if (chunk == 0) {
        OK(meft_rows_gather(table, (const int64_t *)(void *)ids, ids_size / 8, out, size));
    } else {
        OK(meft_rows_gather_chunked(table, (const int64_t *)(void *)ids, ids_size / 8, chunk, out, size));
    }
    compare(out, expected, size, line);
}

static void bag(const char *line) {
    char ids_path[1024], offsets_path[1024], weights_path[1024], expected_path[1024];
    long long padding, columns;
    int64_t ids_size, offsets_size, weights_size, size;
    unsigned char *ids, *offsets, *weights, *expected, *out;
    meft_rows_bag_options o = MEFT_ROWS_BAG_OPTIONS_INIT;
    CHECK(sscanf(line, "bag %1023s %1023s %1023s %d %d %d %d %d %lld %lld %1023s", ids_path, offsets_path, weights_path, &o.kind,
                 &o.mode, &o.accumulate, &o.include_last, &o.has_padding, &padding, &columns, expected_path) == 11);
    o.padding_id = padding;
    o.columns = columns;
    ids = edge(ids_path, &ids_size);
    offsets = edge(offsets_path, &offsets_size);
    expected = edge(expected_path, &size);
    out = at_the_edge(size);
    if (weights_path[0] == '-') {
        OK(meft_rows_embedding_bag(table, (const int64_t *)(void *)ids, ids_size / 8, (const int64_t *)(void *)offsets,
                                   offsets_size / 8, &o, out, size));
    } else {
        weights = edge(weights_path, &weights_size);
        CHECK(weights_size * 2 == ids_size);
        OK(meft_rows_embedding_bag_weighted(table, (const int64_t *)(void *)ids, (const float *)(void *)weights, ids_size / 8,
                                            (const int64_t *)(void *)offsets, offsets_size / 8, &o, out, size));
    }
    compare(out, expected, size, line);
}

static void open_table(const char *line) {
    char path[1024];
    long long cache, chunk;
    meft_rows_options o = MEFT_ROWS_OPTIONS_INIT;
    CHECK(sscanf(line, "open %1023s %lld %d %d %lld %d", path, &cache, &o.cache_policy, &o.threads, &chunk, &o.verify) == 6);
    o.cache_bytes = cache;
    o.chunk_rows = chunk;
    OK(meft_rows_open(path, &o, &table));
}

int main(int argc, char **argv) {
    char line[8192];
    FILE *f;
    int done = 0;
    CHECK(argc == 2 && (f = fopen(argv[1], "r")) != NULL);
    while (fgets(line, (int)sizeof line, f) != NULL) {
        if (!strncmp(line, "open", 4)) {
            open_table(line);
        } else if (!strncmp(line, "gather", 6)) {
            gather(line);
        } else if (!strncmp(line, "bag", 3)) {
            bag(line);
        } else {
            OK(meft_rows_close(table));
        }
        done++;
    }
    fclose(f);
    printf("%d\n", done);
    return 0;
}
