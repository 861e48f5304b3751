/* lab_internal.h (inside the laboratory): the lab's struct, shared by lab.c and site_processes.c. */
#ifndef NEB_NET_LAB_LAB_INTERNAL_H
#define NEB_NET_LAB_LAB_INTERNAL_H

#include "net/lab/lab.h"
#include "net/lab/pump.h"
#include "net/lab/tun.h"

#include <pthread.h>

enum { NEB_LAB_PROCESSES = 1024 };

struct neb_lab_process {
    pid_t keeper, pid; /* the process that watches over the command; the command. 0: free slot */
    int tie;           /* socket to the keeper: the keeper ends when we do, and we see when it ends */
    int site;
};

struct neb_loopback;

struct neb_lab {
    int sites;
    enum neb_lab_mode mode;
    char name[NEB_LAB_SITES][NEB_LAB_NAME];
    struct neb_tun tun[NEB_LAB_SITES]; /* -1, -1 in mode relay */
    char address[NEB_LAB_SITES][24];
    struct neb_pump *pump; /* one of these two is NULL */
    struct neb_loopback *loopback;
    pthread_mutex_t lock; /* guards the processes */
    struct neb_lab_process *process;
    int processes;
};

/* Called in a child: closes the descriptors that only the parent needs. */
void neb__lab_close_inherited(struct neb_lab *lab);
void neb__lab_kill_all(struct neb_lab *lab);

#endif
