/* peft_config.c: the options that say which parts of a model are trained, and which parameters are added for
 * that. */
#include "nn/config.h"

#include <string.h>

#define OPT(field, ...) NEB_OPT(struct neb_peft_config, field, __VA_ARGS__)

const struct neb_opt neb__peft_options[] = {
    OPT(method, NEB_OPT_TEXT, "full", NULL,
        "full, frozen, or a list of lora, ia3, adapter, bias, prefix, prompt"),
    OPT(lora_rank, NEB_OPT_INT, "8", NULL, "lora: rank of the added matrices", NEB_OPT_RANGE(1, 4096)),
    OPT(lora_alpha, NEB_OPT_REAL, "16", NULL, "lora: the product counts alpha / rank", NEB_OPT_ABOVE(0, 1e6)),
    OPT(lora_dropout, NEB_OPT_SHARE, "0", NULL, "lora: dropout before the first matrix",
        NEB_OPT_BELOW(0, 0.99)),
    OPT(lora_on, NEB_OPT_TEXT, "*.qkv,*.cross.q,*.cross.kv", NULL,
        "lora: patterns of linear layers; q, k, v, gate and up by themselves, too"),
    OPT(lora_dora, NEB_OPT_BOOL, "no", NULL,
        "lora: trains the length of each row of a weight as well (DoRA)"),
    OPT(ia3_on, NEB_OPT_TEXT, "*.attention.k,*.attention.v,*.cross.k,*.cross.v", NULL,
        "ia3: patterns of linear layers whose outputs get factors"),
    OPT(ia3_in, NEB_OPT_TEXT, "*.ffn.out", NULL, "ia3: patterns of linear layers whose inputs get factors"),
    OPT(adapter_size, NEB_OPT_INT, "64", NULL, "adapter: width of the bottleneck", NEB_OPT_RANGE(1, 1 << 16)),
    OPT(adapter_after, NEB_OPT_TEXT, "ffn", NULL, "adapter: after the feed-forward, or after attention too",
        NEB_OPT_CHOICE("ffn", "both")),
    OPT(prefix_length, NEB_OPT_INT, "16", "tokens", "prefix: trained keys and values before every sequence",
        NEB_OPT_RANGE(1, 1 << 16)),
    OPT(prompt_length, NEB_OPT_INT, "16", "tokens",
        "prompt: trained embeddings before every text, of a decoder", NEB_OPT_RANGE(1, 1 << 16)),
    OPT(train, NEB_OPT_TEXT, "", NULL, "patterns of parameters trained as well, such as head.*"),
    OPT(freeze, NEB_OPT_TEXT, "", NULL, "patterns of parameters not trained; wins over train"),
    OPT(frozen, NEB_OPT_TEXT, "f32", NULL,
        "how frozen weights of the layers are kept: f32, bf16, int8 (a scale a row) or nf4 (4 bits)",
        NEB_OPT_CHOICE("f32", "bf16", "int8", "nf4")),
    NEB_OPT_END,
};

neb_status neb__peft_config_init(struct neb_peft_config *out)
{
    return neb__opts_init(neb__peft_options, out);
}

void neb__peft_config_free(struct neb_peft_config *c)
{
    neb__opts_free(neb__peft_options, c);
}

bool neb__list_part(const char *list, int i, char *out, size_t size)
{
    if (!list) return false;
    for (; i > 0; i--) {
        list = strchr(list, ',');
        if (!list) return false;
        list++;
    }
    while (*list == ' ') list++;
    size_t n = strcspn(list, ",");
    while (n && list[n - 1] == ' ') n--;
    snprintf(out, size, "%.*s", (int)n, list);
    return true;
}

static neb_status methods(const struct neb_peft_config *c, struct neb_peft *p)
{
    char word[32];
    int n = 0;
    for (; neb__list_part(c->method ? c->method : "full", n, word, sizeof word); n++) {
        if (!strcmp(word, "full"))
            p->full = true;
        else if (!strcmp(word, "frozen"))
            p->frozen = true;
        else if (!strcmp(word, "lora"))
            p->lora = true;
        else if (!strcmp(word, "adapter"))
            p->adapter = true;
        else if (!strcmp(word, "bias"))
            p->bias = true;
        else if (!strcmp(word, "prefix"))
            p->prefix = true;
        else if (!strcmp(word, "ia3"))
            p->ia3 = true;
        else if (!strcmp(word, "prompt"))
            p->prompt = true;
        else
            return neb__fail(
                NEB_ERR_CONFIG,
                "option 'method': '%s' is not one of full, frozen, lora, ia3, adapter, bias, prefix, prompt",
                word);
    }
    if ((p->full || p->frozen) && n > 1)
        return neb__fail(NEB_ERR_CONFIG,
                         "option 'method': '%s' combines methods, but full and frozen stand alone",
                         c->method);
    return NEB_OK;
}

static neb_narrow_kind kept_as(const char *word)
{
    if (!word || !strcmp(word, "f32")) return NEB_WIDE;
    if (!strcmp(word, "bf16")) return NEB_NARROW_BF16;
    return strcmp(word, "int8") ? NEB_NARROW_NF4 : NEB_NARROW_INT8;
}

neb_status neb__peft_config_check(const struct neb_peft_config *c, struct neb_peft *out)
{
    struct neb_peft p = {0};
    NEB_TRY(neb__opts_check(neb__peft_options, c));
    NEB_TRY(methods(c, &p));
    if (p.lora) {
        if (!c->lora_on)
            return neb__fail(NEB_ERR_CONFIG, "option 'lora_on': empty; name at least one pattern");
        p.lora_rank = c->lora_rank;
        p.lora_scale = (float)(c->lora_alpha / (double)c->lora_rank);
        p.lora_dropout = (float)c->lora_dropout;
        p.lora_on = c->lora_on;
        p.dora = c->lora_dora;
    }
    if (p.ia3) {
        p.ia3_on = c->ia3_on;
        p.ia3_in = c->ia3_in;
    }
    if (p.adapter) {
        p.adapter_size = c->adapter_size;
        p.adapter_after_attention = !strcmp(c->adapter_after, "both");
    }
    if (p.prefix) p.prefix_length = c->prefix_length;
    if (p.prompt) p.prompt_length = c->prompt_length;
    p.train = c->train;
    p.freeze = c->freeze;
    p.keep = kept_as(c->frozen);
    if (p.keep && p.full && (!p.freeze || !*p.freeze))
        return neb__fail(
            NEB_ERR_CONFIG,
            "option 'frozen': %s is for weights that are not trained, and method full trains all; "
            "choose a method such as lora",
            c->frozen);
    *out = p;
    return NEB_OK;
}
