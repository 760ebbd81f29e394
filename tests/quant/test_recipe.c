/* test_recipe.c - recipes: defaults, every field's effect, text, and what is refused. */
#include "octet.h"

#include "test.h"

static octet_recipe parsed(const char *text) {
    octet_recipe recipe = {0};
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(octet_recipe_parse(&recipe, text, &err) == OCTET_OK, err.text);
    return recipe;
}

static const char *role_text(char text[OCTET_QUANTIZER_TEXT], const octet_recipe *recipe,
                             octet_role role) {
    octet_quantizer q;
    octet_error err = {OCTET_OK, 0, ""};
    CHECK_OF(octet_recipe_quantizer(&q, recipe, role, &err) == OCTET_OK, err.text);
    octet_quantizer_print(text, OCTET_QUANTIZER_TEXT, &q);
    return text;
}

TEST(recipe__roles_of_each_default) {
    static const struct {
        const char *recipe, *input, *weight, *grad;
        bool fprop, dgrad, wgrad;
    } cases[] = {
        {"none", "none", "none", "none", 0, 0, 0},
        {"delayed", "fp8-delayed:e4m3+row+col", "fp8-delayed:e4m3+row+col",
         "fp8-delayed:e5m2+row+col", 0, 1, 1},
        {"current", "fp8-tensor:e4m3+row+col", "fp8-tensor:e4m3+row+col",
         "fp8-tensor:e5m2+row+col", 0, 1, 1},
        {"block", "fp8-block:e4m3/1x128+row+col", "fp8-block:e4m3/128x128+row+col",
         "fp8-block:e4m3/1x128+row+col", 1, 1, 1},
        {"mxfp8", "mxfp8:e4m3/1x32+row+col", "mxfp8:e4m3/1x32+row+col",
         "mxfp8:e4m3/1x32+row+col", 0, 1, 1},
        {"nvfp4", "nvfp4:e2m1/1x16+row+col+rht", "nvfp4:e2m1/16x16+row+col",
         "nvfp4:e2m1/1x16+row+col+rht+sr", 1, 1, 1},
        {"mxfp4", "mxfp4:e2m1/1x32+row+col", "mxfp4:e2m1/32x32+row+col",
         "mxfp4:e2m1/1x32+row+col+sr", 1, 1, 1},
    };
    char text[OCTET_QUANTIZER_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_recipe recipe = parsed(cases[i].recipe), made;
        CHECK_EQ_INT(octet_recipe_make(&made, (octet_recipe_kind)i, NULL), OCTET_OK);
        CHECK_OF(octet_recipe_equal(&recipe, &made), cases[i].recipe);
        CHECK_EQ_STR(role_text(text, &recipe, OCTET_INPUT), cases[i].input);
        CHECK_EQ_STR(role_text(text, &recipe, OCTET_OUTPUT), cases[i].input);
        CHECK_EQ_STR(role_text(text, &recipe, OCTET_WEIGHT), cases[i].weight);
        CHECK_EQ_STR(role_text(text, &recipe, OCTET_GRAD_OUTPUT), cases[i].grad);
        CHECK_EQ_STR(role_text(text, &recipe, OCTET_GRAD_INPUT), cases[i].grad);
        CHECK_EQ_STR(role_text(text, &recipe, OCTET_GRAD_WEIGHT), "none");
        CHECK(recipe.split_fprop == cases[i].fprop && recipe.split_dgrad == cases[i].dgrad &&
              recipe.split_wgrad == cases[i].wgrad);
    }
}

