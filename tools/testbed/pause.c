/* The process that holds a pod's namespaces: sleeps, reaps orphans, ends on SIGTERM and SIGINT. */
#include <signal.h>
#include <sys/wait.h>

int main(void)
{
    sigset_t set;
    int sig;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, 0);
    for (;;) {
        if (sigwait(&set, &sig) != 0)
            continue;
        if (sig != SIGCHLD)
            return 0;
        while (waitpid(-1, 0, WNOHANG) > 0)
            ;
    }
}
