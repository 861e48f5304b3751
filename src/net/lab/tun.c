/* tun.c: makes namespaces and devices with system calls only (machines with GPUs often lack the `ip`
 * command).
 *
 * unshare() makes a namespace, and an open /proc/thread-self/ns/net holds it. It has no name anywhere and
 * ends with the last descriptor or process in it. The TAP device is opened inside it and ends with its
 * descriptor. rtnetlink messages set link, MTU, queue length and address; each waits for its acknowledgement.
 *
 * It is an Ethernet device (TAP): the kernel takes its packets in as those of a network card's driver, in pages that TCP joins and
 * splice(2) passes on. Packets of a TUN device lie in memory of their own, and cost whoever receives them far more.
 *
 * The site's kernel is tuned like a host at the end of a long fat line: TCP buffers may grow to 64 MiB,
 * nothing is remembered from one connection to the next (so that runs repeat), and every user may ping.
 */
#define _GNU_SOURCE
#include "net/lab/tun.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TX_QUEUE = 4096 };

/* The Ethernet address of every site. Without ARP a device sends to its own address, so a frame of one site is good at any other. */
static const uint8_t station[6] = {2, 'N', 'E', 'B', 0, 1};

/* ---- rtnetlink ----------------------------------------------------------------------------------------- */

struct request {
    struct nlmsghdr head;
    union {
        struct ifinfomsg link;
        struct ifaddrmsg addr;
    } body;
    uint8_t attributes[64];
};

static void begin(struct request *r, uint16_t type, uint16_t flags, size_t body)
{
    memset(r, 0, sizeof *r);
    r->head.nlmsg_len = (uint32_t)NLMSG_LENGTH(body);
    r->head.nlmsg_type = type;
    r->head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | flags;
}

static void attribute(struct request *r, uint16_t type, const void *value, uint16_t n)
{
    struct rtattr a = {.rta_len = (uint16_t)RTA_LENGTH(n), .rta_type = type};
    uint8_t *at = (uint8_t *)r + NLMSG_ALIGN(r->head.nlmsg_len);
    memcpy(at, &a, sizeof a);
    memcpy(at + RTA_LENGTH(0), value, n);
    r->head.nlmsg_len = NLMSG_ALIGN(r->head.nlmsg_len) + RTA_ALIGN(a.rta_len);
}

static neb_status ask(int s, struct request *r, const char *what)
{
    union {
        struct nlmsghdr head;
        uint8_t bytes[1024];
    } answer;
    struct nlmsgerr e;
    if (send(s, r, r->head.nlmsg_len, 0) < 0)
        return neb__fail(NEB_ERR_IO, "rtnetlink, %s: %s", what, strerror(errno));
    ssize_t n = recv(s, &answer, sizeof answer, 0);
    if (n < (ssize_t)NLMSG_LENGTH(sizeof e) || answer.head.nlmsg_type != NLMSG_ERROR)
        return neb__fail(NEB_ERR_IO, "rtnetlink, %s: no acknowledgement", what);
    memcpy(&e, NLMSG_DATA(&answer.head), sizeof e);
    if (e.error) return neb__fail(NEB_ERR_IO, "rtnetlink, %s: %s", what, strerror(-e.error));
    return NEB_OK;
}

static neb_status link_up(int s, unsigned index, int mtu)
{
    struct request r;
    begin(&r, RTM_NEWLINK, 0, sizeof r.body.link);
    r.body.link.ifi_family = AF_UNSPEC;
    r.body.link.ifi_index = (int)index;
    r.body.link.ifi_flags = r.body.link.ifi_change = mtu ? IFF_UP | IFF_NOARP : IFF_UP;
    uint32_t m = (uint32_t)mtu, q = TX_QUEUE;
    if (mtu) {
        attribute(&r, IFLA_ADDRESS, station, sizeof station);
        attribute(&r, IFLA_MTU, &m, 4);
        attribute(&r, IFLA_TXQLEN, &q, 4);
    }
    return ask(s, &r, "bringing a link up");
}

static neb_status add_address(int s, unsigned index, uint32_t ip)
{
    struct request r;
    begin(&r, RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, sizeof r.body.addr);
    r.body.addr.ifa_family = AF_INET;
    r.body.addr.ifa_prefixlen = 24;
    r.body.addr.ifa_index = index;
    ip = htonl(ip);
    attribute(&r, IFA_LOCAL, &ip, 4);
    attribute(&r, IFA_ADDRESS, &ip, 4);
    return ask(s, &r, "adding an address");
}

static neb_status loopback_up(void)
{
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (s < 0) return neb__fail(NEB_ERR_IO, "rtnetlink: %s", strerror(errno));
    neb_status status = link_up(s, 1, 0); /* loopback has number 1 in every namespace */
    close(s);
    return status;
}

