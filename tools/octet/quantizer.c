/* quantizer.c - octet quantizer: one quantizer's text, read back field by field. */
#include "cli.h"

#include <inttypes.h>

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option none = {NULL, NULL};
    if (oct_cli_arguments(self, &count, words, &none) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    if (count != 1) {
        return oct_cli_misuse(self, "one TEXT is needed, %d given", count);
    }
    octet_quantizer quantizer;
    octet_error err;
    if (octet_quantizer_parse(&quantizer, words[0], &err) != OCTET_OK) {
        oct_cli_source source = {.command = self->name, .text = words[0]};
        return oct_cli_reject(&source, &err);
    }
    char text[OCTET_QUANTIZER_TEXT];
    (void)octet_quantizer_print(text, sizeof(text), &quantizer);
    printf("%s\nhash %016" PRIx64 "\n\n", text, octet_quantizer_hash(&quantizer));
    oct_cli_fields(OCTET_STRUCT_QUANTIZER, &quantizer, quantizer.scheme);
    if (quantizer.scheme != OCTET_SCHEME_NONE) {
        printf("\ncolumnwise bytes are %s\n", octet_quantizer_transposable(&quantizer)
                                                  ? "the transpose of rowwise bytes"
                                                  : "made on their own, from the tensor");
    }
    return OCT_CLI_OK;
}

const oct_cli_command oct_cli_quantizer = {
    .name = "quantizer",
    .usage = "TEXT",
    .summary = "a quantizer's canonical text, hash and fields",
    .about =
        "Reads a quantizer, scheme:format[/RxC][+option[=value]]..., and prints its canonical\n"
        "text, its hash, each field that has a meaning for the scheme with the word that sets\n"
        "it, and whether columnwise bytes are the transpose of rowwise ones. Schemes:\n"
        "fp8-tensor, fp8-delayed, fp8-block, mxfp8, nvfp4, mxfp4. Without row or col: both.",
    .example = "octet quantizer nvfp4:e2m1/1x16+rht+sr",
    .run = run,
};
