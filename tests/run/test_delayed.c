/* test_delayed.c - delayed scaling's state against a literal model of its rule. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "octet.h"
#include "test.h"
#include "values.h"

#define SLOTS 5
#define MOST 9

typedef struct state {
    float scale[SLOTS];
    float history[MOST * SLOTS];
} state;

static octet_delayed view(state *s, uint32_t length) {
    octet_delayed view = OCTET_DELAYED_INIT;
    view.format = OCTET_E4M3;
    view.length = length;
    view.slots = SLOTS;
    view.scale = s->scale;
    view.history = s->history;
    return view;
}

/* Amaxes of every kind, zeros, infinities and NaN among them. */
static float draw(uint64_t *random) {
    uint64_t bits = run_next(random);
    switch (bits & 15) {
    case 0:
    case 1:
    case 2:
        return 0.0f;
    case 3:
        return INFINITY;
    case 4:
        return NAN;
    case 5:
        return 0x1p-149f;
    case 6:
        return FLT_MAX;
    default:
        return (float)(bits >> 40) * 0x1p-20f;
    }
}

/* ---- the rule, word for word ------------------------------------------------------------ */

static float max_number(float a, float b) {
    return isnan(a) ? b : isnan(b) ? a : a > b ? a : b;
}

static void model_update(state *s, const octet_delayed *d, const float *reduced) {
    float maximum = d->format == OCTET_E4M3 ? 448.0f : 57344.0f;
    int length = (int)d->length;
    for (int slot = 0; slot < SLOTS; slot++) {
        float old[MOST], fresh[MOST] = {0};
        for (int i = 0; i < length; i++) {
            old[i] = s->history[i * SLOTS + slot];
        }
        float last = reduced && reduced[slot] != 0 ? reduced[slot] : old[0];
        if (last == 0) {
            continue;
        }
        float amax = last;
        for (int i = 1; i < length && d->algo == OCTET_AMAX_MAX; i++) {
            amax = max_number(amax, old[i]);
        }
        for (int i = 1; i < length - 1; i++) {
            fresh[i] = old[i + 1];
        }
        if (length > 1) {
            fresh[length - 1] = last;
        }
        for (int i = 0; i < length; i++) {
            s->history[i * SLOTS + slot] = fresh[i];
        }
        if (isfinite(amax) && amax > 0) {
            float scale = (float)ldexp((double)maximum, -d->margin) / amax;
            s->scale[slot] = isinf(scale) ? FLT_MAX : scale;
        }
    }
}

