/* on_device.h: operations of a group on values that lie in the memory of its ranks' devices.
 *
 * A group is attached to the device of each of its ranks. On the CPU, whose memory is the host's, an operation is
 * that of group.h. Devices that can exchange values by themselves (CUDA with NCCL) do it in the order of their
 * stream: the host waits for nothing, and a recording may contain it. Otherwise the values go through host memory,
 * the device waits, and nothing can be recorded around it; one line of the log says so.
 *
 * No exchange of devices waits for ever: a thread looks at them (exchange_watch.c). */
#ifndef NEB_GROUP_ON_DEVICE_H
#define NEB_GROUP_ON_DEVICE_H

#include "group/group.h"

#include <nebula/device.h>

/* A collective call. NULL: a group of one, nothing to do. The device outlives the group, or its detaching.
 *   NEB_ERR_CONFIG   the ranks' devices cannot work together; the message says what to do
 *   NEB_ERR_NOMEM, NEB_ERR_DEVICE, NEB_ERR_PEER */
neb_status neb__group_attach(struct neb_group *g, const struct neb_device_ops *ops, void *dev);
void neb__group_detach(struct neb_group *g);
/* Exchanges of this group go through the host: they cannot be part of a recording. */
bool neb__group_staged(const struct neb_group *g);

neb_status neb__device_sum(struct neb_group *g, void *values, int64_t n, neb_dtype type);
neb_status neb__device_sum_scatter(struct neb_group *g, void *values, const int64_t *edge, neb_dtype type);
neb_status neb__device_gather(struct neb_group *g, void *values, const int64_t *edge, neb_dtype type);
/* A gather beside other work where the values are in host memory (group.h); elsewhere it is over, or in the device's stream. */
neb_status neb__device_gather_begin(struct neb_group *g, void *values, const int64_t *edge, neb_dtype type,
                                    int *ticket);
neb_status neb__device_broadcast(struct neb_group *g, void *values, int64_t n, neb_dtype type, int root);

/* Sums beside other work, as in group.h. With `edge`, (ranks + 1) in values, rank r needs the sums of [edge[r], edge[r + 1]) alone:
 * the others are undefined. On a device that exchanges by itself they go on beside its stream; the join has the stream wait for them,
 * and a recording may contain both. neb__device_sums_beside(): whether they get on before the join. */
bool neb__device_sums_beside(const struct neb_group *g);
/* Ranks of this group compute on one device: what goes on beside the one's work takes from the other's. */
bool neb__device_shared(const struct neb_group *g);
neb_status neb__device_sum_begin(struct neb_group *g, float *values, int64_t n, const int64_t *edge);
neb_status neb__device_sum_join(struct neb_group *g);

/* Messages from device to device, in a group in which neb__device_sends(): received in the device's stream, sent beside it. The join has
 * the stream wait until all that were begun are sent. */
bool neb__device_sends(const struct neb_group *g);
neb_status neb__device_send_begin(struct neb_group *g, void *bytes, size_t n, int to);
neb_status neb__device_send_join(struct neb_group *g);
neb_status neb__device_receive(struct neb_group *g, void *bytes, size_t n, int from);

#endif
