/* arguments TABLE ROWS - every argument that can be wrong is an error; ROWS has the table's rows. */

#include "check.h"

#include <pthread.h>

static const char *table_path;
static meft_rows *table;
static int64_t rows, width;
static unsigned char *expected;

static void expect_text(const char *part) {
    char text[1024];
    CHECK(meft_rows_last_error(text, (int64_t)sizeof text) == (int64_t)strlen(text) + 1);
    if (!contains(text, part)) {
        fprintf(stderr, "\"%s\" has no \"%s\"\n", text, part);
        exit(1);
    }
}

static void opening(void) {
    meft_rows *other = (meft_rows *)&rows;
    unsigned char larger[sizeof(meft_rows_options) + 16];
    meft_rows_options options = MEFT_ROWS_OPTIONS_INIT;

    CHECK(meft_rows_open(NULL, NULL, &other) == MEFT_ROWS_ARGUMENT && other == NULL);
    CHECK(meft_rows_open(table_path, NULL, NULL) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_open("", NULL, &other) == MEFT_ROWS_NOT_FOUND);
    other = (meft_rows *)&rows;
    CHECK(meft_rows_open("/there/is/nothing", NULL, &other) == MEFT_ROWS_NOT_FOUND && other == NULL);
    expect_text("/there/is/nothing");
    CHECK(meft_rows_open("/", NULL, &other) < 0);
    CHECK(meft_rows_open("/dev/null", NULL, &other) == MEFT_ROWS_FORMAT);

    options.cache_policy = 7;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT);
    options.cache_policy = -1;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT);
    options.cache_policy = 0;
    options.cache_bytes = -1;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT);
    options.cache_bytes = 0;
    options.threads = -1;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT);
    options.threads = 0;
    options.reserved = 1;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT);
    options.reserved = 0;
    options.size = 0;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT);
    options.size = UINT64_MAX;
    CHECK(meft_rows_open(table_path, &options, &other) == MEFT_ROWS_ARGUMENT && other == NULL);

    /* A host compiled for a later version, whose new fields are not used, or are. */
    memset(larger, 0, sizeof larger);
    options.size = sizeof larger;
    options.verify = 1;
    memcpy(larger, &options, sizeof options);
    OK(meft_rows_open(table_path, (const meft_rows_options *)(const void *)larger, &other));
    OK(meft_rows_close(other));
    larger[sizeof larger - 1] = 1;
    CHECK(meft_rows_open(table_path, (const meft_rows_options *)(const void *)larger, &other) == MEFT_ROWS_ARGUMENT);
}

static void gathering(void) {
    int64_t ids[4] = {0, 1, 0, 0}, more = width * 3;
    unsigned char *out = at_the_edge(more);
    unsigned char before[1] = {0xEE};
    unsigned char unaligned[sizeof ids + 1];

    ids[2] = rows - 1;
    OK(meft_rows_gather(table, ids, 3, out, more));
    CHECK(!memcmp(out, expected, (size_t)width * 2) && !memcmp(out + 2 * width, expected + (rows - 1) * width, (size_t)width));
    OK(meft_rows_gather(table, NULL, 0, NULL, 0));
    OK(meft_rows_gather_chunked(table, ids, 3, 1, out, more));
    OK(meft_rows_gather_chunked(table, ids, 3, -1, out, more));

    CHECK(meft_rows_gather(table, NULL, 3, out, more) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_gather(table, ids, 3, NULL, more) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_gather(table, ids, -1, out, more) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_gather(table, ids, INT64_MIN, out, more) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_gather(table, ids, INT64_MAX, out, more) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_gather(table, ids, INT64_MAX / 8, out, INT64_MAX) == MEFT_ROWS_BUFFER);
    CHECK(meft_rows_gather(table, ids, 3, out, -1) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_gather(table, ids, 3, out, more - 1) == MEFT_ROWS_BUFFER);
    CHECK(meft_rows_gather(table, ids, 2, out, more) == MEFT_ROWS_BUFFER);
    memcpy(unaligned + 1, ids, sizeof ids);
    CHECK(meft_rows_gather(table, (const int64_t *)(const void *)(unaligned + (((uintptr_t)unaligned & 7) == 0)), 3, out, more) ==
          MEFT_ROWS_ARGUMENT);

    memset(out, before[0], (size_t)more);
    ids[1] = rows;
    CHECK(meft_rows_gather(table, ids, 3, out, more) == MEFT_ROWS_INDEX && out[0] == before[0]);
    expect_text("position 1");
    ids[1] = -1;
    CHECK(meft_rows_gather_chunked(table, ids, 3, 1, out, more) == MEFT_ROWS_INDEX && out[0] == before[0]);
    ids[1] = INT64_MIN;
    CHECK(meft_rows_gather(table, ids, 3, out, more) == MEFT_ROWS_INDEX);
}

