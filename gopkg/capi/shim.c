// The functions of meft_rows.h. They turn pointers into numbers for Go, which checks and does
// everything else, and keep what must be C: the text of a thread's last error, and what a fork leaves.

#include <pthread.h>
#include <string.h>

#include "_cgo_export.h"
#include "faults.h"
#include "meft_rows.h"

_Static_assert(sizeof(void *) == 8, "a handle is a number of 64 bits");

#define AT(pointer) ((uint64_t)(uintptr_t)(pointer))

// The text of the thread's last error, and its size with the zero.
static __thread char text[1024];
static __thread int64_t text_size;

// Set in a forked child, where no thread of the Go runtime lives and a call would wait for ever.
static int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static int32_t fail(int32_t code, const char *what) {
    size_t n = strlen(what);
    memcpy(text, what, n + 1);
    text_size = (int64_t)n + 1;
    return code;
}

#define NOT_IN_CHILD()                                                                                             \
    do {                                                                                                           \
        if (forked) return fail(MEFT_ROWS_STALE, "called in a forked child, which can't use the library");         \
    } while (0)

#define TEXT AT(text), (int64_t)sizeof text, AT(&text_size)

// take copies a caller's structure, of which it has an older or a newer form: what it lacks is 0, and what
// this library does not know must be 0.
static int take(void *to, size_t known, size_t least, const void *from) {
    uint64_t size;
    const unsigned char *bytes = from;
    if (from == NULL) return 1;
    memcpy(&size, from, sizeof size);
    if (size < least || size > 4096) return 0;
    for (uint64_t i = known; i < size; i++) {
        if (bytes[i]) return 0;
    }
    memcpy(to, from, size < known ? (size_t)size : known);
    return 1;
}

#define BAD_SIZE(name) fail(MEFT_ROWS_ARGUMENT, name ": the structure's size is none that this library knows, or an unknown field is set")

const char *meft_rows_version(void) { return MEFT_ROWS_VERSION; }

int64_t meft_rows_last_error(char *buffer, int64_t size) {
    const char *said = text_size ? text : "";
    size_t n = strlen(said);
    if (buffer != NULL && size > 0) {
        size_t fits = (uint64_t)size > n ? n : (size_t)size - 1;
        memcpy(buffer, said, fits);
        buffer[fits] = 0;
    }
    return (int64_t)n + 1;
}

int32_t meft_rows_open(const char *path, const meft_rows_options *options, meft_rows **table) {
    meft_rows_options o = MEFT_ROWS_OPTIONS_INIT;
    int64_t id = 0;
    int32_t code;
    NOT_IN_CHILD();
    if (table == NULL) return fail(MEFT_ROWS_ARGUMENT, "open: no place for the table");
    *table = NULL;
    if (path == NULL) return fail(MEFT_ROWS_ARGUMENT, "open: no path");
    if (!take(&o, sizeof o, sizeof o, options)) return BAD_SIZE("open");
    if (o.reserved) return fail(MEFT_ROWS_ARGUMENT, "open: a reserved field is not 0");
    int held = faults_hold();
    code = capiOpen(AT(path), (int64_t)strlen(path), o.cache_bytes, o.cache_policy, o.threads, o.chunk_rows, o.verify, AT(&id), TEXT);
    faults_release(held);
    *table = (meft_rows *)(uintptr_t)id;
    return code;
}

int32_t meft_rows_close(meft_rows *table) {
    NOT_IN_CHILD();
    return capiClose(AT(table), TEXT);
}

int32_t meft_rows_count(meft_rows *table, int64_t *rows) {
    NOT_IN_CHILD();
    return capiCount(AT(table), AT(rows), TEXT);
}

int32_t meft_rows_width(meft_rows *table, int64_t *bytes) {
    NOT_IN_CHILD();
    return capiWidth(AT(table), AT(bytes), TEXT);
}

