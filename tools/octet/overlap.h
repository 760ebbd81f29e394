/* overlap.h - a model of what a plan's collectives cost beside its products. */
#ifndef OCT_CLI_OVERLAP_H
#define OCT_CLI_OVERLAP_H

#include "cli.h"

/* What links and products do in a second. */
typedef struct oct_cli_rates {
    double link;    /* bytes that a rank sends */
    double speed;   /* operations of a product, two a term */
    double latency; /* seconds before a collective's first byte */
} oct_cli_rates;

/* Of an H200: NVLink, 900 GB/s both ways together; dense FP8 as cuBLASLt multiplies it. */
#define OCT_CLI_LINK "450"   /* GB/s */
#define OCT_CLI_SPEED "1000" /* TFLOP/s */
#define OCT_CLI_LATENCY "10" /* us */

/* From texts in the units above. Returns OCT_CLI_OK, or OCT_CLI_USAGE after saying why. */
int oct_cli_read_rates(oct_cli_rates *out, const oct_cli_command *command,
                       const oct_cli_option *options);

/* Three lines below a plan that has collectives; nothing below another. */
void oct_cli_overlap(const octet_plan *plan, const oct_cli_rates *rates);

#endif