static void counting(void) {
    meft_rows_counters c = MEFT_ROWS_COUNTERS_INIT, short_one = MEFT_ROWS_COUNTERS_INIT;
    unsigned char larger[sizeof c + 8];
    uint64_t size = sizeof larger;
    CHECK(meft_rows_count(table, NULL) == MEFT_ROWS_ARGUMENT && meft_rows_width(table, NULL) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_stats(table, NULL) == MEFT_ROWS_ARGUMENT);
    OK(meft_rows_stats(table, &c));
    CHECK(c.size == sizeof c && c.queries > 0 && c.rows >= c.queries && c.cache_bytes == 0);
    short_one.size = 0;
    CHECK(meft_rows_stats(table, &short_one) == MEFT_ROWS_ARGUMENT);
    short_one.size = 24; /* an older header's */
    short_one.blocks_decoded = -5;
    OK(meft_rows_stats(table, &short_one));
    CHECK(short_one.rows == c.rows && short_one.blocks_decoded == -5);
    memset(larger, 0xEE, sizeof larger);
    memcpy(larger, &size, sizeof size);
    OK(meft_rows_stats(table, (meft_rows_counters *)(void *)larger));
    CHECK(larger[sizeof larger - 1] == 0); /* a newer header's, which this library does not count */

    CHECK(meft_rows_set_cache(table, -1, MEFT_ROWS_CACHE_ROWS) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_set_cache(table, 1 << 20, 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_set_cache(table, 1 << 20, 256) == MEFT_ROWS_ARGUMENT);
    OK(meft_rows_set_cache(table, 1 << 20, MEFT_ROWS_CACHE_ROWS));
    OK(meft_rows_stats(table, &c));
    CHECK(c.cache_capacity > 0 && c.cache_bytes <= 1 << 20);
    OK(meft_rows_set_cache(table, 0, MEFT_ROWS_CACHE_BLOCKS));
}

static void kinds(void) {
    int32_t kind = 99;
    int64_t columns = 99;
    OK(meft_rows_kind(table, &kind, &columns));
    CHECK(kind == MEFT_ROWS_FP32 && columns == width / 4);
    kind = 99;
    OK(meft_rows_kind(table, &kind, NULL));
    CHECK(kind == MEFT_ROWS_FP32);
    CHECK(meft_rows_kind(table, NULL, &columns) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_kind(NULL, &kind, &columns) == MEFT_ROWS_CLOSED);
}

static void bags(void) {
    int64_t ids[3] = {0, 1, 2}, offsets[3] = {0, 1, 3};
    float weights[3] = {1, 2, 3};
    unsigned char *out = at_the_edge(width * 2);
    meft_rows_bag_options o = MEFT_ROWS_BAG_OPTIONS_INIT;

    OK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, NULL, out, width * 2));
    CHECK(!memcmp(out, expected, (size_t)width));
    CHECK(o.kind == MEFT_ROWS_UNKNOWN); /* as recorded */
    OK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2));
    CHECK(!memcmp(out, expected, (size_t)width));
    for (o.kind = MEFT_ROWS_FP64; o.kind <= MEFT_ROWS_INT4_ROWWISE; o.kind++) {
        CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_TYPE);
        expect_text("they are recorded as fp32");
    }
    o.kind = MEFT_ROWS_FP32;
    o.include_last = 1;
    OK(meft_rows_embedding_bag_weighted(table, ids, weights, 3, offsets, 3, &o, out, width * 2));
    CHECK(!memcmp(out, expected, (size_t)width));
    OK(meft_rows_embedding_bag(table, NULL, 0, NULL, 0, NULL, NULL, 0));
    CHECK(meft_rows_embedding_bag(table, NULL, 0, NULL, 0, &o, NULL, 0) == MEFT_ROWS_ARGUMENT);

    CHECK(meft_rows_embedding_bag(table, NULL, 3, offsets, 2, NULL, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag(table, ids, 3, NULL, 2, NULL, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, NULL, NULL, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, -2, NULL, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, INT64_MAX, NULL, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, NULL, out, width) == MEFT_ROWS_BUFFER);
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets + 1, 2, NULL, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag(table, ids, 2, offsets, 3, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag_weighted(table, ids, NULL, 3, offsets, 2, NULL, out, width * 2) == MEFT_ROWS_ARGUMENT);
    o.include_last = 0;
    o.mode = MEFT_ROWS_MEAN;
    CHECK(meft_rows_embedding_bag_weighted(table, ids, weights, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    CHECK(meft_rows_embedding_bag_weighted(table, NULL, NULL, 0, offsets, 1, &o, out, width) == MEFT_ROWS_ARGUMENT);
    o.mode = 3;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    o.mode = MEFT_ROWS_SUM;
    o.accumulate = 257;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    o.accumulate = MEFT_ROWS_TORCH;
    o.kind = 99;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_TYPE);
    o.kind = MEFT_ROWS_FP32;
    o.columns = width / 4 + 1;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    o.columns = INT64_MIN;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    o.columns = 0;
    o.has_padding = 1;
    o.padding_id = rows;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    o.size = 8;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, &o, out, width * 2) == MEFT_ROWS_ARGUMENT);
    ids[2] = rows;
    CHECK(meft_rows_embedding_bag(table, ids, 3, offsets, 2, NULL, out, width * 2) == MEFT_ROWS_INDEX);
}

