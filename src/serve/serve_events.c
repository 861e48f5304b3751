/* serve_events.c: server-sent events. A viewer gets the whole status when it comes, and then what has changed.
 *
 * The texts are made once, whoever looks. A stream that has nothing to send is suspended, so it costs nothing
 * until neb__serve_tell() wakes it. A viewer that is too slow for the changes skips them and gets the whole
 * status. Its own buffer is the kernel's; nothing grows here. */
#include "base/clock.h"
#include "base/mem.h"
#include "serve/serve_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t beat_every = 10000000000;

/* ---- what has changed ---------------------------------------------------------------------------------- */

static json_t *diff_objects(const json_t *a, const json_t *b)
{
    json_t *out = NULL, *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        json_t *d = neb__serve_diff(json_object_get(a, key), value);
        if (!d) continue;
        if (!out) out = json_object();
        json_object_set_new(out, key, d);
    }
    return out;
}

static json_t *diff_arrays(const json_t *a, const json_t *b)
{
    json_t *out = NULL;
    for (size_t i = 0; i < json_array_size(b); i++) {
        char key[24];
        json_t *d = neb__serve_diff(json_array_get(a, i), json_array_get(b, i));
        if (!d) continue;
        if (!out) out = json_object();
        snprintf(key, sizeof key, "%zu", i);
        json_object_set_new(out, key, d);
    }
    return out;
}

json_t *neb__serve_diff(const json_t *a, const json_t *b)
{
    if (json_is_object(a) && json_is_object(b)) return diff_objects(a, b);
    if (json_is_array(a) && json_is_array(b) && json_array_size(a) == json_array_size(b))
        return diff_arrays(a, b);
    if (a && json_equal(a, b)) return NULL;
    return json_incref((json_t *)(uintptr_t)b);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static void release(struct neb_serve_text *t)
{
    if (t && --t->refs == 0) neb__free(t);
}

static struct neb_serve_text *event_text(const char *kind, const json_t *data)
{
    char head[64];
    size_t room = 0, n = (size_t)snprintf(head, sizeof head, "event: %s\ndata: ", kind);
    char *json = data ? json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (json) room = strlen(json);
    struct neb_serve_text *t = json ? neb__malloc(sizeof *t + n + room + 2) : NULL;
    if (t) {
        t->refs = 1;
        t->n = n + room + 2;
        memcpy(t->bytes, head, n);
        memcpy(t->bytes + n, json, room);
        memcpy(t->bytes + n + room, "\n\n", 2);
    }
    free(json);
    return t;
}

void neb__serve_tell(struct neb_serve *s)
{
    json_t *now = neb__view_json(s->view), *change;
    if (!now) return;
    json_object_set_new(now, "events", json_integer((json_int_t)neb__history_events(s->history)));
    change = neb__serve_diff(s->status, now);
    if (!change) {
        json_decref(now);
        return;
    }
    struct neb_serve_text *whole = event_text("status", now), *part = event_text("change", change);
    json_decref(change);
    json_decref(s->status);
    s->status = now;
    release(s->whole);
    release(s->change);
    s->whole = whole;
    s->change = part;
    s->version++;
}

/* ---- a stream ------------------------------------------------------------------------------------------ */

/* Chooses what comes next; false: nothing. The lock is held. */
static bool next_text(struct neb_serve_stream *e)
{
    struct neb_serve *s = e->serve;
    if (e->version == s->version || !s->whole) return false;
    bool near = e->version && e->version + 1 == s->version && s->change;
    e->text = near ? s->change : s->whole;
    e->text->refs++;
    e->sent = 0;
    e->version = s->version;
    return true;
}

static ssize_t read_stream(void *arg, uint64_t position, char *to, size_t room)
{
    struct neb_serve_stream *e = arg;
    struct neb_serve *s = e->serve;
    size_t n = 0;
    (void)position;
    pthread_mutex_lock(&s->lock);
    if (s->stopping) {
        pthread_mutex_unlock(&s->lock);
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    if (e->text || next_text(e)) {
        n = e->text->n - e->sent < room ? e->text->n - e->sent : room;
        memcpy(to, e->text->bytes + e->sent, n);
        e->sent += n;
        e->beat_ns = neb__now_ns();
        if (e->sent == e->text->n) release(e->text), e->text = NULL;
    } else if (neb__now_ns() - e->beat_ns > beat_every && room >= 3) {
        memcpy(to, ":\n\n", n = 3); /* a comment: it shows whether the viewer is still there */
        e->beat_ns = neb__now_ns();
    } else {
        e->suspended = true;
        MHD_suspend_connection(e->connection);
    }
    pthread_mutex_unlock(&s->lock);
    return (ssize_t)n;
}

static void end_stream(void *arg)
{
    struct neb_serve_stream *e = arg, **at;
    struct neb_serve *s = e->serve;
    pthread_mutex_lock(&s->lock);
    for (at = &s->streams; *at && *at != e;) at = &(*at)->next;
    if (*at) *at = e->next;
    s->n_streams--;
    release(e->text);
    pthread_mutex_unlock(&s->lock);
    neb__free(e);
}

struct MHD_Response *neb__serve_events(struct neb_serve *s, struct MHD_Connection *c)
{
    struct neb_serve_stream *e = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->n_streams < NEB_SERVE_STREAMS) e = NEB_NEW(struct neb_serve_stream);
    if (e) {
        *e = (struct neb_serve_stream){
            .serve = s, .connection = c, .beat_ns = neb__now_ns(), .next = s->streams};
        s->streams = e;
        s->n_streams++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!e) return NULL;
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8 << 10, read_stream, e, end_stream);
    if (!r) end_stream(e);
    return r;
}

void neb__serve_wake(struct neb_serve *s)
{
    int64_t now = neb__now_ns();
    for (struct neb_serve_stream *e = s->streams; e; e = e->next) {
        bool due = s->stopping || e->version != s->version || now - e->beat_ns > beat_every;
        if (!e->suspended || !due) continue;
        e->suspended = false;
        MHD_resume_connection(e->connection);
    }
}
