/* status.h: the one status type of Nebula-I.
 *
 * Every function that can fail returns a neb_status: NEB_OK (0), or one of the negative codes below. The list
 * is an X-macro, so the enum, the names and the explanations cannot drift apart. The numbers are part of the
 * ABI: append, never renumber.
 *
 * The first function that detects an error writes its message (neb_last_error(), also logged); its callers
 * pass the code on.
 */
#ifndef NEBULA_STATUS_H
#define NEBULA_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define NEB_API __attribute__((visibility("default")))
#else
#define NEB_API
#endif

#define NEB_STATUS_MAP(X)                                                             \
    X(NEB_OK, 0, "success")                                                           \
    X(NEB_ERR_INVALID, -1, "an argument is out of its allowed values")                \
    X(NEB_ERR_NOMEM, -2, "out of memory")                                             \
    X(NEB_ERR_RANGE, -3, "a number is not finite or does not fit")                    \
    X(NEB_ERR_NOSPACE, -4, "a buffer, a quota or the disk is full")                   \
    X(NEB_ERR_SHAPE, -5, "tensor shapes do not fit together")                         \
    X(NEB_ERR_DTYPE, -6, "unknown or unsuitable data type")                           \
    X(NEB_ERR_UNSUPPORTED, -7, "not supported by this device, platform or build")     \
    X(NEB_ERR_IO, -8, "reading or writing a file failed")                             \
    X(NEB_ERR_NET, -9, "the network or a connection failed")                          \
    X(NEB_ERR_TIMEOUT, -10, "no answer in time")                                      \
    X(NEB_ERR_AUTH, -11, "identity not accepted")                                     \
    X(NEB_ERR_PROTOCOL, -12, "the peer sent something the protocol forbids")          \
    X(NEB_ERR_CORRUPT, -13, "stored or received bytes are damaged")                   \
    X(NEB_ERR_STATE, -14, "not allowed in the present state")                         \
    X(NEB_ERR_NOTFOUND, -15, "no such thing")                                         \
    X(NEB_ERR_EXISTS, -16, "exists already")                                          \
    X(NEB_ERR_BUSY, -17, "in use by somebody else")                                   \
    X(NEB_ERR_NONFINITE, -18, "a loss, gradient or parameter became NaN or infinite") \
    X(NEB_ERR_DEVICE, -19, "the compute device reported an error")                    \
    X(NEB_ERR_CONFIG, -20, "a configuration value is missing or wrong")               \
    X(NEB_ERR_VERSION, -21, "made by an incompatible version")                        \
    X(NEB_ERR_CANCELLED, -22, "cancelled")                                            \
    X(NEB_ERR_PEER, -23, "the peer left or was dropped")                              \
    X(NEB_ERR_LIMIT, -24, "a limit set for safety was reached")                       \
    X(NEB_ERR_AGAIN, -25, "nothing to do yet; call again")                            \
    X(NEB_ERR_INTERNAL, -26, "a defect in Nebula-I itself")

typedef enum neb_status {
#define NEB__X(name, value, text) name = value,
    NEB_STATUS_MAP(NEB__X)
#undef NEB__X
} neb_status;

/* The name, such as "NEB_ERR_SHAPE"; "NEB_ERR_?" for an unknown number. Never NULL. */
NEB_API const char *neb_status_name(neb_status s);

/* One line of English for the code. Never NULL. */
NEB_API const char *neb_status_text(neb_status s);

/* The message of the last failing call in this thread, with names and numbers; "" if nothing failed yet.
 * Valid until the next failing call in this thread. */
NEB_API const char *neb_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