TEST(recipe__fields_reach_the_quantizers) {
    static const struct {
        const char *recipe;
        octet_role role;
        const char *quantizer;
    } cases[] = {
        {"delayed:format=e4m3", OCTET_GRAD_OUTPUT, "fp8-delayed:e4m3+row+col"},
        {"current+pow2", OCTET_WEIGHT, "fp8-tensor:e4m3+row+col+pow2"},
        {"current+g.pow2", OCTET_WEIGHT, "fp8-tensor:e4m3+row+col"},
        {"current+g.pow2", OCTET_GRAD_INPUT, "fp8-tensor:e5m2+row+col+pow2"},
        {"current:eps=0.25", OCTET_INPUT, "fp8-tensor:e4m3+row+col+eps=0.25"},
        {"current:x.eps=2", OCTET_OUTPUT, "fp8-tensor:e4m3+row+col+eps=2"},
        {"current:x.eps=2", OCTET_WEIGHT, "fp8-tensor:e4m3+row+col"},
        {"block+nopow2", OCTET_INPUT, "fp8-block:e4m3/1x128+row+col+nopow2"},
        {"block+w.no2d", OCTET_WEIGHT, "fp8-block:e4m3/1x128+row+col"},
        {"block+x.2d", OCTET_INPUT, "fp8-block:e4m3/128x128+row+col"},
        {"block:format=hybrid", OCTET_GRAD_OUTPUT, "fp8-block:e5m2/1x128+row+col"},
        {"mxfp8+2d", OCTET_WEIGHT, "mxfp8:e4m3/32x32+row+col"},
        {"mxfp8+2d", OCTET_INPUT, "mxfp8:e4m3/1x32+row+col"},
        {"nvfp4+norht", OCTET_INPUT, "nvfp4:e2m1/1x16+row+col"},
        {"mxfp4+rht", OCTET_INPUT, "mxfp4:e2m1/1x32+row+col+rht"},
        {"mxfp4+rht", OCTET_WEIGHT, "mxfp4:e2m1/32x32+row+col"},
        {"mxfp4+rht+nosr", OCTET_GRAD_OUTPUT, "mxfp4:e2m1/1x32+row+col+rht"},
        {"mxfp4+no2d", OCTET_WEIGHT, "mxfp4:e2m1/1x32+row+col"},
        {"nvfp4+norht", OCTET_GRAD_OUTPUT, "nvfp4:e2m1/1x16+row+col+sr"},
        {"nvfp4+nosr", OCTET_GRAD_OUTPUT, "nvfp4:e2m1/1x16+row+col+rht"},
        {"nvfp4+no2d", OCTET_WEIGHT, "nvfp4:e2m1/1x16+row+col"},
        {"nvfp4:rht=plain", OCTET_INPUT, "nvfp4:e2m1/1x16+row+col+rht=plain"},
        {"nvfp4+norht+rowscaled", OCTET_INPUT, "nvfp4:e2m1/1x16+row+col+rowscaled"},
        {"nvfp4+norht+rowscaled", OCTET_WEIGHT, "nvfp4:e2m1/16x16+row+col"},
        {"nvfp4:4over6=weights", OCTET_WEIGHT, "nvfp4:e2m1/16x16+row+col+4over6+max256"},
        {"nvfp4:4over6=weights", OCTET_INPUT, "nvfp4:e2m1/1x16+row+col+rht"},
        {"nvfp4:4over6=weights,max256=none,err=mse", OCTET_WEIGHT,
         "nvfp4:e2m1/16x16+row+col+4over6=mse"},
        {"nvfp4+norht:4over6=all,max256=activations", OCTET_INPUT,
         "nvfp4:e2m1/1x16+row+col+4over6+max256"},
        {"nvfp4+norht:4over6=all,max256=activations", OCTET_WEIGHT,
         "nvfp4:e2m1/16x16+row+col+4over6"},
        {"nvfp4+norht:4over6=all", OCTET_GRAD_OUTPUT, "nvfp4:e2m1/1x16+row+col+sr"},
        {"custom:input=mxfp8:e4m3+row,grad_weight=fp8-tensor:e5m2", OCTET_INPUT,
         "mxfp8:e4m3/1x32+row"},
        {"custom:input=mxfp8:e4m3+row,grad_weight=fp8-tensor:e5m2", OCTET_GRAD_WEIGHT,
         "fp8-tensor:e5m2+row+col"},
        {"custom:input=mxfp8:e4m3+row", OCTET_WEIGHT, "none"},
    };
    char text[OCTET_QUANTIZER_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_recipe recipe = parsed(cases[i].recipe);
        role_text(text, &recipe, cases[i].role);
        CHECK_EQ_STR(text, cases[i].quantizer);
    }
}

