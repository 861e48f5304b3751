/* metrics.c: writes a run's numbers to SQLite and in TensorBoard's format.
 *
 * Values are inserted inside one open transaction that is committed every 256 values or on flush: a
 * commit for each value would cost an fsync each. The journal is a write-ahead log with
 * `synchronous=normal`: a crash loses at most the last transaction and never the database, and the
 * dashboard can read while the run writes. Readers block nobody. A process that writes here as well, such as an
 * editor of databases, costs the values of that time. */
#include "store/metrics.h"
#include "store/tensorboard.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { COMMIT_EVERY = 256, PATIENCE_MS = 2000 };

struct neb_metrics {
    sqlite3 *db;
    sqlite3_stmt *put, *name;
    struct neb_tensorboard *events;
    int64_t run;
    int open_values;
    bool warned, warned_events;
    bool locked; /* by another process, at the last attempt */
};

static const char schema[] =
    "PRAGMA busy_timeout=2000; PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
    "CREATE TABLE IF NOT EXISTS run (id INTEGER PRIMARY KEY, started REAL, resumed_at INTEGER);"
    "CREATE TABLE IF NOT EXISTS metric (id INTEGER PRIMARY KEY, name TEXT UNIQUE);"
    "CREATE TABLE IF NOT EXISTS value (metric INTEGER, step INTEGER, run INTEGER, time REAL, value REAL,"
    " PRIMARY KEY (metric, step)) WITHOUT ROWID;"
    "CREATE TABLE IF NOT EXISTS note (run INTEGER, key TEXT, text TEXT, PRIMARY KEY (run, key)) WITHOUT "
    "ROWID;"
    "CREATE TABLE IF NOT EXISTS event (id INTEGER PRIMARY KEY, run INTEGER, step INTEGER, time REAL, kind "
    "TEXT,"
    " text TEXT);"
    "PRAGMA user_version=1;";

static neb_status status_of(int code)
{
    switch (code) {
    case SQLITE_FULL: return NEB_ERR_NOSPACE;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT: return NEB_ERR_CORRUPT;
    case SQLITE_NOMEM: return NEB_ERR_NOMEM;
    default: return NEB_ERR_IO;
    }
}

/* The training itself writes. It waits once for a process that has locked the database, not at every value. */
static void note_lock(struct neb_metrics *m, bool locked)
{
    if (locked != m->locked) sqlite3_busy_timeout(m->db, locked ? 0 : PATIENCE_MS);
    m->locked = locked;
}

static neb_status failed(struct neb_metrics *m)
{
    int code = m->db ? sqlite3_errcode(m->db) : SQLITE_NOMEM;
    const char *why = m->db ? sqlite3_errmsg(m->db) : "no memory";
    if ((code & 0xff) == SQLITE_BUSY) note_lock(m, true);
    if (!m->warned) neb__warn("metrics are not stored: %s; training goes on", why);
    m->warned = true;
    return neb__quiet(status_of(code), "metrics database: %s", why);
}

