/* What the test programs share. They are compiled as C99 and as C++17. */
#ifndef CHECK_H
#define CHECK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* C++ compilers define it themselves */
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "meft_rows.h"

#define CHECK(condition)                                                                                  \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            char said_[512];                                                                              \
            meft_rows_last_error(said_, (int64_t)sizeof said_);                                           \
            fprintf(stderr, "%s:%d: %s: last error: %s\n", __FILE__, __LINE__, #condition, said_);        \
            exit(1);                                                                                      \
        }                                                                                                 \
    } while (0)

#define OK(call) CHECK((call) == MEFT_ROWS_OK)

/* Whether a text has a part. In parentheses strstr is no macro, which pedantic compilers refuse in zig's headers. */
static inline int contains(const char *text, const char *part) { return (strstr)(text, part) != NULL; }

/* Memory whose end is followed by a page that can't be touched. It is never given back. */
static inline unsigned char *at_the_edge(int64_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t room = ((size_t)size + page - 1) / page * page;
    unsigned char *p = (unsigned char *)mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK(mprotect(p + room, page, PROT_NONE) == 0);
    return p + room - size;
}

/* A whole file, and 8 bytes where it ends; free gives it back. */
static inline unsigned char *content(const char *path, int64_t *size) {
    FILE *f = fopen(path, "rb");
    unsigned char *bytes;
    CHECK(f != NULL && fseek(f, 0, SEEK_END) == 0);
    *size = ftell(f);
    rewind(f);
    bytes = (unsigned char *)malloc((size_t)*size + 8);
    CHECK(bytes != NULL && fread(bytes, 1, (size_t)*size, f) == (size_t)*size);
    fclose(f);
    return bytes;
}

static inline int64_t open_descriptors(void) {
    int64_t n = 0;
    int fd;
    for (fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) != -1;
    return n;
}

#endif
