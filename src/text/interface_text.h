/* interface_text.h: makes a plain sentence of an interface string, and the form by which two of them are the same. */
#ifndef NEB_TEXT_INTERFACE_TEXT_H
#define NEB_TEXT_INTERFACE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of a sentence and of its normalised form, with their ends; lower case may take more bytes. */
enum { NEB_INTERFACE_TEXT = 512, NEB_INTERFACE_FORM = 1024 };

/* Writes the string as one line without tags and accelerator marks ("_Open", "E&xit", "~Save"). False: there is not
 * one sentence in it that a reader would call text (too long, more signs than letters, escaped characters). */
bool neb__interface_tidy(const char *string, char out[NEB_INTERFACE_TEXT]);

/* Writes the words of a tidy sentence in lower case with one space between them, without punctuation, numbers and
 * placeholders (%s, %1, $(ARG1), {0}). Returns how many words there are. */
int neb__interface_normalise(const char *tidy, char out[NEB_INTERFACE_FORM]);

#endif
