/* catalogue.c: reads gettext's compiled catalogues.
 *
 *     u32 magic 0x950412de, in the byte order of all that follows
 *     u32 revision, whose upper half is 0 or 1
 *     u32 n, number of messages
 *     u32 place of the table of English strings, u32 place of the table of translations
 *     a table: n times u32 length, u32 place of the string, which ends with a zero byte that the length leaves out
 *
 * An English string may begin with its context and the byte 4. Plural forms follow each other behind zero bytes. The
 * message with an empty English string describes the catalogue. */
#include "text/catalogue.h"
#include "base/buf.h"
#include "base/file.h"

#include <stdbool.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_FILE = 64 << 20, HEADER = 20, CONTEXT_END = 4 };
static const uint32_t magic = 0x950412de;

struct catalogue {
    const uint8_t *bytes;
    size_t n;
    bool swapped;
};

/* The caller has checked that four bytes are there. */
static uint32_t number(const struct catalogue *c, size_t at)
{
    uint32_t v;
    memcpy(&v, c->bytes + at, 4);
    return c->swapped ? __builtin_bswap32(v) : v;
}

/* The string that entry i of a table names, or NULL: outside of the file, or without its zero byte. */
static const char *string_at(const struct catalogue *c, size_t table, size_t i)
{
    size_t length = number(c, table + 8 * i), at = number(c, table + 8 * i + 4);
    if (at >= c->n || length >= c->n - at || c->bytes[at + length]) return NULL;
    return (const char *)c->bytes + at;
}

static bool is_utf8(const char *s)
{
    utf8proc_ssize_t left = (utf8proc_ssize_t)strlen(s), step;
    for (utf8proc_int32_t code; left > 0; s += step, left -= step) {
        step = utf8proc_iterate((const utf8proc_uint8_t *)s, left, &code);
        if (step <= 0) return false;
    }
    return true;
}

static neb_status message(const char *english, const char *translation, neb_message_fn fn, void *arg)
{
    const char *context = strchr(english, CONTEXT_END);
    if (context) english = context + 1;
    if (!*english || !*translation || !is_utf8(english) || !is_utf8(translation)) return NEB_OK;
    return fn(arg, english, translation);
}

neb_status neb__catalogue_read_bytes(const void *bytes, size_t n, neb_message_fn fn, void *arg)
{
    struct catalogue c = {.bytes = bytes, .n = n};
    if (n < HEADER) return neb__fail(NEB_ERR_CORRUPT, "not a message catalogue: only %zu bytes", n);
    c.swapped = number(&c, 0) == __builtin_bswap32(magic);
    if (!c.swapped && number(&c, 0) != magic) return neb__fail(NEB_ERR_CORRUPT, "not a message catalogue");
    size_t count = number(&c, 8), english = number(&c, 12), translated = number(&c, 16);
    if (number(&c, 4) >> 16 > 1 || english > n || translated > n || count > (n - english) / 8 ||
        count > (n - translated) / 8)
        return neb__fail(NEB_ERR_CORRUPT, "a message catalogue whose tables lie outside of it");
    for (size_t i = 0; i < count; i++) {
        const char *a = string_at(&c, english, i), *b = string_at(&c, translated, i);
        if (!a || !b)
            return neb__fail(NEB_ERR_CORRUPT, "a message catalogue whose string %zu lies outside of it", i);
        NEB_TRY(message(a, b, fn, arg));
    }
    return NEB_OK;
}

neb_status neb__catalogue_read(const char *path, neb_message_fn fn, void *arg)
{
    struct neb_buf file;
    neb__buf_init(&file, MAX_FILE);
    neb_status status = neb__file_read(path, &file);
    if (status == NEB_OK) status = neb__catalogue_read_bytes(file.data, file.len, fn, arg);
    neb__buf_free(&file);
    return status;
}