int32_t meft_rows_kind(meft_rows *table, int32_t *kind, int64_t *columns) {
    int64_t number = MEFT_ROWS_UNKNOWN, dim = 0;
    NOT_IN_CHILD();
    if (kind == NULL) return fail(MEFT_ROWS_ARGUMENT, "kind: no place for it");
    int32_t code = capiKind(AT(table), AT(&number), AT(&dim), TEXT);
    if (code == MEFT_ROWS_OK) {
        *kind = (int32_t)number;
        if (columns != NULL) *columns = dim;
    }
    return code;
}

static int32_t gather(meft_rows *table, const int64_t *ids, int64_t n, int64_t chunk_rows, void *out,
                      int64_t out_bytes) {
    NOT_IN_CHILD();
    int held = faults_hold();
    int32_t code = capiGather(AT(table), AT(ids), n, chunk_rows, AT(out), out_bytes, TEXT);
    faults_release(held);
    return code;
}

int32_t meft_rows_gather(meft_rows *table, const int64_t *ids, int64_t n, void *out, int64_t out_bytes) {
    return gather(table, ids, n, 0, out, out_bytes);
}

int32_t meft_rows_gather_chunked(meft_rows *table, const int64_t *ids, int64_t n, int64_t chunk_rows, void *out,
                                 int64_t out_bytes) {
    return gather(table, ids, n, chunk_rows, out, out_bytes);
}

static int32_t embedding_bag(meft_rows *table, const int64_t *ids, const float *weights, int weighted, int64_t n,
                             const int64_t *offsets, int64_t n_offsets, const meft_rows_bag_options *options,
                             void *out, int64_t out_bytes) {
    meft_rows_bag_options o = MEFT_ROWS_BAG_OPTIONS_INIT;
    NOT_IN_CHILD();
    if (!take(&o, sizeof o, sizeof o, options)) return BAD_SIZE("embedding bag");
    if (o.reserved) return fail(MEFT_ROWS_ARGUMENT, "embedding bag: a reserved field is not 0");
    int held = faults_hold();
    int32_t code = capiBag(AT(table), AT(ids), n, AT(offsets), n_offsets, AT(weights), weighted,
                           o.kind, o.mode, o.accumulate, o.include_last, o.has_padding, o.padding_id, o.columns, AT(out), out_bytes, TEXT);
    faults_release(held);
    return code;
}

int32_t meft_rows_embedding_bag(meft_rows *table, const int64_t *ids, int64_t n, const int64_t *offsets,
                                int64_t n_offsets, const meft_rows_bag_options *options, void *out,
                                int64_t out_bytes) {
    return embedding_bag(table, ids, NULL, 0, n, offsets, n_offsets, options, out, out_bytes);
}

int32_t meft_rows_embedding_bag_weighted(meft_rows *table, const int64_t *ids, const float *weights, int64_t n,
                                         const int64_t *offsets, int64_t n_offsets,
                                         const meft_rows_bag_options *options, void *out, int64_t out_bytes) {
    return embedding_bag(table, ids, weights, 1, n, offsets, n_offsets, options, out, out_bytes);
}

int32_t meft_rows_stats(meft_rows *table, meft_rows_counters *counters) {
    meft_rows_counters c;
    uint64_t size;
    NOT_IN_CHILD();
    if (counters == NULL) return fail(MEFT_ROWS_ARGUMENT, "stats: no place for the counters");
    size = counters->size;
    if (size < sizeof size || size > 4096) return BAD_SIZE("stats");
    int32_t code = capiStats(AT(table), AT((char *)&c + sizeof c.size), (sizeof c - sizeof c.size) / sizeof c.rows, TEXT);
    if (code == MEFT_ROWS_OK) {
        memset((char *)counters + sizeof size, 0, size - sizeof size);
        memcpy((char *)counters + sizeof size, (char *)&c + sizeof size, (size < sizeof c ? size : sizeof c) - sizeof size);
    }
    return code;
}

int32_t meft_rows_set_cache(meft_rows *table, int64_t cache_bytes, int32_t cache_policy) {
    NOT_IN_CHILD();
    return capiSetCache(AT(table), cache_bytes, cache_policy, TEXT);
}