static neb_status events_failed(struct neb_metrics *m, neb_status status)
{
    if (status != NEB_OK && !m->warned_events)
        neb__warn("metrics for TensorBoard are not stored: %s; training goes on", neb_last_error());
    m->warned_events |= status != NEB_OK;
    return status;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static neb_status run_sql(struct neb_metrics *m, const char *sql)
{
    return sqlite3_exec(m->db, sql, NULL, NULL, NULL) == SQLITE_OK ? NEB_OK : failed(m);
}

/* SQLite would make the file readable for everybody. Its journals get the mode of the database. */
static neb_status make_private(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return neb__quiet(NEB_ERR_IO, "cannot create %s: %s", path, strerror(errno));
    (void)fchmod(fd, 0600); /* one that was there; its owner may be somebody else */
    close(fd);
    return NEB_OK;
}

static neb_status start(struct neb_metrics *m, const char *path, int64_t resumed_at)
{
    NEB_TRY(make_private(path));
    if (sqlite3_open(path, &m->db) != SQLITE_OK) return failed(m);
    NEB_TRY(run_sql(m, schema));
    char *sql = sqlite3_mprintf("INSERT INTO run (started, resumed_at) VALUES (%f, %lld)", now(),
                                (long long)resumed_at);
    if (!sql) return failed(m);
    neb_status status = run_sql(m, sql);
    sqlite3_free(sql);
    NEB_TRY(status);
    m->run = sqlite3_last_insert_rowid(m->db);
    if (sqlite3_prepare_v2(m->db, "INSERT OR IGNORE INTO metric (name) VALUES (?1)", -1, &m->name, NULL) !=
            SQLITE_OK ||
        sqlite3_prepare_v2(
            m->db, "INSERT OR REPLACE INTO value SELECT id, ?2, ?3, ?4, ?5 FROM metric WHERE name = ?1", -1,
            &m->put, NULL) != SQLITE_OK)
        return failed(m);
    return NEB_OK;
}

neb_status neb__metrics_open(const char *dir, int64_t resumed_at, struct neb_metrics **out)
{
    char path[PATH_MAX];
    NEB_TRY(neb__file_make_dir(dir, 0700));
    if (snprintf(path, sizeof path, "%s/metrics.sqlite", dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    struct neb_metrics *m = NEB_NEW(struct neb_metrics);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "no memory for metrics");
    m->warned = true; /* the caller will warn */
    neb_status status = start(m, path, resumed_at);
    if (status == NEB_OK) status = neb__tensorboard_open(dir, resumed_at, &m->events);
    if (status != NEB_OK) {
        char why[200];
        snprintf(why, sizeof why, "%s", neb_last_error());
        neb__metrics_close(m);
        return neb__quiet(status, "%s", why);
    }
    m->warned = false;
    *out = m;
    return NEB_OK;
}

struct neb_metrics *neb__metrics_begin(const char *dir, int64_t resumed_at)
{
    struct neb_metrics *m;
    if (neb__metrics_open(dir, resumed_at, &m) == NEB_OK) return m;
    neb__warn("no metrics of this run are stored in %s: %s; training goes on. Move the file away and start "
              "again to have them",
              dir, neb_last_error());
    return NULL;
}

static neb_status step_once(struct neb_metrics *m, sqlite3_stmt *q)
{
    int r = sqlite3_step(q);
    sqlite3_reset(q);
    if (r != SQLITE_DONE) return failed(m);
    note_lock(m, false);
    return NEB_OK;
}

static neb_status insert(struct neb_metrics *m, int64_t step, const char *name, double time, double value)
{
    if (!m->open_values) NEB_TRY(run_sql(m, "BEGIN"));
    m->open_values++;
    sqlite3_bind_text(m->name, 1, name, -1, SQLITE_STATIC);
    NEB_TRY(step_once(m, m->name));
    sqlite3_bind_text(m->put, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(m->put, 2, step);
    sqlite3_bind_int64(m->put, 3, m->run);
    sqlite3_bind_double(m->put, 4, time);
    if (isnan(value))
        sqlite3_bind_null(m->put, 5); /* SQLite has no NaN */
    else
        sqlite3_bind_double(m->put, 5, value);
    return step_once(m, m->put);
}

static neb_status commit(struct neb_metrics *m)
{
    if (!m->open_values) return NEB_OK;
    m->open_values = 0;
    neb_status status = run_sql(m, "COMMIT");
    if (status != NEB_OK) sqlite3_exec(m->db, "ROLLBACK", NULL, NULL, NULL);
    return status;
}

neb_status neb__metrics_put(struct neb_metrics *m, int64_t step, const char *name, double value)
{
    if (!m) return NEB_OK;
    double t = now();
    neb_status a = insert(m, step, name, t, value);
    neb_status b = events_failed(m, neb__tensorboard_scalar(m->events, step, t, name, value));
    if (m->open_values >= COMMIT_EVERY) {
        neb_status c = commit(m);
        if (a == NEB_OK) a = c;
    }
    return a != NEB_OK ? a : b;
}

neb_status neb__metrics_note(struct neb_metrics *m, const char *key, const char *text)
{
    if (!m) return NEB_OK;
    char *sql =
        sqlite3_mprintf("INSERT OR REPLACE INTO note VALUES (%lld, %Q, %Q)", (long long)m->run, key, text);
    if (!sql) return neb__fail(NEB_ERR_NOMEM, "no memory for a note");
    neb_status status = run_sql(m, sql);
    sqlite3_free(sql);
    return status;
}

neb_status neb__metrics_event(struct neb_metrics *m, int64_t step, const char *kind, const char *text)
{
    if (!m) return NEB_OK;
    char *sql =
        sqlite3_mprintf("INSERT INTO event (run, step, time, kind, text) VALUES (%lld, %lld, %f, %Q, %Q)",
                        (long long)m->run, (long long)step, now(), kind, text);
    if (!sql) return neb__fail(NEB_ERR_NOMEM, "no memory for an event");
    neb_status status = run_sql(m, sql);
    sqlite3_free(sql);
    return status;
}

neb_status neb__metrics_flush(struct neb_metrics *m)
{
    if (!m) return NEB_OK;
    neb_status a = commit(m), b = events_failed(m, neb__tensorboard_flush(m->events));
    return a != NEB_OK ? a : b;
}

neb_status neb__metrics_close(struct neb_metrics *m)
{
    if (!m) return NEB_OK;
    neb_status a = m->db ? commit(m) : NEB_OK,
               b = m->events ? events_failed(m, neb__tensorboard_close(m->events)) : NEB_OK;
    sqlite3_finalize(m->put);
    sqlite3_finalize(m->name);
    sqlite3_close(m->db);
    neb__free(m);
    return a != NEB_OK ? a : b;
}

neb_status neb__metrics_each(struct neb_metrics *m, const char *name,
                             int (*fn)(void *arg, int64_t step, double time, double value), void *arg)
{
    static const char sql[] =
        "SELECT step, time, value FROM value JOIN metric ON id = metric WHERE name = ?1 ORDER BY step";
    sqlite3_stmt *q;
    if (!m) return neb__quiet(NEB_ERR_NOTFOUND, "no values of '%s'", name);
    if (sqlite3_prepare_v2(m->db, sql, -1, &q, NULL) != SQLITE_OK) return failed(m);
    sqlite3_bind_text(q, 1, name, -1, SQLITE_STATIC);
    int r, rows = 0, go = 1;
    while (go && (r = sqlite3_step(q)) == SQLITE_ROW) {
        bool null = sqlite3_column_type(q, 2) == SQLITE_NULL;
        go = fn(arg, sqlite3_column_int64(q, 0), sqlite3_column_double(q, 1),
                null ? NAN : sqlite3_column_double(q, 2));
        rows++;
    }
    sqlite3_finalize(q);
    return rows ? NEB_OK : neb__quiet(NEB_ERR_NOTFOUND, "no values of '%s'", name);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static neb_status check_version(struct neb_metrics *m, const char *path)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, "PRAGMA user_version", -1, &q, NULL) != SQLITE_OK) return failed(m);
    int version = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int(q, 0) : -1;
    sqlite3_finalize(q);
    if (version == 1) return NEB_OK;
    return version < 0 ? neb__fail(NEB_ERR_CORRUPT, "%s is not a database of metrics", path)
                       : neb__fail(NEB_ERR_VERSION, "%s has format version %d, which this build cannot read",
                                   path, version);
}

neb_status neb__metrics_read(const char *dir, struct neb_metrics **out)
{
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s/metrics.sqlite", dir) >= (int)sizeof path)
        return neb__fail(NEB_ERR_INVALID, "path too long: %.80s…", dir);
    if (stat(path, &st)) return neb__quiet(NEB_ERR_NOTFOUND, "no metrics in %s", dir);
    struct neb_metrics *m = NEB_NEW(struct neb_metrics);
    if (!m) return neb__fail(NEB_ERR_NOMEM, "no memory for metrics");
    m->warned = true; /* the warning is about writing, and nothing is written here */
    neb_status status =
        sqlite3_open_v2(path, &m->db, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK ? NEB_OK : failed(m);
    if (status == NEB_OK) status = run_sql(m, "PRAGMA busy_timeout=2000; PRAGMA cache_size=-256");
    if (status == NEB_OK) status = check_version(m, path);
    if (status != NEB_OK) {
        neb__metrics_close(m);
        return status;
    }
    *out = m;
    return NEB_OK;
}

neb_status neb__metrics_range(struct neb_metrics *m, const char *name, int64_t after, int64_t until,
                              int64_t most, int (*fn)(void *arg, int64_t step, double time, double value),
                              void *arg)
{
    static const char sql[] =
        "SELECT step, time, value FROM value WHERE metric = (SELECT id FROM metric WHERE "
        "name = ?1) AND step > ?2 AND step <= ?3 AND NOT EXISTS (SELECT 1 FROM run AS later WHERE later.id > "
        "value.run AND later.resumed_at >= 0 AND later.resumed_at < step) ORDER BY step LIMIT ?4";
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, sql, -1, &q, NULL) != SQLITE_OK) return failed(m);
    sqlite3_bind_text(q, 1, name, -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 2, after);
    sqlite3_bind_int64(q, 3, until);
    sqlite3_bind_int64(q, 4, most);
    int rows = 0, go = 1;
    while (go && sqlite3_step(q) == SQLITE_ROW) {
        bool null = sqlite3_column_type(q, 2) == SQLITE_NULL;
        go = fn(arg, sqlite3_column_int64(q, 0), sqlite3_column_double(q, 1),
                null ? NAN : sqlite3_column_double(q, 2));
        rows++;
    }
    sqlite3_finalize(q);
    return rows ? NEB_OK : neb__quiet(NEB_ERR_NOTFOUND, "no values of '%s'", name);
}

