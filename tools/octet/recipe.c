/* recipe.c - octet recipe: which quantizer each role gets, and how each GEMM accumulates. */
#include "cli.h"

static octet_status add_roles(oct_cli_table *table, const octet_recipe *recipe,
                              octet_error *err) {
    for (int role = 0; role < OCTET_ROLES; role++) {
        octet_quantizer quantizer;
        octet_status status = octet_recipe_quantizer(&quantizer, recipe, (octet_role)role, err);
        if (status != OCTET_OK) {
            return status;
        }
        char text[OCTET_QUANTIZER_TEXT];
        (void)octet_quantizer_print(text, sizeof(text), &quantizer);
        oct_cli_cell(table, "%s", octet_role_name((octet_role)role));
        oct_cli_cell(table, "%s", text);
    }
    return OCTET_OK;
}

static void add_modes(oct_cli_table *table, const octet_recipe *recipe) {
    static const char *const overrides[] = {
        [OCTET_OVERRIDE_NONE] = "none",
        [OCTET_OVERRIDE_HIGH_PRECISION] = "high_precision",
        [OCTET_OVERRIDE_DEQUANTIZED] = "dequantized",
    };
    const struct {
        const char *name;
        uint8_t is_split;
    } gemms[OCTET_GEMMS] = {
        [OCTET_FPROP] = {"fprop", recipe->split_fprop},
        [OCTET_DGRAD] = {"dgrad", recipe->split_dgrad},
        [OCTET_WGRAD] = {"wgrad", recipe->split_wgrad},
    };
    for (int i = 0; i < OCTET_GEMMS && recipe->kind != OCTET_RECIPE_NONE; i++) {
        oct_cli_cell(table, "%s accumulation", gemms[i].name);
        oct_cli_cell(table, "%s", gemms[i].is_split ? "split" : "fast");
    }
    oct_cli_cell(table, "backward override");
    oct_cli_cell(table, "%s", overrides[recipe->override_]);
}

static octet_status show(const octet_recipe *recipe, octet_error *err) {
    oct_cli_table table = {.columns = 2};
    octet_status status = add_roles(&table, recipe, err);
    if (status != OCTET_OK) {
        oct_cli_table_drop(&table);
        return status;
    }
    add_modes(&table, recipe);
    char text[OCTET_RECIPE_TEXT];
    (void)octet_recipe_print(text, sizeof(text), recipe);
    printf("%s\n\n", text);
    oct_cli_table_print(&table);
    putchar('\n');
    oct_cli_fields(OCTET_STRUCT_RECIPE, recipe, recipe->kind);
    return OCTET_OK;
}

static int run(const oct_cli_command *self, int count, char **words) {
    oct_cli_option none = {NULL, NULL};
    if (oct_cli_arguments(self, &count, words, &none) != OCT_CLI_OK) {
        return OCT_CLI_USAGE;
    }
    if (count != 1) {
        return oct_cli_misuse(self, "one TEXT is needed, %d given", count);
    }
    octet_recipe recipe;
    octet_error err;
    octet_status status = octet_recipe_parse(&recipe, words[0], &err);
    if (status == OCTET_OK) {
        status = show(&recipe, &err);
    }
    oct_cli_source source = {.command = self->name, .text = words[0]};
    return status == OCTET_OK ? OCT_CLI_OK : oct_cli_reject(&source, &err);
}

const oct_cli_command oct_cli_recipe = {
    .name = "recipe",
    .usage = "TEXT",
    .summary = "which quantizer each role gets",
    .about =
        "Reads a recipe, name[+flag]...[:word=value,...], and prints its canonical text, the\n"
        "quantizer of each role, how each GEMM accumulates, what backward multiplies instead\n"
        "of quantized bytes, and every field that has a meaning for the recipe with the word\n"
        "that sets it. Names: none, delayed, current, block, mxfp8, nvfp4, mxfp4, custom.",
    .example = "octet recipe nvfp4+norht",
    .run = run,
};
