/* gate_life.c: the CPU time of a process, from /proc (gate_life.h). */
#define _GNU_SOURCE /* struct ucred */
#include "train/gate_life.h"
#include "base/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

void neb__gate_life_begin(struct neb_gate_life *l, int socket)
{
    struct ucred who;
    socklen_t n = sizeof who;
    *l = (struct neb_gate_life){0};
    if (!getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &n) && who.pid > 0) l->pid = (int)who.pid;
    neb__gate_life_reset(l);
}

void neb__gate_life_reset(struct neb_gate_life *l)
{
    l->moved = neb__now_ns();
}

/* The name of the process, in parentheses, may hold anything; the numbers begin behind the last one. */
static bool ticks_of(int pid, uint64_t *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *at = strrchr(text, ')');
    unsigned long long user, system;
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return false;
    *out = user + system;
    return true;
}

double neb__gate_life_still(struct neb_gate_life *l)
{
    uint64_t used;
    if (!l->pid) return 0;
    if (neb__seconds_since(l->looked) < 1) return 0;
    l->looked = neb__now_ns();
    if (!ticks_of(l->pid, &used)) return 0; /* it has ended: the channel tells */
    if (used != l->used) l->moved = l->looked;
    l->used = used;
    return neb__seconds_since(l->moved);
}
