/*
 * meft_rows.h - row tables (MEFTNAT1 files) for C99 and C++.
 *
 * A table is an immutable file of rows of one width; every row has a number for ever. Tables are
 * written by ngram_store.pack_native (Python) or package rowtable (Go). The bundles of the exporters
 * and of pack_quantized(..., native=True) are folders with such a file, BUNDLE/table.men.
 *
 *     meft_rows *table;
 *     if (meft_rows_open("table.men", NULL, &table) != MEFT_ROWS_OK) {
 *         char text[512];
 *         meft_rows_last_error(text, sizeof text);
 *         ...
 *     }
 *     meft_rows_gather(table, ids, n, out, n * width);
 *     meft_rows_close(table);
 *
 * Building a program. "make native" puts the library and this header into the directory build:
 *
 *     cc -std=c99 -Ibuild program.c -Lbuild -lmeft_rows -Wl,-rpath,"$PWD/build" -o program
 *
 * Results. A function returns MEFT_ROWS_OK or one of the negative codes below, which never change
 * their meaning; new ones may be added. What it was to write through a pointer is undefined then,
 * unless said otherwise.
 *
 * Threads. Every function may be called from any threads at once, with the same table, too;
 * closing a table waits for the calls that use it.
 *
 * Memory. The library keeps no pointer of the caller's after a call. Buffers of ids, offsets and
 * weights must be aligned to their elements, those of rows need not be; none may be changed by
 * others during the call, and out must not overlap what is read. A count or a size is of what is
 * there: a pointer may be NULL when its count is 0.
 *
 * What a host must know. The library contains a Go runtime, which starts some threads when it is
 * loaded and can't be unloaded (dlclose does nothing).
 *  - Signals. Loading it handles SIGBUS, SIGSEGV, SIGFPE, SIGPIPE and SIGURG; what does not concern it goes
 *    to the handlers that were there before, or does what it did by default. Handlers that may run on
 *    the library's own threads need SA_ONSTACK, as with every Go runtime. A thread that calls the
 *    library no longer blocks SIGBUS, SIGSEGV and SIGFPE.
 *  - Shortened files. A table that someone shortens while it is open gives MEFT_ROWS_FAULT, also if the host
 *    sets or ignores SIGBUS itself: while a call reads a table the library's handler comes first, and
 *    the host's gets every SIGBUS that is not the library's. (So do not change the handler of SIGBUS while
 *    calls run.)
 *  - Do not call it from a signal handler.
 *  - fork. A child without exec has no runtime: every function returns MEFT_ROWS_STALE there, and
 *    the parent is not affected. Load the library after forking, or exec.
 *  - When the process has no memory left, the runtime ends it.
 *  - The environment variable GOMAXPROCS bounds the processors in use, GOMEMLIMIT and GOGC govern
 *    the runtime's own small heap.
 */
#ifndef MEFT_ROWS_H
#define MEFT_ROWS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MEFT_ROWS_VERSION "0.1.0"

/* An open table. It is a number in disguise, checked at every call: NULL, a closed table and a
 * pointer from elsewhere are MEFT_ROWS_CLOSED, not a crash. */
typedef struct meft_rows meft_rows;

enum {
    MEFT_ROWS_OK = 0,
    MEFT_ROWS_MEMORY = -1,    /* memory could not be had */
    MEFT_ROWS_IO = -2,        /* a file operation failed */
    MEFT_ROWS_INDEX = -3,     /* an id outside the table */
    MEFT_ROWS_FULL = -5,      /* more open tables than there is room for */
    MEFT_ROWS_BUFFER = -6,    /* a buffer whose size does not fit */
    MEFT_ROWS_CORRUPT = -7,   /* a damaged file */
    MEFT_ROWS_FORMAT = -8,    /* a file of another kind, or of a newer version */
    MEFT_ROWS_CLOSED = -10,   /* no open table */
    MEFT_ROWS_ARGUMENT = -11, /* a value that is not allowed */
    MEFT_ROWS_TYPE = -12,     /* rows of an unknown kind, or of another than is recorded */
    MEFT_ROWS_NOT_FOUND = -15, /* no file at the path */
    MEFT_ROWS_FAULT = -16,    /* a file was shortened, or failed, while it was read */
    MEFT_ROWS_INTERNAL = -17, /* a bug of the library */
    MEFT_ROWS_STALE = -21     /* called in a forked child */
};

