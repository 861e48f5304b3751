/* chat.c: conversations.
 *
 * A model that was made for conversations has a template (a Jinja program, text/jinja.h) in its folder. Here the usual ones
 * are known by name, too, written in the same language. The template gives a text; special tokens in it are tokens.
 * Messages are other people's: before they enter the template, a mark (U+0001) is put in front of whatever looks like a
 * special token in them, and so it stays text.
 *
 * A template also says how an answer ends: a conversation of made-up words goes through it, and the first special token
 * behind the answer, or the text up to the line end, is the end. */
#include "task/chat.h"
#include "base/file.h"
#include "base/mem.h"
#include "text/byte_chars.h"
#include "text/jinja.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEMPLATE = 1 << 20, TEXT = 16 << 20, MARK = 1 };

static const struct {
    const char *name, *text;
} known[] = {
    {"chatml", "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"llama2",
     "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
     "{% set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' %}{% elif m.role == 'user' %}"
     "{{ bos_token + '[INST] ' + ns.system + m.content.strip() + ' [/INST]' }}{% set ns.system = '' %}"
     "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"},
    {"llama3", "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
               "{{ m.content | trim }}<|eot_id|>{% endfor %}"
               "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"},
    {"mistral",
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
     "{% set ns.system = m.content + '\\n\\n' %}{% elif m.role == 'user' %}"
     "{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}"
     "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"},
    {"gemma", "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
              "{{ raise_exception('Gemma knows no system message') }}{% endif %}"
              "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim "
              "}}<end_of_turn>\n"
              "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
    {"plain",
     "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n{% elif m.role == 'user' %}"
     "{{ 'User: ' + m.content }}\n{% else %}{{ 'Assistant: ' + m.content }}\n{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"},
};
enum { KNOWN = sizeof known / sizeof *known };

struct neb_chat {
    const struct neb_tok *tok;
    struct neb_buf template; /* UTF-8 */
    json_t *messages, *variables;
    int32_t end;
    char *stop;
};

static neb_status no_memory(void)
{
    return neb__fail(NEB_ERR_NOMEM, "out of memory for a conversation");
}

/* ---- finding the template ------------------------------------------------------------------------------------------ */

/* tokenizer_config.json of the folder, or an empty object. */
static neb_status read_config(const char *folder, json_t **out)
{
    char path[1024];
    struct neb_buf bytes;
    json_error_t e;
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    if (access(path, F_OK)) return (*out = json_object()) ? NEB_OK : no_memory();
    neb__buf_init(&bytes, 64 << 20);
    neb_status status = neb__file_read(path, &bytes);
    if (status == NEB_OK) {
        *out = json_loadb((const char *)bytes.data, bytes.len, JSON_DECODE_INT_AS_REAL, &e);
        if (!json_is_object(*out)) {
            status = neb__fail(NEB_ERR_CORRUPT, "%s, line %d: %s", path, *out ? 1 : e.line,
                               *out ? "not an object" : e.text);
            json_decref(*out);
        }
    }
    neb__buf_free(&bytes);
    return status;
}

/* A text, or a list of {"name", "template"}. */
static const char *template_in(const json_t *config)
{
    const json_t *t = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(t); i++) {
        const json_t *one = json_array_get(t, i);
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && !strcmp(name, "default")) return json_string_value(json_object_get(one, "template"));
    }
    return json_string_value(t);
}

static neb_status fold_names(struct neb_buf *out)
{
    for (int i = 0; i < KNOWN; i++) NEB_TRY(neb__buf_printf(out, "%s%s", i ? ", " : "", known[i].name));
    return neb__buf_append(out, "", 1);
}

static neb_status refuse(const char *what, const char *which)
{
    struct neb_buf names;
    neb__buf_init(&names, 1024);
    neb_status status = fold_names(&names);
    if (status == NEB_OK)
        status = neb__fail(NEB_ERR_NOTFOUND, "%s %.400s; --template takes one of %s, or a file", what, which,
                           (const char *)names.data);
    neb__buf_free(&names);
    return status;
}

static neb_status folder_template(struct neb_chat *c, const char *folder, const json_t *config)
{
    char path[1024];
    const char *text = template_in(config);
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    if (!access(path, F_OK)) return neb__file_read(path, &c->template);
    if (!text) return refuse("there is no chat template in", folder);
    return neb__buf_append(&c->template, text, strlen(text));
}

