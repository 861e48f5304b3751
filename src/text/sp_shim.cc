/* sp_shim.cc: the one C++ file of the text side: calls SentencePiece, turns statuses and exceptions into
 * codes.
 *
 * Encoding writes into a vector of the calling thread, so that encoding millions of lines on all cores
 * neither allocates a result per line nor shares one. */
#include <inttypes.h>
#include <stddef.h>
extern "C" {
#include "text/sp_shim.h"
}

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

struct neb_sp {
    sentencepiece::SentencePieceProcessor processor;
    bool bpe;
};

namespace
{

neb_status say(char *error, neb_status s, const char *text)
{
    snprintf(error, NEB_SP_ERROR, "%s", text);
    return s;
}

neb_status say(char *error, neb_status s, const sentencepiece::util::Status &status)
{
    return say(error, s, status.ToString().c_str());
}

/* Runs `body`, which returns a neb_status, and lets no exception out. */
template <class Body> neb_status guarded(char *error, Body body)
{
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return say(error, NEB_ERR_NOMEM, "out of memory");
    } catch (const std::exception &e) {
        return say(error, NEB_ERR_INTERNAL, e.what());
    } catch (...) {
        return say(error, NEB_ERR_INTERNAL, "an unknown exception");
    }
}

bool take_varint(const uint8_t *&p, const uint8_t *end, uint64_t &value)
{
    value = 0;
    for (int shift = 0; p < end && shift < 64; shift += 7) {
        value |= uint64_t(*p & 127) << shift;
        if (!(*p++ & 128)) return true;
    }
    return false;
}

/* Finds the last field of this number and wire type in a protobuf message: its value, or the place of its
 * bytes inside the message. The library installs no header of its messages and offers no other way to learn a
 * model's kind. */
bool find_field(const uint8_t *p, const uint8_t *end, uint64_t number, uint64_t type, uint64_t &value,
                const uint8_t *&bytes)
{
    bool found = false;
    for (uint64_t key, n; p < end;) {
        if (!take_varint(p, end, key)) return false;
        uint64_t wire = key & 7;
        n = 0;
        if (wire == 1) n = 8;
        if (wire == 5) n = 4;
        if (wire == 3 || wire == 4 || wire > 5) return false;
        if ((wire == 0 || wire == 2) && !take_varint(p, end, n)) return false;
        if (wire != 0 && n > uint64_t(end - p)) return false;
        if (key == (number << 3 | type)) found = true, value = n, bytes = p;
        if (wire != 0) p += n;
    }
    return found;
}

/* ModelProto.trainer_spec (2).model_type (3) is BPE (2). */
bool is_bpe(const uint8_t *model, size_t n)
{
    const uint8_t *spec, *none;
    uint64_t size, type;
    return find_field(model, model + n, 2, 2, size, spec) &&
           find_field(spec, spec + size, 3, 0, type, none) && type == 2;
}

class Lines : public sentencepiece::SentenceIterator
{
  public:
    Lines(neb_sp_next next, void *arg) : next_(next), arg_(arg)
    {
        Next();
    }
    bool done() const override
    {
        return done_;
    }
    void Next() override
    {
        const char *text;
        size_t n;
        done_ = !next_(arg_, &text, &n);
        if (!done_) value_.assign(text, n);
    }
    const std::string &value() const override
    {
        return value_;
    }
    sentencepiece::util::Status status() const override
    {
        return sentencepiece::util::Status();
    }

  private:
    neb_sp_next next_;
    void *arg_;
    bool done_ = false;
    std::string value_;
};

} // namespace

neb_status neb__sp_load(const void *bytes, size_t n, neb_sp **out, char *error)
{
    return guarded(error, [&] {
        std::unique_ptr<neb_sp> sp(new neb_sp);
        auto status = sp->processor.LoadFromSerializedProto(absl::string_view((const char *)bytes, n));
        if (!status.ok()) return say(error, NEB_ERR_CORRUPT, status);
        sp->bpe = is_bpe((const uint8_t *)bytes, n);
        *out = sp.release();
        return NEB_OK;
    });
}

void neb__sp_free(neb_sp *sp)
{
    delete sp;
}

neb_status neb__sp_encode(const neb_sp *sp, const char *text, size_t n, const int **ids, size_t *count,
                          char *error)
{
    static thread_local std::vector<int> result;
    return guarded(error, [&] {
        auto status = sp->processor.Encode(absl::string_view(text, n), &result);
        if (!status.ok()) return say(error, NEB_ERR_INTERNAL, status);
        *ids = result.data();
        *count = result.size();
        return NEB_OK;
    });
}

