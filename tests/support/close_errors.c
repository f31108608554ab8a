/*
 * Preloaded into Python processes: reports every close of a descriptor that is not open.
 *
 * A number that is closed twice may belong to another file the second time. Mostly it does not, and the kernel answers EBADF:
 * that is what is seen here. libuv closes with syscall(2), everything else with close(3). The report goes to the file that the
 * variable CLOSE_ERRORS names at that moment. Other programs that inherit LD_PRELOAD are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    static long (*next)(long, ...);
    if (next == NULL) /* the constructor of another library may be first */
        next = dlsym(RTLD_NEXT, "syscall");
    return next(number, a, b, c, d, e, f);
}

static void *(*thread_state)(void);
static void (*python_stack)(int, void *);

__attribute__((constructor)) static void begin(void) {
    char exe[4096];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[length > 0 ? length : 0] = 0;
    const char *name = strrchr(exe, '/');
    if (name != NULL && strncmp(name, "/python", 7) == 0) {
        thread_state = dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState");
        python_stack = dlsym(RTLD_DEFAULT, "_Py_DumpTraceback");
    }
}

static void report(long descriptor) {
    const char *path = getenv("CLOSE_ERRORS");
    if (python_stack == NULL || path == NULL)
        return;
    int kept = errno;
    int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (out >= 0) {
        void *frames[12], *state = thread_state();
        dprintf(out, "process %d closes descriptor %ld, which is not open\n", getpid(), descriptor);
        backtrace_symbols_fd(frames, backtrace(frames, 12), out);
        if (state != NULL)
            python_stack(out, state);
        raw(SYS_close, out, 0, 0, 0, 0, 0);
    }
    errno = kept;
}

int close(int descriptor) {
    int result = raw(SYS_close, descriptor, 0, 0, 0, 0, 0);
    if (result < 0 && errno == EBADF)
        report(descriptor);
    return result;
}

long syscall(long number, ...) {
    va_list given;
    va_start(given, number);
    long a = va_arg(given, long), b = va_arg(given, long), c = va_arg(given, long);
    long d = va_arg(given, long), e = va_arg(given, long), f = va_arg(given, long);
    va_end(given);
    long result = raw(number, a, b, c, d, e, f);
    if (number == SYS_close && result < 0 && errno == EBADF)
        report(a);
    return result;
}