/* The library's MEFT_ROWS_VERSION. */
const char *meft_rows_version(void);

/* Copies what was wrong in the last call of this thread that failed, as text with a final zero, cut off
 * where buffer ends, and returns the size that all of it needs with the zero. The text is empty
 * when no call failed. A buffer of size 0 may be NULL. */
int64_t meft_rows_last_error(char *buffer, int64_t size);

enum { MEFT_ROWS_CACHE_BLOCKS = 0, MEFT_ROWS_CACHE_ROWS = 1 };

/* How a table is read. Structures begin with their size, so that later versions can have more
 * fields; in those that a caller fills, all fields of 0 are the defaults. */
typedef struct meft_rows_options {
    uint64_t size;        /* sizeof(meft_rows_options) */
    int64_t cache_bytes;  /* bound of the memory for decoded rows that are kept; 0: none */
    int32_t cache_policy; /* MEFT_ROWS_CACHE_BLOCKS, or MEFT_ROWS_CACHE_ROWS for single rows */
    int32_t threads;      /* of one call, the caller's included; 0: as many as processors */
    int64_t chunk_rows;   /* ids of a call handled at once, which bounds its memory; 0: 65536; less: all */
    int32_t verify;       /* other than 0: read and check the whole file at once */
    int32_t reserved;     /* 0 */
} meft_rows_options;

#define MEFT_ROWS_OPTIONS_INIT {sizeof(meft_rows_options), 0, 0, 0, 0, 0, 0}

/* Opens the table in a file. options may be NULL. On failure *table is NULL. */
int32_t meft_rows_open(const char *path, const meft_rows_options *options, meft_rows **table);

/* Waits for the calls that use the table, and closes it. */
int32_t meft_rows_close(meft_rows *table);

/* The number of rows, and the bytes of one. */
int32_t meft_rows_count(meft_rows *table, int64_t *rows);
int32_t meft_rows_width(meft_rows *table, int64_t *bytes);

/* What the bytes of a row are, as the file records it. Numbers are little-endian. */
enum {
    MEFT_ROWS_UNKNOWN = 0, /* the table does not record it */
    MEFT_ROWS_FP32 = 1,
    MEFT_ROWS_FP64 = 2,
    MEFT_ROWS_FP16 = 3,
    MEFT_ROWS_BF16 = 4,
    MEFT_ROWS_INT8 = 5,          /* codes, then a float scale */
    MEFT_ROWS_UINT8_ROWWISE = 6, /* codes, then a float scale and bias: torch's byte rowwise */
    MEFT_ROWS_INT4_ROWWISE = 7,  /* codes, then an fp16 scale and bias: torch's 4-bit rowwise */
    MEFT_ROWS_OTHER = 255        /* numbers of none of these kinds, such as integers */
};

/* The kind that the table records, and the columns of such a row: of an odd number of 4-bit ones, one more.
 * 0 columns of MEFT_ROWS_UNKNOWN and MEFT_ROWS_OTHER. columns may be NULL. */
int32_t meft_rows_kind(meft_rows *table, int32_t *kind, int64_t *columns);

/* Copies the rows of n ids to out, one behind the other; out_bytes must be n * width. All ids are
 * checked before anything is written. */
int32_t meft_rows_gather(meft_rows *table, const int64_t *ids, int64_t n, void *out, int64_t out_bytes);

