// Reading a mapped file that someone shortened raises SIGBUS, which Go's handler turns into an error. A host that is
// linked with the library can't but set its own handler after Go's. So during a call, if the handler is not
// Go's, on_fault takes its place: faults in this library go to Go's handler, all others to the host's.

#define _GNU_SOURCE
#include "faults.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#ifdef __APPLE__
#include <sys/ucontext.h>
#else
#include <link.h>
#include <ucontext.h>
#endif

static struct sigaction engine; // Go's handler, once it is known
static int known;
static uintptr_t low, high; // this library's code

static pthread_mutex_t change = PTHREAD_MUTEX_INITIALIZER;
static int users;             // calls that need on_fault
static struct sigaction host; // what on_fault took the place of

static uintptr_t program_counter(void *context) {
    ucontext_t *c = context;
#if defined(__APPLE__) && defined(__x86_64__)
    return c->uc_mcontext->__ss.__rip;
#elif defined(__APPLE__)
    return c->uc_mcontext->__ss.__pc;
#elif defined(__x86_64__)
    return (uintptr_t)c->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return c->uc_mcontext.pc;
#else
    (void)c;
    return 0; // everything is the host's
#endif
}

static int is_mine(uintptr_t at) {
#ifdef __APPLE__
    Dl_info here, there;
    return dladdr((void *)&engine, &here) && dladdr((void *)at, &there) && here.dli_fbase == there.dli_fbase;
#else
    return at - low < high - low;
#endif
}

static void to_host(int sig, siginfo_t *info, void *context) {
    struct sigaction h = host;
    int hardware = info->si_code > 0;
    if (!(h.sa_flags & SA_SIGINFO) && h.sa_handler == SIG_IGN && !hardware) return;
    if (!(h.sa_flags & SA_SIGINFO) && (h.sa_handler == SIG_DFL || h.sa_handler == SIG_IGN)) {
        // As the system does it; the instruction that failed is about to be tried again.
        h.sa_handler = SIG_DFL;
        sigaction(sig, &h, NULL);
        if (!hardware) raise(sig);
        return;
    }
    // The mask that was in force before comes back when the handler returns.
    pthread_sigmask(SIG_BLOCK, &h.sa_mask, NULL);
    if (h.sa_flags & SA_NODEFER) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, sig);
        pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    }
    if (h.sa_flags & SA_SIGINFO) {
        h.sa_sigaction(sig, info, context);
    } else {
        h.sa_handler(sig);
    }
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    if (info->si_code > 0 && is_mine(program_counter(context))) {
        engine.sa_sigaction(sig, info, context);
    } else {
        to_host(sig, info, context);
    }
}

static int is(const struct sigaction *action, void (*handler)(int, siginfo_t *, void *)) {
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == handler;
}

int faults_hold(void) {
    struct sigaction now;
    if (!known || sigaction(SIGBUS, NULL, &now) || is(&now, engine.sa_sigaction)) return 0;
    pthread_mutex_lock(&change);
    users++;
    if (!sigaction(SIGBUS, NULL, &now) && !is(&now, on_fault)) {
        struct sigaction mine = engine;
        mine.sa_sigaction = on_fault;
        host = now;
        sigaction(SIGBUS, &mine, NULL);
    }
    pthread_mutex_unlock(&change);
    return 1;
}

void faults_release(int held) {
    struct sigaction now;
    if (!held) return;
    pthread_mutex_lock(&change);
    if (--users == 0 && !sigaction(SIGBUS, NULL, &now) && is(&now, on_fault)) sigaction(SIGBUS, &host, NULL);
    pthread_mutex_unlock(&change);
}

#ifndef __APPLE__
static int find_code(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)size;
    (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, here = (uintptr_t)find_code;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && here - start < info->dlpi_phdr[i].p_memsz) {
            low = start;
            high = start + info->dlpi_phdr[i].p_memsz;
            return 1;
        }
    }
    return 0;
}
#endif

// Go sets its handlers while the library is loaded, before constructors of C files run: those are linked behind it.
// Should that ever change, the handler found is not this library's, and nothing of the above happens.
__attribute__((constructor)) static void remember(void) {
#ifndef __APPLE__
    dl_iterate_phdr(find_code, NULL);
#endif
    if (!sigaction(SIGBUS, NULL, &engine) && (engine.sa_flags & SA_SIGINFO)) {
        known = is_mine((uintptr_t)engine.sa_sigaction);
    }
}