static bool same(const state *a, const state *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

TEST(delayed__update_is_the_rule) {
    uint64_t random = 3;
    for (int round = 0; round < 20000; round++) {
        state ours, model;
        float reduced[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            ours.scale[i] = (float)(1 + i);
            reduced[i] = draw(&random);
        }
        for (int i = 0; i < MOST * SLOTS; i++) {
            ours.history[i] = draw(&random);
        }
        model = ours;
        octet_delayed d = view(&ours, 1 + (uint32_t)(round % MOST));
        d.algo = (uint8_t)(round / MOST % 2 ? OCTET_AMAX_MAX : OCTET_AMAX_MOST_RECENT);
        d.format = (uint8_t)(round % 2 ? OCTET_E4M3 : OCTET_E5M2);
        d.margin = round % 7 - 3;
        bool has_reduced = round % 3 == 0;
        CHECK_EQ_INT(octet_delayed_update(&d, has_reduced ? reduced : NULL, NULL, NULL),
                     OCTET_OK);
        model_update(&model, &d, has_reduced ? reduced : NULL);
        CHECK(same(&ours, &model));
    }
}

TEST(delayed__many_states_are_updated_each_by_its_own_rule) {
    enum { STATES = 7 };
    uint64_t random = 5;
    for (int round = 0; round < 500; round++) {
        state ours[STATES], apart[STATES];
        octet_delayed views[STATES];
        for (int i = 0; i < STATES; i++) {
            for (int k = 0; k < SLOTS; k++) {
                ours[i].scale[k] = (float)(1 + k);
            }
            for (int k = 0; k < MOST * SLOTS; k++) {
                ours[i].history[k] = draw(&random);
            }
            apart[i] = ours[i];
            views[i] = view(&ours[i], 1 + (uint32_t)(run_next(&random) % MOST));
            views[i].algo =
                (uint8_t)(run_next(&random) % 2 ? OCTET_AMAX_MAX : OCTET_AMAX_MOST_RECENT);
            views[i].margin = (int32_t)(run_next(&random) % 3) - 1;
        }
        CHECK_EQ_INT(octet_delayed_update_all(views, STATES, NULL, NULL), OCTET_OK);
        for (int i = 0; i < STATES; i++) {
            octet_delayed one = views[i];
            one.scale = apart[i].scale;
            one.history = apart[i].history;
            CHECK_EQ_INT(octet_delayed_update(&one, NULL, NULL, NULL), OCTET_OK);
            CHECK(same(&ours[i], &apart[i]));
        }
    }
}

TEST(delayed__many_states_are_checked_before_one_is_updated) {
    state states[2] = {{{1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}}, {{1}, {0}}};
    state before = states[0];
    octet_delayed views[] = {view(&states[0], 2), view(&states[1], 2)};
    octet_error err;
    views[1].scale = NULL;
    CHECK_EQ_INT(octet_delayed_update_all(views, 2, NULL, &err), OCTET_INVALID);
    CHECK(same(&states[0], &before));
    CHECK_EQ_INT(octet_delayed_update_all(NULL, 2, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_delayed_update_all(NULL, 0, NULL, &err), OCTET_OK);
    CHECK_EQ_INT(octet_delayed_update_all(views, 1, NULL, &err), OCTET_OK);
    CHECK(!same(&states[0], &before));
}

TEST(delayed__step_records_and_updates) {
    uint64_t random = 11;
    for (int round = 0; round < 5000; round++) {
        state apart = {{1, 1, 1, 1, 1}, {0}}, joined;
        float amax[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            amax[i] = draw(&random);
        }
        for (int i = 0; i < MOST * SLOTS; i++) {
            apart.history[i] = draw(&random);
        }
        joined = apart;
        octet_delayed a = view(&apart, 1 + (uint32_t)(round % MOST));
        octet_delayed b = view(&joined, a.length);
        CHECK_EQ_INT(octet_delayed_record(&a, amax, NULL, NULL), OCTET_OK);
        CHECK_EQ_INT(octet_delayed_update(&a, NULL, NULL, NULL), OCTET_OK);
        CHECK_EQ_INT(octet_delayed_step(&b, amax, NULL, NULL), OCTET_OK);
        CHECK(same(&apart, &joined));
    }
}

TEST(delayed__record_keeps_the_larger_and_no_nan) {
    uint64_t random = 5;
    for (int round = 0; round < 5000; round++) {
        state ours = {{0}, {0}};
        float amax[SLOTS], want[SLOTS];
        for (int i = 0; i < SLOTS; i++) {
            ours.history[i] = draw(&random);
            ours.history[SLOTS + i] = 7;
            amax[i] = draw(&random);
            want[i] = max_number(ours.history[i], amax[i]);
        }
        octet_delayed d = view(&ours, 2);
        CHECK_EQ_INT(octet_delayed_record(&d, amax, NULL, NULL), OCTET_OK);
        for (int i = 0; i < SLOTS; i++) {
            CHECK(ours.history[i] == want[i] || (isnan(want[i]) && isnan(ours.history[i])));
            CHECK(ours.history[SLOTS + i] == 7 && ours.scale[i] == 0);
        }
    }
}

/* By hand: history of 3, "max", then amaxes 2, none, 4, 1. */
TEST(delayed__a_short_history_by_hand) {
    static const float amaxes[] = {2, 0, 4, 1, 1, 1};
    static const float scales[] = {224, 224, 112, 112, 112, 448};
    state s = {{1, 1, 1, 1, 1}, {0}};
    octet_delayed d = view(&s, 3);
    for (int i = 0; i < 6; i++) {
        float amax[SLOTS] = {amaxes[i], amaxes[i], amaxes[i], amaxes[i], amaxes[i]};
        CHECK_EQ_INT(octet_delayed_record(&d, amax, NULL, NULL), OCTET_OK);
        CHECK_EQ_INT(octet_delayed_update(&d, NULL, NULL, NULL), OCTET_OK);
        CHECK_EQ_BITS(s.scale[0], scales[i]);
    }
}

TEST(delayed__extreme_margins_are_refused_and_the_last_ones_do_not_spread) {
    state s = {{1, 1, 1, 1, 1}, {0x1p-100f, 1, 1, 1, 1}}, before = s;
    octet_delayed d = view(&s, 1);
    static const int32_t refused[] = {INT32_MIN, -65, 65, INT32_MAX};
    for (int i = 0; i < 4; i++) {
        d.margin = refused[i];
        CHECK_EQ_INT(octet_delayed_update(&d, NULL, NULL, NULL), OCTET_INVALID);
        CHECK(memcmp(&s, &before, sizeof s) == 0);
    }
    d.margin = -64;
    CHECK_EQ_INT(octet_delayed_update(&d, NULL, NULL, NULL), OCTET_OK);
    CHECK_EQ_BITS(s.scale[0], FLT_MAX);
    CHECK_EQ_BITS(s.history[0], 0.0f);
}

TEST(delayed__what_is_wrong_is_refused_and_nothing_is_updated) {
    state s = {{1, 2, 3, 4, 5}, {1, 1, 1, 1, 1}}, before = s;
    octet_delayed good = view(&s, 2), d;
    octet_error err;
    float amax[SLOTS] = {1, 1, 1, 1, 1};
#define REFUSED(change)                                                                        \
    do {                                                                                       \
        d = good;                                                                              \
        change;                                                                                \
        err.text[0] = '\0';                                                                    \
        CHECK_EQ_INT(octet_delayed_update(&d, NULL, NULL, &err), OCTET_INVALID);               \
        CHECK(err.text[0] != '\0');                                                            \
        CHECK_EQ_INT(octet_delayed_record(&d, amax, NULL, NULL), OCTET_INVALID);               \
        CHECK_EQ_INT(octet_delayed_step(&d, amax, NULL, NULL), OCTET_INVALID);                 \
    } while (0)
    REFUSED(d.size = 0);
    REFUSED(d.format = OCTET_E2M1);
    REFUSED(d.algo = OCTET_AMAX_CALLBACK);
    REFUSED(d.length = 0);
    REFUSED(d.slots = -1);
    REFUSED(d.slots = INT64_MAX);
    REFUSED(d.scale = NULL);
    REFUSED(d.history = NULL);
    CHECK_EQ_INT(octet_delayed_update(NULL, NULL, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_delayed_record(&good, NULL, NULL, &err), OCTET_INVALID);
    CHECK_EQ_INT(octet_delayed_step(&good, NULL, NULL, &err), OCTET_INVALID);
    CHECK(same(&s, &before));
    d = good;
    d.slots = 0;
    d.scale = d.history = NULL;
    CHECK_EQ_INT(octet_delayed_update(&d, NULL, NULL, &err), OCTET_OK);
    CHECK_EQ_INT(octet_delayed_record(&d, NULL, NULL, &err), OCTET_OK);
}

TEST_MAIN(delayed__update_is_the_rule, delayed__many_states_are_updated_each_by_its_own_rule,
          delayed__many_states_are_checked_before_one_is_updated,
          delayed__step_records_and_updates, delayed__record_keeps_the_larger_and_no_nan,
          delayed__a_short_history_by_hand,
          delayed__extreme_margins_are_refused_and_the_last_ones_do_not_spread,
          delayed__what_is_wrong_is_refused_and_nothing_is_updated)
