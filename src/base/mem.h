/* mem.h: memory of the host. Every allocation of the library goes through here, so that tests can make the n-th
 * one fail and count what is still held. */
#ifndef NEB_BASE_MEM_H
#define NEB_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *neb__malloc(size_t n);
void *neb__calloc(size_t count, size_t size); /* zeroed; NULL when count * size overflows */
void *neb__realloc(void *p, size_t n);        /* on failure p stays valid */
void *neb__aligned(size_t n);                 /* 64-byte aligned; release with neb__free */
char *neb__strdup(const char *s);
void neb__free(void *p);

#define NEB_NEW(type)          ((type *)neb__calloc(1, sizeof(type)))
#define NEB_NEW_ARRAY(type, n) ((type *)neb__calloc((n), sizeof(type)))

/* For tests: the n-th allocation from now on (1 = the next) fails, and only that one; 0 switches it off. Counts
 * over all threads. */
void neb__mem_fail_at(int64_t n);

/* Allocations made since the last neb__mem_fail_at(); and how many blocks are held now. */
int64_t neb__mem_count(void);
int64_t neb__mem_held(void);

#endif