neb_status neb__sp_decode(const neb_sp *sp, const int32_t *ids, size_t n, neb_buf *out, char *error)
{
    return guarded(error, [&] {
        std::string text;
        auto status = sp->processor.Decode(std::vector<int>(ids, ids + n), &text);
        if (!status.ok()) return say(error, NEB_ERR_INTERNAL, status);
        neb_status s = neb__buf_append(out, text.data(), text.size());
        return s == NEB_OK ? s : say(error, s, "the decoded text does not fit");
    });
}

neb_status neb__sp_pieces(const neb_sp *sp, const char *text, size_t n, neb_sp_piece_fn fn, void *arg,
                          char *error)
{
    static thread_local std::vector<std::string> result;
    return guarded(error, [&] {
        auto status = sp->processor.Encode(absl::string_view(text, n), &result);
        if (!status.ok()) return say(error, NEB_ERR_INTERNAL, status);
        for (const auto &piece : result) {
            neb_status s = fn(arg, piece.data(), piece.size());
            if (s != NEB_OK) return say(error, s, "there is no room for the pieces");
        }
        return NEB_OK;
    });
}

neb_status neb__sp_join(const neb_sp *sp, const char *const *pieces, size_t n, neb_buf *out, char *error)
{
    return guarded(error, [&] {
        std::string text;
        auto status = sp->processor.Decode(std::vector<std::string>(pieces, pieces + n), &text);
        if (!status.ok()) return say(error, NEB_ERR_INTERNAL, status);
        neb_status s = neb__buf_append(out, text.data(), text.size());
        return s == NEB_OK ? s : say(error, s, "the decoded text does not fit");
    });
}

int32_t neb__sp_size(const neb_sp *sp)
{
    return sp->processor.GetPieceSize();
}

int32_t neb__sp_id(const neb_sp *sp, const char *piece)
{
    int id = sp->processor.PieceToId(piece);
    return id >= 0 && sp->processor.IdToPiece(id) == piece ? id
                                                           : -1; /* an unknown piece gives the id of <unk> */
}

const char *neb__sp_piece(const neb_sp *sp, int32_t id)
{
    return id >= 0 && id < sp->processor.GetPieceSize() ? sp->processor.IdToPiece(id).c_str() : nullptr;
}

int neb__sp_is_special(const neb_sp *sp, int32_t id)
{
    const auto &p = sp->processor;
    return p.IsControl(id) || p.IsUnknown(id) || p.IsUnused(id);
}

int neb__sp_is_byte(const neb_sp *sp, int32_t id)
{
    return sp->processor.IsByte(id);
}

/* BPE merges by score, highest first. Symbols that a user added share one score, so this check refuses
 * them. */
int neb__sp_merges_in_order(const neb_sp *sp)
{
    const auto &p = sp->processor;
    bool first = true;
    float before = 0;
    for (int32_t id = 0; sp->bpe && id < p.GetPieceSize(); id++) {
        if (p.IsUnused(id)) return 0;
        if (p.IsControl(id) || p.IsUnknown(id) || p.IsByte(id)) continue;
        if (!first && !(p.GetScore(id) < before)) return 0;
        before = p.GetScore(id);
        first = false;
    }
    return sp->bpe;
}

int32_t neb__sp_pad(const neb_sp *sp)
{
    return sp->processor.pad_id();
}

int32_t neb__sp_unk(const neb_sp *sp)
{
    return sp->processor.unk_id();
}

int32_t neb__sp_bos(const neb_sp *sp)
{
    return sp->processor.bos_id();
}

int32_t neb__sp_eos(const neb_sp *sp)
{
    return sp->processor.eos_id();
}

neb_status neb__sp_train(const char *const *kv, neb_sp_next next, void *arg, neb_buf *out, char *error)
{
    return guarded(error, [&] {
        std::unordered_map<std::string, std::string> options;
        for (; kv[0]; kv += 2) options[kv[0]] = kv[1];
        Lines lines(next, arg);
        std::string model;
        auto status = sentencepiece::SentencePieceTrainer::Train(options, &lines, &model);
        if (!status.ok()) return say(error, NEB_ERR_INVALID, status);
        neb_status s = neb__buf_append(out, model.data(), model.size());
        return s == NEB_OK ? s : say(error, s, "no room for the trained model");
    });
}
