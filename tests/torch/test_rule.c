/* test_rule.c - a delayed recipe says the same whether it is read or remembered. */
#include "torch/rule.h"

#include <stdio.h>

#include "test.h"

static octet_delayed rule_of(const char *text, octet_role role) {
    octet_error err = {OCTET_OK, 0, ""};
    octet_delayed rule = OCTET_DELAYED_INIT;
    CHECK_OF(oct_rule_get(&rule, text, role, &err) == OCTET_OK, err.text);
    return rule;
}

/* More recipes than are remembered, over and over, for two roles by turns. */
TEST(rule__each_recipe_and_role_keeps_its_own) {
    for (int i = 0; i < 200; i++) {
        char text[64];
        uint32_t length = (uint32_t)(1 + i * 7 % 40);
        (void)snprintf(text, sizeof text, "delayed:history=%lu", (unsigned long)length);
        octet_delayed input = rule_of(text, OCTET_INPUT),
                      grad = rule_of(text, OCTET_GRAD_OUTPUT);
        octet_delayed again = rule_of(text, OCTET_INPUT);
        CHECK_EQ_INT(input.length, length);
        CHECK_EQ_INT(input.format, OCTET_E4M3);
        CHECK_EQ_INT(grad.format, OCTET_E5M2);
        CHECK_EQ_INT(grad.length, length);
        CHECK_EQ_INT(again.length, length);
        CHECK_EQ_INT(again.format, OCTET_E4M3);
    }
}

/* Neither more than may be nor none. */
TEST(rule__so_many_are_remembered) {
    for (int i = 0; i < 500; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "delayed:history=%d", 1 + i);
        CHECK_EQ_INT(rule_of(text, OCTET_INPUT).length, 1 + i);
        oct_rule_counts counts = oct_rule_count();
        CHECK(counts.rules > 0 && counts.rules <= counts.most);
    }
    CHECK_EQ_INT(oct_rule_count().most, OCT_CACHED_RULES);
    CHECK_EQ_INT(oct_rule_count().rules, OCT_CACHED_RULES);
}

TEST(rule__what_is_no_delayed_recipe_is_refused_each_time) {
    static const char *const texts[] = {"", "current", "delayed:history=0", "delayed x"};
    for (int i = 0; i < 12; i++) {
        octet_error err = {OCTET_OK, 0, ""};
        octet_delayed rule = OCTET_DELAYED_INIT;
        CHECK_OF(oct_rule_get(&rule, texts[i % 4], OCTET_INPUT, &err) == OCTET_INVALID,
                 texts[i % 4]);
        CHECK(err.text[0] != 0);
    }
}

TEST_MAIN(rule__each_recipe_and_role_keeps_its_own, rule__so_many_are_remembered,
          rule__what_is_no_delayed_recipe_is_refused_each_time)