/* Pointers that are no table: none of them is looked at. */
static void foreign(void) {
    int64_t number = 0;
    void *heap = malloc(64);
    meft_rows *closed, *again;
    size_t i;
    OK(meft_rows_open(table_path, NULL, &closed));
    OK(meft_rows_close(closed));
    OK(meft_rows_open(table_path, NULL, &again));
    CHECK(again != closed);
    {
        void *pointers[] = {NULL, closed, &number, heap, (void *)1, (void *)0x100000, (void *)-1, (char *)(void *)table + 1};
        for (i = 0; i < sizeof pointers / sizeof *pointers; i++) {
            meft_rows *bad = (meft_rows *)pointers[i];
            meft_rows_counters c = MEFT_ROWS_COUNTERS_INIT;
            CHECK(meft_rows_close(bad) == MEFT_ROWS_CLOSED);
            CHECK(meft_rows_count(bad, &number) == MEFT_ROWS_CLOSED && meft_rows_width(bad, &number) == MEFT_ROWS_CLOSED);
            CHECK(meft_rows_kind(bad, (int32_t *)heap, NULL) == MEFT_ROWS_CLOSED);
            CHECK(meft_rows_gather(bad, &number, 1, heap, 8) == MEFT_ROWS_CLOSED);
            CHECK(meft_rows_embedding_bag(bad, &number, 1, &number, 1, NULL, heap, 8) == MEFT_ROWS_CLOSED);
            CHECK(meft_rows_stats(bad, &c) == MEFT_ROWS_CLOSED && meft_rows_set_cache(bad, 0, 0) == MEFT_ROWS_CLOSED);
        }
    }
    OK(meft_rows_close(again));
    free(heap);
}

static void *another_thread(void *unused) {
    char text[8] = "unset";
    CHECK(meft_rows_last_error(text, (int64_t)sizeof text) == 1 && text[0] == 0);
    CHECK(meft_rows_close(NULL) == MEFT_ROWS_CLOSED);
    expect_text("close");
    return unused;
}

static void texts(void) {
    char small[6];
    int64_t needed;
    pthread_t thread;
    CHECK(meft_rows_open("/there/is/nothing", NULL, &table) == MEFT_ROWS_NOT_FOUND);
    CHECK(pthread_create(&thread, NULL, another_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    expect_text("/there/is/nothing"); /* the other thread's error is its own */
    OK(meft_rows_open(table_path, NULL, &table));
    expect_text("/there/is/nothing"); /* a call that succeeds leaves it */
    needed = meft_rows_last_error(NULL, 0);
    CHECK(needed > 6 && meft_rows_last_error(small, 6) == needed && strlen(small) == 5);
    CHECK(meft_rows_last_error(small, -1) == needed && meft_rows_last_error(NULL, 100) == needed);
    OK(meft_rows_close(table));
}

int main(int argc, char **argv) {
    int64_t size;
    CHECK(argc == 3 && strcmp(meft_rows_version(), MEFT_ROWS_VERSION) == 0);
    table_path = argv[1];
    expected = content(argv[2], &size);
    texts();
    OK(meft_rows_open(table_path, NULL, &table));
    OK(meft_rows_count(table, &rows));
    OK(meft_rows_width(table, &width));
    CHECK(rows * width == size);
    opening();
    gathering();
    counting();
    kinds();
    bags();
    foreign();
    OK(meft_rows_close(table));
    CHECK(meft_rows_close(table) == MEFT_ROWS_CLOSED);
    free(expected);
    return 0;
}