static neb_status find_template(struct neb_chat *c, const char *folder, const char *choice,
                                const json_t *config)
{
    if (!strcmp(choice, "auto")) return folder_template(c, folder, config);
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(choice, known[i].name))
            return neb__buf_append(&c->template, known[i].text, strlen(known[i].text));
    if (access(choice, F_OK)) return refuse("there is no chat template", choice);
    return neb__file_read(choice, &c->template);
}

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static bool special_stands(const struct neb_tok *tok, const char *p)
{
    if (!strchr("<[", *p)) return false;
    const uint8_t *map = neb__tok_special_map(tok);
    for (int32_t id = 0; id < neb__tok_vocab(tok); id++) {
        const char *piece = map[id] ? neb__tok_piece(tok, id) : NULL;
        if (piece && *piece && !strncmp(p, piece, strlen(piece))) return true;
    }
    return false;
}

/* The text as UTF-8, with marks and without bytes that mean something here; ends with 0. */
static neb_status protect(const struct neb_tok *tok, const char *text, size_t n, struct neb_buf *out)
{
    struct neb_buf clean;
    neb__buf_init(&clean, TEXT);
    neb_status status = neb__utf8_repair((const uint8_t *)text, n, &clean);
    if (status == NEB_OK) status = neb__buf_append(&clean, "", 1);
    for (size_t i = 0; status == NEB_OK && i + 1 < clean.len; i++) {
        const char *p = (const char *)clean.data + i;
        if (*p == 0 || *p == MARK) continue;
        if (special_stands(tok, p)) status = neb__buf_append(out, (const char[]){MARK}, 1);
        if (status == NEB_OK) status = neb__buf_append(out, p, 1);
    }
    if (status == NEB_OK) status = neb__buf_append(out, "", 1);
    neb__buf_free(&clean);
    return status;
}

neb_status neb__chat_add(struct neb_chat *c, const char *role, const char *text, size_t n)
{
    struct neb_buf content;
    neb__buf_init(&content, 2 * TEXT);
    neb_status status = protect(c->tok, text, n, &content);
    if (status == NEB_OK &&
        json_array_append_new(c->messages,
                              json_pack("{s:s, s:s}", "role", role, "content", (const char *)content.data)))
        status = no_memory();
    neb__buf_free(&content);
    return status;
}

int neb__chat_count(const struct neb_chat *c)
{
    return (int)json_array_size(c->messages);
}

void neb__chat_cut(struct neb_chat *c, int count)
{
    while (neb__chat_count(c) > count) json_array_remove(c->messages, (size_t)neb__chat_count(c) - 1);
}

/* ---- to tokens ------------------------------------------------------------------------------------------------------ */

static neb_status render(struct neb_chat *c, bool answer, struct neb_buf *out)
{
    if (json_object_set(c->variables, "messages", c->messages) ||
        json_object_set_new(c->variables, "add_generation_prompt", json_boolean(answer)))
        return no_memory();
    return neb__jinja_render((const char *)c->template.data, c->template.len, c->variables, out);
}

/* Takes the marks out of the text; plain gets a byte for each of its bytes. */
static neb_status take_marks(struct neb_buf *text, struct neb_buf *plain)
{
    size_t n = 0;
    uint8_t marked = 0;
    for (size_t i = 0; i < text->len; i++) {
        if (text->data[i] == MARK) {
            marked = 1;
            continue;
        }
        NEB_TRY(neb__buf_append(plain, &marked, 1));
        text->data[n++] = text->data[i];
        marked = 0;
    }
    text->len = n;
    return NEB_OK;
}

neb_status neb__chat_tokens(struct neb_chat *c, struct neb_buf *ids)
{
    struct neb_buf text, plain;
    neb__buf_init(&text, TEXT);
    neb__buf_init(&plain, TEXT);
    neb_status status = render(c, true, &text);
    if (status == NEB_OK) status = take_marks(&text, &plain);
    if (status == NEB_OK)
        status = neb__tok_encode_special(c->tok, (const char *)text.data, text.len, plain.data, ids);
    neb__buf_free(&text);
    neb__buf_free(&plain);
    return status;
}

/* ---- how an answer ends ---------------------------------------------------------------------------------------------- */

