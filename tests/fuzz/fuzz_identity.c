/* fuzz_identity.c: identities, addresses, key files and certificates: the texts and blobs people and peers hand over. */
#include "seal/roster.h"
#include "seal/tls.h"

#include <nebula/log.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char name[NEB_NAME_SIZE], again[NEB_IDENTITY_SIZE], text[256], host[NEB_ADDRESS_SIZE];
    struct neb_public key;
    struct neb_key *secret;
    uint16_t port;
    neb_log_set_level(NEB_LOG_NONE);
    if (!size) return 0;
    switch (data[0] & 3) {
    case 0:
        if (neb__identity_parse((const char *)data + 1, size - 1, name, &key) == NEB_OK) {
            neb__identity_format(name, &key, again);
            if (strlen(again) != size - 1 || memcmp(again, data + 1, size - 1)) abort();
        }
        break;
    case 1:
        if (size > sizeof text) break;
        memcpy(text, data + 1, size - 1);
        text[size - 1] = 0;
        if (neb__address_split(text, host, &port) && !port) abort();
        break;
    case 2:
        if (neb__key_parse(data + 1, size - 1, &secret) == NEB_OK) neb__key_free(secret);
        break;
    case 3: neb__tls_certificate_key(data + 1, size - 1, &key); break;
    }
    return 0;
}