/* The same with another chunk_rows than the table's: less than 0 for all ids at once, 0 for the table's. */
int32_t meft_rows_gather_chunked(meft_rows *table, const int64_t *ids, int64_t n, int64_t chunk_rows, void *out,
                                 int64_t out_bytes);

enum { MEFT_ROWS_SUM = 0, MEFT_ROWS_MEAN = 1, MEFT_ROWS_MAX = 2 };

/* In torch's order and precision, to the bit; or in double precision, rounded once. */
enum { MEFT_ROWS_TORCH = 0, MEFT_ROWS_F64 = 1 };

typedef struct meft_rows_bag_options {
    uint64_t size;        /* sizeof(meft_rows_bag_options) */
    int32_t kind;         /* of the rows; MEFT_ROWS_UNKNOWN: as recorded, FP32 where it is not */
    int32_t mode;         /* MEFT_ROWS_SUM, ... */
    int32_t accumulate;   /* MEFT_ROWS_TORCH or MEFT_ROWS_F64 */
    int32_t include_last; /* other than 0: there is one more offset, which is n */
    int32_t has_padding;  /* other than 0: look-ups of padding_id are left out */
    int32_t reserved;     /* 0 */
    int64_t padding_id;
    int64_t columns;      /* of a row; 0: as many as its bytes make */
} meft_rows_bag_options;

#define MEFT_ROWS_BAG_OPTIONS_INIT {sizeof(meft_rows_bag_options), 0, 0, 0, 0, 0, 0, 0, 0}

/* Reduces bags of rows: bag b consists of the rows of ids[offsets[b]] up to ids[offsets[b + 1]], and the
 * last one of the rest of the n ids. Offsets begin with 0 and never fall. out takes for each bag the
 * columns as numbers of the rows' kind, as floats if that is one with codes; out_bytes must be the
 * size of that. A kind that is not the recorded one is MEFT_ROWS_TYPE. An empty bag is all zeros. options
 * may be NULL: sums of MEFT_ROWS_UNKNOWN. Everything is checked before anything is written. */
int32_t meft_rows_embedding_bag(meft_rows *table, const int64_t *ids, int64_t n, const int64_t *offsets,
                                int64_t n_offsets, const meft_rows_bag_options *options, void *out,
                                int64_t out_bytes);

/* The same with a weight for each id, which goes with MEFT_ROWS_SUM only. */
int32_t meft_rows_embedding_bag_weighted(meft_rows *table, const int64_t *ids, const float *weights, int64_t n,
                                         const int64_t *offsets, int64_t n_offsets,
                                         const meft_rows_bag_options *options, void *out, int64_t out_bytes);

/* What a table did since it was opened. Raw rows are neither hits nor misses. */
typedef struct meft_rows_counters {
    uint64_t size; /* sizeof(meft_rows_counters), set by the caller: no more is written */
    int64_t queries;
    int64_t rows;
    int64_t blocks_decoded;
    int64_t compressed_bytes; /* of the decoded blocks, as stored */
    int64_t decoded_bytes;
    int64_t cache_hits;
    int64_t cache_misses;
    int64_t last_blocks_decoded; /* of the call that ended last, whichever thread made it */
    int64_t last_compressed_bytes;
    int64_t last_decoded_bytes;
    int64_t last_cache_hits;
    int64_t last_cache_misses;
    int64_t cache_entries; /* rows or blocks in the present cache */
    int64_t cache_capacity;
    int64_t cache_bytes; /* of memory, when the cache is full */
} meft_rows_counters;

#define MEFT_ROWS_COUNTERS_INIT {sizeof(meft_rows_counters), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

int32_t meft_rows_stats(meft_rows *table, meft_rows_counters *counters);

/* Replaces the table's cache by an empty one of at most so many bytes; 0: none. */
int32_t meft_rows_set_cache(meft_rows *table, int64_t cache_bytes, int32_t cache_policy);

#ifdef __cplusplus
}
#endif

#endif
