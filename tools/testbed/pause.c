/* The process that holds a pod's namespaces: sleeps, reaps orphans, ends on SIGTERM and SIGINT.
   With -v it prints its name and ends, as the job does that checks a cluster's health before `kubeadm upgrade`. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    sigset_t set;
    int sig;

    if (argc > 1 && strcmp(argv[1], "-v") == 0)
        return write(1, "pause\n", 6) != 6;
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
