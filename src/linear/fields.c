/* fields.c - the field tables of every public struct, in one place to ask for them. */
#include "linear/args.h"
#include "quant/proto.h"
#include "quant/quantizer.h"
#include "quant/recipe.h"

const octet_field *octet_fields(octet_struct which) {
    switch (which) {
    case OCTET_STRUCT_QUANTIZER:
        return oct_quantizer_fields;
    case OCTET_STRUCT_PROTO:
        return oct_proto_fields;
    case OCTET_STRUCT_RECIPE:
        return oct_recipe_fields;
    case OCTET_STRUCT_LINEAR_ARGS:
        return oct_linear_fields;
    case OCTET_STRUCT_LINEAR_BACKWARD_ARGS:
        return oct_linear_backward_fields;
    default:
        return NULL;
    }
}