TEST(recipe__canonical_texts) {
    static const char *const pairs[][2] = {
        {"current", "current"},
        {"delayed:history=16,algo=most_recent", "delayed:algo=most_recent,history=16"},
        {"delayed+noreduce:margin=-3", "delayed+noreduce:margin=-3"},
        {"delayed:history=1024", "delayed"},
        {"nvfp4+norht", "nvfp4+norht"},
        {"mxfp4+x.rht+g.rht", "mxfp4+rht"},
        {"mxfp4+nosr+no2d", "mxfp4+nosr+no2d"},
        {"nvfp4+x.norht+g.norht", "nvfp4+norht"},
        {"nvfp4:rht=none", "nvfp4+norht"},
        {"nvfp4+nosr+no2d", "nvfp4+nosr+no2d"},
        {"current+x.pow2+w.pow2+g.pow2", "current+pow2"},
        {"current+x.pow2+w.pow2", "current+x.pow2+w.pow2"},
        {"current+pow2+g.nopow2", "current+x.pow2+w.pow2"},
        {"current:fprop=split", "current:fprop=split"},
        {"current:dgrad=fast,wgrad=fast", "current:dgrad=fast,wgrad=fast"},
        {"current:x.eps=0.5,w.eps=0.5,g.eps=0.5", "current:eps=0.5"},
        {"mxfp8:override=dequantized", "mxfp8:override=dequantized"},
        {"mxfp8:product=folded", "mxfp8"},
        {"mxfp8+2d:product=exact", "mxfp8+2d:product=exact"},
        {"custom:product=exact,weight=mxfp8:e4m3",
         "custom:product=exact,weight=mxfp8:e4m3/1x32+row+col"},
        {"block+x.2d", "block+x.2d"},
        {"mxfp8:batch_invariant", "mxfp8+batch_invariant"},
        {"block+batch_invariant=1", "block+batch_invariant"},
        {"mxfp4+batch_invariant+nosr", "mxfp4+batch_invariant+nosr"},
        {"delayed+batch_invariant:history=4", "delayed+batch_invariant:history=4"},
        {"current+nobatch_invariant", "current"},
        {"custom:weight=mxfp8:e4m3", "custom:weight=mxfp8:e4m3/1x32+row+col"},
        {"custom", "custom"},
        {"none", "none"},
    };
    char text[OCTET_RECIPE_TEXT];
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        octet_recipe recipe = parsed(pairs[i][0]);
        CHECK(octet_recipe_print(text, sizeof text, &recipe) < sizeof text);
        CHECK_EQ_STR(text, pairs[i][1]);
        octet_recipe back = parsed(text);
        CHECK_OF(octet_recipe_equal(&recipe, &back), text);
        CHECK_EQ_INT(octet_recipe_hash(&recipe), octet_recipe_hash(&back));
    }
}

/* Small deterministic noise. */
static uint32_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* Random members of the struct; those that are valid must survive their text. */
TEST(recipe__any_valid_recipe_survives_its_text) {
    uint64_t noise = 1;
    int valid = 0;
    char text[OCTET_RECIPE_TEXT];
    for (int i = 0; i < 200000; i++) {
        octet_recipe r;
        CHECK_EQ_INT(octet_recipe_make(&r, (octet_recipe_kind)(1 + next(&noise) % 6), NULL),
                     OCTET_OK);
        uint8_t *bytes[] = {
            &r.format,       &r.override_,      &r.algo,           &r.reduce_amax,
            &r.split_fprop,  &r.split_dgrad,    &r.row_scaled,     &r.four_over_six,
            &r.max256,       &r.error_mode,     &r.input.pow2,     &r.weight.pow2,
            &r.grad.two_d,   &r.input.hadamard, &r.grad.hadamard,  &r.grad.stochastic,
            &r.weight.two_d, &r.input.two_d,    &r.batch_invariant};
        for (int changes = (int)(next(&noise) % 4); changes > 0; changes--) {
            *bytes[next(&noise) % (sizeof bytes / sizeof bytes[0])] =
                (uint8_t)(next(&noise) % 4);
        }
        if (next(&noise) % 4 == 0) {
            r.grad.epsilon = (float)(next(&noise) % 7) / 3.0f;
        }
        if (octet_recipe_check(&r, NULL) == OCTET_OK) {
            valid++;
            CHECK(octet_recipe_print(text, sizeof text, &r) < sizeof text);
            octet_recipe back = parsed(text);
            CHECK_OF(octet_recipe_equal(&r, &back), text);
        }
    }
    CHECK(valid > 20000);
}

