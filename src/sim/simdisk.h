/* simdisk.h: a disk in memory that behaves like a real one in a power cut: bytes that were not synced are
 * lost, kept or torn, sector by sector. Synced bytes may be damaged later. */
#ifndef NEB_SIM_SIMDISK_H
#define NEB_SIM_SIMDISK_H

#include "base/rng.h"
#include "store/disk.h"

struct neb_simdisk {
    struct neb_disk disk;
    struct neb_rng *rng;
    struct simnode *inode;
    int inodes, inode_cap;
    struct simname *now, *safe; /* the folder as seen, and as it is on the platter */
    int names, name_cap, safe_names, safe_cap;
    bool full;        /* writes fail with NEB_ERR_NOSPACE */
    bool fail_sync;   /* the next sync fails */
    int64_t ops_left; /* the machine dies within this many operations; < 0: never */
    bool dead;
};

void neb__simdisk_init(struct neb_simdisk *d, struct neb_rng *rng);
void neb__simdisk_free(struct neb_simdisk *d);
/* The program ends. `power`: the power goes as well, and bytes that were not synced may be lost.
 * Afterwards the disk can be used again. */
void neb__simdisk_crash(struct neb_simdisk *d, bool power);
/* Damages a random sector of a random file (of names with this prefix, or of
 * any). False: there is no such file. */
bool neb__simdisk_damage(struct neb_simdisk *d, const char *prefix);
void neb__simdisk_wipe(struct neb_simdisk *d);
neb_status neb__simdisk_copy(const struct neb_simdisk *from, struct neb_simdisk *to); /* the durable part */

#endif