/* The text between answer and next question: its first special token, or its first line. */
static neb_status take_end(struct neb_chat *c, const char *p, size_t n)
{
    struct neb_buf ids;
    const uint8_t *map = neb__tok_special_map(c->tok);
    uint8_t *plain = NEB_NEW_ARRAY(uint8_t, n + 1);
    if (!plain) return no_memory();
    neb__buf_init(&ids, TEXT);
    neb_status status = neb__tok_encode_special(c->tok, p, n, plain, &ids);
    neb__free(plain);
    const int32_t *list = (const int32_t *)(const void *)ids.data;
    for (size_t i = 0; status == NEB_OK && c->end < 0 && i < ids.len / sizeof *list; i++)
        if (map[list[i]]) c->end = list[i];
    neb__buf_free(&ids);
    if (status != NEB_OK || c->end >= 0) return status;
    size_t from = strspn(p, " \t\n"), to = from;
    while (to < n && p[to] != '\n') to++;
    while (to > from && (p[to - 1] == ' ' || p[to - 1] == '\t')) to--;
    if (to == from) return NEB_OK;
    c->stop = neb__malloc(to + 1);
    if (!c->stop) return no_memory();
    memcpy(c->stop, p, to);
    c->stop[to] = 0;
    return NEB_OK;
}

static neb_status find_end(struct neb_chat *c)
{
    static const char *const words[] = {"Qzquestion", "Qzanswer", "Qzfurther"};
    struct neb_buf text;
    neb_status status = NEB_OK;
    neb__buf_init(&text, TEXT);
    for (int i = 0; status == NEB_OK && i < 3; i++)
        status = neb__chat_add(c, i == 1 ? "assistant" : "user", words[i], strlen(words[i]));
    if (status == NEB_OK) status = render(c, false, &text);
    if (status == NEB_OK) status = neb__buf_append(&text, "", 1);
    if (status == NEB_OK) {
        char *answer = strstr((char *)text.data, words[1]), *next = answer ? strstr(answer, words[2]) : NULL;
        if (!next)
            status = neb__fail(NEB_ERR_UNSUPPORTED,
                               "the chat template leaves out messages; choose a template with --template");
        else {
            *next = 0;
            answer += strlen(words[1]);
            status = take_end(c, answer, (size_t)(next - answer));
        }
    }
    neb__chat_cut(c, 0);
    neb__buf_free(&text);
    return status;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------- */

/* The text of a token, as the template sees it. */
static neb_status set_token(struct neb_chat *c, const json_t *config, const char *key, enum neb_special which)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    const int32_t id = neb__tok_special(c->tok, which);
    if (!text && !json_is_null(v) && id >= 0) text = neb__tok_piece(c->tok, id);
    return json_object_set_new(c->variables, key, json_string(text ? text : "")) ? no_memory() : NEB_OK;
}

static neb_status open_chat(struct neb_chat *c, const char *folder, const char *choice)
{
    json_t *config;
    c->messages = json_array();
    c->variables = json_object();
    if (!c->messages || !c->variables) return no_memory();
    NEB_TRY(read_config(folder, &config));
    neb_status status = find_template(c, folder, choice, config);
    if (status == NEB_OK) status = set_token(c, config, "bos_token", NEB_TOK_BOS);
    if (status == NEB_OK) status = set_token(c, config, "eos_token", NEB_TOK_EOS);
    if (status == NEB_OK) status = set_token(c, config, "unk_token", NEB_TOK_UNK);
    if (status == NEB_OK) status = set_token(c, config, "pad_token", NEB_TOK_PAD);
    if (status == NEB_OK && (json_object_set_new(c->variables, "tools", json_null()) ||
                             json_object_set_new(c->variables, "documents", json_null())))
        status = no_memory();
    json_decref(config);
    return status == NEB_OK ? find_end(c) : status;
}

neb_status neb__chat_open(const char *folder, const char *choice, const struct neb_tok *tok,
                          struct neb_chat **out)
{
    struct neb_chat *c = NEB_NEW(struct neb_chat);
    if (!c) return no_memory();
    c->tok = tok;
    c->end = -1;
    neb__buf_init(&c->template, TEMPLATE);
    neb_status status = open_chat(c, folder, choice);
    if (status != NEB_OK) {
        neb__chat_close(c);
        return status;
    }
    *out = c;
    return NEB_OK;
}

void neb__chat_close(struct neb_chat *c)
{
    if (!c) return;
    neb__buf_free(&c->template);
    json_decref(c->messages);
    json_decref(c->variables);
    neb__free(c->stop);
    neb__free(c);
}

int32_t neb__chat_end_token(const struct neb_chat *c)
{
    return c->end;
}

const char *neb__chat_end_text(const struct neb_chat *c)
{
    return c->stop;
}
