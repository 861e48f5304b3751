/* rung_class.h: the two classes of rungs.
 *
 * A rung is one setting of the codec. A dense rung says something about every value of an update; a sparse
 * rung only about the largest values. The codec, the ledger and the rate controller share this enum. Headers
 * of updates and records hold its numbers, so they never change. */
#ifndef NEB_BASE_RUNG_CLASS_H
#define NEB_BASE_RUNG_CLASS_H

enum neb_rung_class { NEB_DENSE = 0, NEB_SPARSE = 1 };
enum { NEB_RUNG_CLASSES = 2 };

static inline enum neb_rung_class neb__rung_class_other(enum neb_rung_class cls)
{
    return cls == NEB_DENSE ? NEB_SPARSE : NEB_DENSE;
}

static inline const char *neb__rung_class_name(enum neb_rung_class cls)
{
    return cls == NEB_DENSE ? "dense" : "sparse";
}

#endif