int64_t neb__metrics_starts(struct neb_metrics *m)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, "SELECT count(*) FROM run", -1, &q, NULL) != SQLITE_OK) return 0;
    int64_t n = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_int64(q, 0) : 0;
    sqlite3_finalize(q);
    return n;
}

double neb__metrics_began(struct neb_metrics *m)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, "SELECT started FROM run ORDER BY id LIMIT 1", -1, &q, NULL) != SQLITE_OK)
        return 0;
    double t = sqlite3_step(q) == SQLITE_ROW ? sqlite3_column_double(q, 0) : 0;
    sqlite3_finalize(q);
    return t;
}

static const char *text_of(sqlite3_stmt *q, int column)
{
    const char *t = (const char *)sqlite3_column_text(q, column);
    return t ? t : "";
}

neb_status neb__metrics_events(struct neb_metrics *m,
                               int (*fn)(void *arg, int64_t step, double time, const char *kind,
                                         const char *text),
                               void *arg)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, "SELECT step, time, kind, text FROM event ORDER BY time, id", -1, &q,
                           NULL) != SQLITE_OK)
        return failed(m);
    for (int go = 1; go && sqlite3_step(q) == SQLITE_ROW;)
        go = fn(arg, sqlite3_column_int64(q, 0), sqlite3_column_double(q, 1), text_of(q, 2), text_of(q, 3));
    sqlite3_finalize(q);
    return NEB_OK;
}