TEST(recipe__wrong_text_gives_column_word_and_choices) {
    static const struct {
        const char *text;
        int column;
        const char *says;
    } cases[] = {
        {"fp8", 1, "'fp8' is not a recipe; allowed: none, delayed, current"},
        {"delayed:histroy=3", 9, "'histroy' is not a word of recipe delayed; allowed: format"},
        {"delayed:history", 9, "'history' needs a value"},
        {"delayed:history=0", 9, "history is 0"},
        {"delayed:history=-1", 17, "'-1' is not a whole number"},
        {"delayed:override=dequantized", 9, "'override' is not a word of recipe delayed"},
        {"delayed:algo=mean", 14, "'mean' is not a value of algo; allowed: max, most_recent"},
        {"current+pow3", 9, "'pow3' is not a word of recipe current"},
        {"current+nopow2=1", 16, "'nopow2' takes no value"},
        {"block:fprop=fast", 7, "fast has no meaning"},
        {"block+2d", 7, "'2d' is not a word of recipe block; allowed: format, override"},
        {"mxfp8+x.2d", 7, "'x.2d' is not a word"},
        {"nvfp4:wgrad=fast", 7, "fast has no meaning"},
        {"mxfp4:fprop=fast", 7, "fast has no meaning"},
        {"mxfp4+x.rht", 7, "differ"},
        {"mxfp4+rowscaled", 7, "is not a word of recipe mxfp4"},
        {"nvfp4+w.rht", 7, "never transformed"},
        {"nvfp4+x.norht", 1, "differ"},
        {"nvfp4+rowscaled", 7, "input: nvfp4: rowscaled goes with neither"},
        {"nvfp4:4over6=activations", 7, "input: nvfp4: 4over6 goes with neither"},
        {"nvfp4:err=none", 7, "mae or mse"},
        {"custom:inputs=mxfp8:e4m3", 8, "'inputs' is not a word of recipe custom"},
        {"custom:input=mxfp8:e4m4", 20, "'e4m4' is not a format of mxfp8"},
        {"none+x", 6, "allowed: nothing"},
        {"current+batch_invariant", 9,
         "recipe current: batch_invariant: one scale is made of all rows of a tensor; recipes "
         "that can: block, mxfp8, delayed, mxfp4 without stochastic rounding"},
        {"nvfp4+batch_invariant", 7, "an amax is that of all rows"},
        {"nvfp4+norht+nosr+rowscaled+batch_invariant", 28, "an amax is that of all rows"},
        {"custom+batch_invariant", 8, "its quantizers may look at all rows"},
        {"block+x.2d+batch_invariant", 7, "square blocks of inputs or gradients"},
        {"block+g.2d+batch_invariant", 7, "square blocks of inputs or gradients"},
        {"mxfp4+batch_invariant", 7, "leave it out with +nosr"},
        {"none+batch_invariant", 6, "allowed: nothing"},
        {"current:eps=1e+-5", 13, "'1e+-5' is not a number"},
        {"delayed:history=3,history=4", 19, "'history' is given twice"},
        {"current+pow2+nopow2", 14, "'nopow2' is given twice"},
        {"current+x.pow2:x.pow2=1", 16, "'x.pow2' is given twice"},
        {"custom:input=mxfp8:e4m3,input=none", 25, "'input' is given twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        octet_recipe recipe = {.size = 77};
        octet_error err = {OCTET_OK, 0, ""};
        CHECK_EQ_INT(octet_recipe_parse(&recipe, cases[i].text, &err), OCTET_INVALID);
        CHECK_OF(err.column == cases[i].column, err.text);
        CHECK_OF(strstr(err.text, cases[i].says), err.text);
        CHECK_EQ_INT(recipe.size, 77);
    }
}

static octet_status quantize_only(octet_quantizer *out, const octet_quantizer_role *role,
                                  void *user, octet_error *err) {
    CHECK_EQ_STR(role->module_type, "linear");
    CHECK_EQ_STR(role->tensor_type, octet_role_name(role->role));
    CHECK_EQ_INT(out->scheme, OCTET_SCHEME_NONE);
    const octet_role *wanted = user;
    return role->role == *wanted ? octet_quantizer_parse(out, "mxfp8:e4m3", err) : OCTET_OK;
}

static octet_status refuse(octet_quantizer *out, const octet_quantizer_role *role, void *user,
                           octet_error *err) {
    (void)out, (void)role, (void)user;
    return octet_quantizer_parse(out, "rubbish", err);
}

TEST(recipe__custom_is_asked_once_and_stays_a_value) {
    octet_role role = OCTET_GRAD_INPUT;
    octet_recipe recipe, copy;
    char text[OCTET_RECIPE_TEXT];
    CHECK_EQ_INT(octet_recipe_custom(&recipe, quantize_only, &role, NULL), OCTET_OK);
    role = OCTET_INPUT; /* too late to matter */
    copy = recipe;
    CHECK(octet_recipe_equal(&recipe, &copy));
    octet_recipe_print(text, sizeof text, &recipe);
    CHECK_EQ_STR(text, "custom:grad_input=mxfp8:e4m3/1x32+row+col");
    octet_error err;
    recipe.size = 77;
    CHECK_EQ_INT(octet_recipe_custom(&recipe, refuse, NULL, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "'rubbish' is not a scheme") && recipe.size == 77);
    CHECK_EQ_INT(octet_recipe_custom(NULL, refuse, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_recipe_custom(&recipe, NULL, NULL, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "fn is NULL"));
}

TEST(recipe__wrong_structs_are_refused_with_words) {
    octet_recipe recipe = parsed("current");
    octet_quantizer q = {.size = 77};
    octet_error err;
    CHECK_EQ_INT(octet_recipe_quantizer(&q, &recipe, OCTET_ROLES, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "role 6") && q.size == 77);
    CHECK_EQ_INT(octet_recipe_make(&recipe, OCTET_RECIPES, &err), OCTET_INVALID);
    recipe.history = 3;
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_recipe.history is 3, which has no meaning here"));
    recipe = parsed("mxfp8");
    recipe.grad.two_d = 1;
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "octet_recipe.grad.two_d is 1, which has no meaning here"));
    recipe = parsed("current");
    recipe.custom[2] = parsed("custom:input=mxfp8:e4m3").custom[0];
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "custom[2] is set but the kind is current"));
    recipe = parsed("current");
    recipe.custom[3].format = OCTET_E4M3;
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "custom[3] is set but the kind is current"));
    recipe = (octet_recipe){.override_ = OCTET_OVERRIDE_DEQUANTIZED};
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "override_ is dequantized, which has no meaning here"));
    recipe.size = 8;
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    recipe = parsed("current");
    recipe.kind = 40;
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
    CHECK(strstr(err.text, "kind is 40"));
}

TEST(recipe__margins_leave_scales_that_have_reciprocals) {
    octet_recipe recipe = parsed("delayed:margin=-64");
    octet_error err;
    recipe.margin = 64;
    CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_OK);
    for (int sign = -1; sign <= 1; sign += 2) {
        recipe.margin = 65 * sign;
        CHECK_EQ_INT(octet_recipe_check(&recipe, &err), OCTET_INVALID);
        CHECK(strstr(err.text, "65; it is from -64 to 64"));
    }
}

TEST_MAIN(recipe__roles_of_each_default, recipe__fields_reach_the_quantizers,
          recipe__canonical_texts, recipe__any_valid_recipe_survives_its_text,
          recipe__wrong_text_gives_column_word_and_choices,
          recipe__custom_is_asked_once_and_stays_a_value,
          recipe__wrong_structs_are_refused_with_words,
          recipe__margins_leave_scales_that_have_reciprocals)