static neb_status configure(unsigned index, uint32_t ip, int mtu)
{
    NEB_TRY(loopback_up());
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (s < 0) return neb__fail(NEB_ERR_IO, "rtnetlink: %s", strerror(errno));
    neb_status status = link_up(s, index, mtu);
    if (status == NEB_OK) status = add_address(s, index, ip);
    close(s);
    return status;
}

/* ---- namespaces ---------------------------------------------------------------------------------------- */

static bool write_text(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = write(fd, text, strlen(text));
    close(fd);
    return n == (ssize_t)strlen(text);
}

neb_status neb__userns_enter(void)
{
    char uid[64], gid[64];
    snprintf(uid, sizeof uid, "%u %u 1\n", (unsigned)geteuid(), (unsigned)geteuid());
    snprintf(gid, sizeof gid, "%u %u 1\n", (unsigned)getegid(), (unsigned)getegid());
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET))
        return neb__quiet(NEB_ERR_UNSUPPORTED, "cannot make a user namespace: %s%s", strerror(errno),
                          errno == EINVAL ? " (the process has several threads already)" : "");
    if (!write_text("/proc/self/setgroups", "deny") || !write_text("/proc/self/uid_map", uid) ||
        !write_text("/proc/self/gid_map", gid))
        return neb__quiet(NEB_ERR_UNSUPPORTED, "cannot map the user into the user namespace: %s",
                          strerror(errno));
    return loopback_up();
}

neb_status neb__netns_self(int *out)
{
    int fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return neb__quiet(NEB_ERR_UNSUPPORTED, "cannot open /proc/thread-self/ns/net: %s", strerror(errno));
    *out = fd;
    return NEB_OK;
}

neb_status neb__netns_enter(int ns)
{
    if (setns(ns, CLONE_NEWNET))
        return neb__fail(NEB_ERR_IO, "cannot enter a network namespace: %s", strerror(errno));
    return NEB_OK;
}

/* A setting that cannot be changed (an old kernel, a read-only /proc/sys) stays as it is. */
static void tune(void)
{
    static const char *const settings[][2] = {
        {"/proc/sys/net/ipv6/conf/all/disable_ipv6", "1"},
        {"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"},
        {"/proc/sys/net/ipv4/tcp_no_metrics_save", "1"},
        {"/proc/sys/net/ipv4/tcp_rmem", "4096 131072 67108864"},
        {"/proc/sys/net/ipv4/tcp_wmem", "4096 131072 67108864"},
        {"/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (!write_text(settings[i][0], settings[i][1])) neb__debug("lab: cannot set %s", settings[i][0]);
    char range[64];
    snprintf(range, sizeof range, "%u %u", (unsigned)getegid(), (unsigned)getegid());
    write_text("/proc/sys/net/ipv4/ping_group_range", range);
}

static neb_status open_device(uint32_t ip, int mtu, bool offload, int *out)
{
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return neb__quiet(NEB_ERR_UNSUPPORTED, "cannot open /dev/net/tun: %s", strerror(errno));
    struct ifreq r;
    memset(&r, 0, sizeof r);
    snprintf(r.ifr_name, sizeof r.ifr_name, "wan0");
    r.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    neb_status status = NEB_OK;
    if (ioctl(fd, TUNSETIFF, &r) < 0) {
        status = neb__quiet(NEB_ERR_UNSUPPORTED, "cannot make a TAP device: %s", strerror(errno));
        goto fail;
    }
    if (offload && ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO_ECN) < 0)
        neb__warn("lab: TAP devices have no TCP offload here (%s): high rates will cost more processor time",
                  strerror(errno));
    NEB_TRY_GOTO(status, configure(if_nametoindex("wan0"), ip, mtu), fail);
    *out = fd;
    return NEB_OK;
fail:
    close(fd);
    return status;
}

neb_status neb__tun_open(uint32_t ip, int mtu, bool offload, struct neb_tun *out)
{
    struct neb_tun t = {-1, -1};
    int home = -1;
    NEB_TRY(neb__netns_self(&home));
    if (unshare(CLONE_NEWNET)) {
        int e = errno;
        close(home);
        return neb__quiet(NEB_ERR_UNSUPPORTED, "cannot make a network namespace: %s", strerror(e));
    }
    tune();
    neb_status status = neb__netns_self(&t.ns);
    if (status == NEB_OK) status = open_device(ip, mtu, offload, &t.fd);
    neb_status back = neb__netns_enter(home);
    close(home);
    if (status == NEB_OK && back == NEB_OK) {
        *out = t;
        return NEB_OK;
    }
    if (t.fd >= 0) close(t.fd);
    if (t.ns >= 0) close(t.ns);
    return status != NEB_OK ? status : back;
}