neb_status neb__metrics_events_after(struct neb_metrics *m, int64_t after,
                                     int (*fn)(void *arg, int64_t id, int64_t step, double time,
                                               const char *kind, const char *text),
                                     void *arg)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, "SELECT id, step, time, kind, text FROM event WHERE id > ?1 ORDER BY id",
                           -1, &q, NULL) != SQLITE_OK)
        return failed(m);
    sqlite3_bind_int64(q, 1, after);
    for (int go = 1; go && sqlite3_step(q) == SQLITE_ROW;)
        go = fn(arg, sqlite3_column_int64(q, 0), sqlite3_column_int64(q, 1), sqlite3_column_double(q, 2),
                text_of(q, 3), text_of(q, 4));
    sqlite3_finalize(q);
    return NEB_OK;
}

neb_status neb__metrics_get_note(struct neb_metrics *m, const char *key, char *out, size_t size)
{
    sqlite3_stmt *q;
    if (sqlite3_prepare_v2(m->db, "SELECT text FROM note WHERE key = ?1 ORDER BY run DESC LIMIT 1", -1, &q,
                           NULL) != SQLITE_OK)
        return failed(m);
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    bool there = sqlite3_step(q) == SQLITE_ROW;
    if (there) snprintf(out, size, "%s", text_of(q, 0));
    sqlite3_finalize(q);
    return there ? NEB_OK : neb__quiet(NEB_ERR_NOTFOUND, "no note '%s'", key);
}
